"""The simulated network between clients and nodes: order within a connection, cuts, resets, congestion."""

from __future__ import annotations

import msgspec
import pytest

from rostra.simulator.clock import SECOND_US, Clock, random_for
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.network.client_network import BUFFER_HIGH, ClientNetwork, SimulatedConnection


class RecordingEnd:
    """Either end of a connection; records what it receives."""

    def __init__(self, name: str = "end") -> None:
        self.name = name
        self.heard = b""
        self.chunks: list[bytes] = []
        self.is_open = False
        self.lost_because: str | None = None
        self.full = 0
        self.eased = 0
        self.listening = self.host_up = True

    def opened(self, link: SimulatedConnection) -> None:
        self.is_open = True

    def received(self, link: SimulatedConnection, chunk: bytes) -> None:
        self.heard += chunk
        self.chunks.append(chunk)

    def lost(self, link: SimulatedConnection, reason: str = "told") -> None:
        self.lost_because = reason

    def congested(self, link: SimulatedConnection) -> None:
        self.full += 1

    def drained(self, link: SimulatedConnection) -> None:
        self.eased += 1

    def accept(self, link: SimulatedConnection) -> None:
        self.is_open = True

    def record_in_flight(self, link: SimulatedConnection) -> None:
        pass


class NetworkUnderTest:
    def __init__(self, seed: int = 0, **changed: object) -> None:
        self.clock = Clock()
        self.fault_counts = FaultCounts()
        self.node = RecordingEnd()
        weather = {"delay_us": (100, 2_000), "bytes_per_ms": 2_000, **changed}
        plan = msgspec.structs.replace(FaultPlan.none(), **weather)
        self.client_network = ClientNetwork(self.clock, plan, self.fault_counts, random_for(seed, "network"))
        self.client_network.hosts["node:1"] = self.node
        self.client_network.fault_free = False

    def dial(self, client: RecordingEnd) -> SimulatedConnection:
        link = self.client_network.dial(client, 1, "node:1")
        self.wait()
        return link

    def wait(self) -> None:
        self.clock.run_until(self.clock.now_us + 10 * SECOND_US)


def test_bytes_keep_their_order_within_a_connection_however_they_are_split() -> None:
    wire, client = NetworkUnderTest(spike=0.3, spike_us=50_000), RecordingEnd()
    link = wire.dial(client)
    for number in range(500):
        link.up.send(b"%d;" % number)
        link.down.send(b"%d!" % number)
    wire.wait()
    assert wire.node.heard == b"".join(b"%d;" % number for number in range(500))
    assert client.heard == b"".join(b"%d!" % number for number in range(500))
    assert len(client.chunks) > 500, "some arrive in pieces"


def test_between_connections_a_later_message_may_arrive_first() -> None:
    wire = NetworkUnderTest()
    links = [wire.dial(RecordingEnd(f"client {number}")) for number in range(10)]
    for number, link in enumerate(links):
        link.up.send(b"%d;" % number)
    wire.wait()
    assert sorted(wire.node.heard.split(b";")) != wire.node.heard.split(b";")
    assert wire.fault_counts.counts[Fault.REORDERED] > 0


def test_a_node_that_does_not_listen_refuses_and_one_without_power_does_not_answer() -> None:
    wire, refused, unheard = NetworkUnderTest(), RecordingEnd("refused"), RecordingEnd("unheard")
    wire.node.listening = False
    wire.dial(refused)
    wire.node.host_up = False
    wire.dial(unheard)
    assert refused.lost_because == "connection refused"
    assert (unheard.is_open, unheard.lost_because) == (False, None)


def test_a_cut_loses_bytes_in_flight_and_both_ends_notice() -> None:
    wire, client = NetworkUnderTest(delay_us=(1_000, 1_001)), RecordingEnd()
    link = wire.dial(client)
    for _ in range(40):
        link.up.send(b"0123456789")
    link.cut(half_open=False)
    wire.wait()
    assert len(wire.node.heard) < 400
    assert wire.node.heard == (b"0123456789" * 40)[: len(wire.node.heard)]
    assert (client.lost_because, wire.node.lost_because) == ("connection reset", "told")
    assert wire.fault_counts.counts[Fault.DROPPED] > 0
    assert wire.fault_counts.counts[Fault.CUT] == 1


def test_a_cut_tears_frames_in_the_middle() -> None:
    torn = 0
    for seed in range(30):
        wire, client = NetworkUnderTest(seed, delay_us=(1_000, 1_001)), RecordingEnd()
        link = wire.dial(client)
        link.up.send(b"0123456789")
        link.cut(half_open=False)
        wire.wait()
        torn += 0 < len(wire.node.heard) < 10
        assert wire.fault_counts.counts[Fault.TORN_FRAME] == (0 < len(wire.node.heard) < 10)
    assert torn > 0


def test_one_end_of_a_half_open_link_never_notices() -> None:
    outcomes = set()
    for seed in range(20):
        wire, client = NetworkUnderTest(seed), RecordingEnd()
        wire.dial(client).cut(half_open=True)
        wire.wait()
        outcomes.add((client.lost_because is None, wire.node.lost_because is None))
    assert outcomes == {(True, False), (False, True)}


def test_bytes_for_a_connection_that_the_node_has_forgotten_are_answered_with_a_reset() -> None:
    wire, client = NetworkUnderTest(), RecordingEnd()
    link = wire.dial(client)
    wire.client_network.node_died([link], silently=True)
    wire.wait()
    assert client.lost_because is None
    link.up.send(b"anybody there?")
    wire.wait()
    assert client.lost_because == "reset"


def test_a_sender_is_congested_by_bytes_in_flight_and_drained_later() -> None:
    wire, client = NetworkUnderTest(), RecordingEnd()
    link = wire.dial(client)
    link.down.send(bytes(BUFFER_HIGH))
    link.down.send(b"one more")
    wire.wait()
    assert (wire.node.full, wire.node.eased) == (1, 1)
    assert (client.full, client.eased) == (0, 0)


@pytest.mark.parametrize("closes", ["client", "node"])
def test_a_close_arrives_after_all_bytes_that_were_sent(closes: str) -> None:
    wire, client = NetworkUnderTest(), RecordingEnd()
    link = wire.dial(client)
    link.up.send(b"last words")
    link.down.send(b"farewell")
    link.client_closes() if closes == "client" else link.node_closes()
    wire.wait()
    if closes == "client":
        assert (wire.node.heard, wire.node.lost_because) == (b"last words", "told")
    else:
        assert (client.heard, client.lost_because) == (b"farewell", "closed by the node")


def test_nothing_follows_a_torn_frame_even_if_the_node_dies_as_well() -> None:
    for seed in range(30):
        wire, client = NetworkUnderTest(seed, delay_us=(1_000, 1_001)), RecordingEnd()
        link = wire.dial(client)
        link.cut(half_open=False)
        link.down.send(b"0123456789")
        wire.clock.run_until(wire.clock.now_us + 1_500)
        wire.client_network.node_died([link], silently=False)
        link.down.send(b"abcdefghij")
        wire.wait()
        assert b"0123456789abcdefghij".startswith(client.heard)
