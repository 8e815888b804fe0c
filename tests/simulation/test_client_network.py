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
        self.received_bytes = b""
        self.chunks: list[bytes] = []
        self.is_open = False
        self.lost_because: str | None = None
        self.full = 0
        self.drained_count = 0
        self.listening = self.host_up = True

    def opened(self, link: SimulatedConnection) -> None:
        self.is_open = True

    def received(self, link: SimulatedConnection, chunk: bytes) -> None:
        self.received_bytes += chunk
        self.chunks.append(chunk)

    def lost(self, link: SimulatedConnection, reason: str = "closed") -> None:
        self.lost_because = reason

    def congested(self, link: SimulatedConnection) -> None:
        self.full += 1

    def drained(self, link: SimulatedConnection) -> None:
        self.drained_count += 1

    def accept(self, link: SimulatedConnection) -> None:
        self.is_open = True

    def record_in_flight(self, link: SimulatedConnection) -> None:
        pass


class NetworkUnderTest:
    def __init__(self, seed: int = 0, **changed: object) -> None:
        self.clock = Clock()
        self.fault_counts = FaultCounts()
        self.node = RecordingEnd()
        settings = {"delay_us": (100, 2_000), "bytes_per_ms": 2_000, **changed}
        plan = msgspec.structs.replace(FaultPlan.none(), **settings)
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
    network, client = NetworkUnderTest(spike=0.3, spike_us=50_000), RecordingEnd()
    link = network.dial(client)
    for number in range(500):
        link.up.send(b"%d;" % number)
        link.down.send(b"%d!" % number)
    network.wait()
    assert network.node.received_bytes == b"".join(b"%d;" % number for number in range(500))
    assert client.received_bytes == b"".join(b"%d!" % number for number in range(500))
    assert len(client.chunks) > 500, "some arrive in pieces"


def test_between_connections_a_later_message_may_arrive_first() -> None:
    network = NetworkUnderTest()
    links = [network.dial(RecordingEnd(f"client {number}")) for number in range(10)]
    for number, link in enumerate(links):
        link.up.send(b"%d;" % number)
    network.wait()
    assert sorted(network.node.received_bytes.split(b";")) != network.node.received_bytes.split(b";")
    assert network.fault_counts.counts[Fault.REORDERED] > 0


def test_a_node_that_does_not_listen_refuses_and_one_without_power_does_not_answer() -> None:
    network, refused, unanswered = NetworkUnderTest(), RecordingEnd("refused"), RecordingEnd("unanswered")
    network.node.listening = False
    network.dial(refused)
    network.node.host_up = False
    network.dial(unanswered)
    assert refused.lost_because == "connection refused"
    assert (unanswered.is_open, unanswered.lost_because) == (False, None)


def test_a_cut_loses_bytes_in_flight_and_both_ends_notice() -> None:
    network, client = NetworkUnderTest(delay_us=(1_000, 1_001)), RecordingEnd()
    link = network.dial(client)
    for _ in range(40):
        link.up.send(b"0123456789")
    link.cut(half_open=False)
    network.wait()
    assert len(network.node.received_bytes) < 400
    assert network.node.received_bytes == (b"0123456789" * 40)[: len(network.node.received_bytes)]
    assert (client.lost_because, network.node.lost_because) == ("connection reset", "closed")
    assert network.fault_counts.counts[Fault.DROPPED] > 0
    assert network.fault_counts.counts[Fault.CUT] == 1


def test_a_cut_tears_frames_in_the_middle() -> None:
    torn = 0
    for seed in range(30):
        network, client = NetworkUnderTest(seed, delay_us=(1_000, 1_001)), RecordingEnd()
        link = network.dial(client)
        link.up.send(b"0123456789")
        link.cut(half_open=False)
        network.wait()
        torn += 0 < len(network.node.received_bytes) < 10
        assert network.fault_counts.counts[Fault.TORN_FRAME] == (0 < len(network.node.received_bytes) < 10)
    assert torn > 0


def test_one_end_of_a_half_open_link_never_notices() -> None:
    outcomes = set()
    for seed in range(20):
        network, client = NetworkUnderTest(seed), RecordingEnd()
        network.dial(client).cut(half_open=True)
        network.wait()
        outcomes.add((client.lost_because is None, network.node.lost_because is None))
    assert outcomes == {(True, False), (False, True)}


def test_bytes_for_a_connection_that_the_node_has_forgotten_are_answered_with_a_reset() -> None:
    network, client = NetworkUnderTest(), RecordingEnd()
    link = network.dial(client)
    network.client_network.node_died([link], silently=True)
    network.wait()
    assert client.lost_because is None
    link.up.send(b"anybody there?")
    network.wait()
    assert client.lost_because == "reset"


def test_a_sender_is_congested_by_bytes_in_flight_and_drained_later() -> None:
    network, client = NetworkUnderTest(), RecordingEnd()
    link = network.dial(client)
    link.down.send(bytes(BUFFER_HIGH))
    link.down.send(b"one more")
    network.wait()
    assert (network.node.full, network.node.drained_count) == (1, 1)
    assert (client.full, client.drained_count) == (0, 0)


@pytest.mark.parametrize("closes", ["client", "node"])
def test_a_close_arrives_after_all_bytes_that_were_sent(closes: str) -> None:
    network, client = NetworkUnderTest(), RecordingEnd()
    link = network.dial(client)
    link.up.send(b"last words")
    link.down.send(b"closing")
    link.client_closes() if closes == "client" else link.node_closes()
    network.wait()
    if closes == "client":
        assert (network.node.received_bytes, network.node.lost_because) == (b"last words", "closed")
    else:
        assert (client.received_bytes, client.lost_because) == (b"closing", "closed by the node")


def test_nothing_follows_a_torn_frame_even_if_the_node_dies_as_well() -> None:
    for seed in range(30):
        network, client = NetworkUnderTest(seed, delay_us=(1_000, 1_001)), RecordingEnd()
        link = network.dial(client)
        link.cut(half_open=False)
        link.down.send(b"0123456789")
        network.clock.run_until(network.clock.now_us + 1_500)
        network.client_network.node_died([link], silently=False)
        link.down.send(b"abcdefghij")
        network.wait()
        assert b"0123456789abcdefghij".startswith(client.received_bytes)
