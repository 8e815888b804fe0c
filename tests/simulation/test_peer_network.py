"""The simulated network between nodes: streams and datagrams, slow links, and splits of every shape."""

from __future__ import annotations

import msgspec
import pytest

from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.consensus.messages import TimeoutNow
from rostra.fabric.links.messages import NodeHeartbeat
from rostra.fabric.replication.messages import AppendEntries
from rostra.model.encode import encode
from rostra.model.ids import NodeId
from rostra.simulator.clock import MS_US, SECOND_US, Clock, random_for
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.history import History
from rostra.simulator.network.peer_network import PeerNetwork
from rostra.simulator.network.splits import BLIP_US, NetworkSplit, draw_blocked_paths
from rostra.simulator.trace import Trace

NODES = [NodeId(number) for number in range(1, 6)]
ALL_PATHS = frozenset((one, other) for one in NODES for other in NODES if one != other)


class RecordingPeer:
    """A node that records what it receives."""

    def __init__(self, node: NodeId) -> None:
        self.id = node
        self.peer_address = f"node{node}:7401"
        self.incarnation = 1
        self.up = self.host_up = True
        self.received: list[tuple[NodeId, object, bytearray | None]] = []
        self.met: list[NodeId] = []
        self.lost: list[NodeId] = []

    def peer_received(self, sender: NodeId, message: object, payload: bytearray | None) -> None:
        self.received.append((sender, message, payload))

    def peer_connected(self, peer: NodeId, address: str) -> None:
        self.met.append(peer)

    def peer_lost(self, peer: NodeId) -> None:
        self.lost.append(peer)

    def boots(self) -> list[int]:
        return [message.boot for _, message, _ in self.received if isinstance(message, NodeHeartbeat)]


class PeersUnderTest:
    def __init__(self, **changed: object) -> None:
        self.clock = Clock()
        self.fault_counts = FaultCounts()
        self.history = History()
        plan = msgspec.structs.replace(FaultPlan.none(), delay_us=(100, 2_000), **changed)
        self.peer_network = PeerNetwork(
            self.clock, Trace(self.clock), plan, self.fault_counts, self.history, random_for(1, "mesh")
        )
        self.ends = [RecordingPeer(node) for node in NODES]
        self.peer_network.add(self.ends)
        for one in self.ends:
            for other in self.ends:
                if one is not other:
                    self.peer_network.connect(one, other.id, other.peer_address)
        self.wait()
        self.peer_network.fault_free = False

    def send(self, count: int = 1, first: int = 1) -> None:
        """Sends numbered messages from the first node to the second."""
        for number in range(first, first + count):
            self.peer_network.send(self.ends[0], NODES[1], NodeHeartbeat(number), ())

    def wait(self, duration_us: int = SECOND_US) -> None:
        self.clock.run_until(self.clock.now_us + duration_us)

    def split(self, duration_us: int, *, flaps: bool = False) -> None:
        now_us = self.clock.now_us
        self.peer_network.splits.append(
            NetworkSplit(Fault.HALVES, ALL_PATHS, now_us, now_us + duration_us, flaps=flaps)
        )


def test_a_message_and_its_batches_arrive_as_they_were_sent() -> None:
    nodes = PeersUnderTest()
    batch = encode([b"value"], timestamp_us=1)
    sent = AppendEntries(METADATA_PARTITION, 3, 5, 2, 4, 0)
    nodes.peer_network.send(nodes.ends[0], NODES[1], sent, (batch, batch))
    nodes.peer_network.send(nodes.ends[0], NODES[1], sent, ())
    nodes.wait()
    assert nodes.ends[1].received == [(NODES[0], sent, batch + batch), (NODES[0], sent, None)]


def test_a_stream_keeps_order_and_loses_nothing() -> None:
    nodes = PeersUnderTest(streams=True, spike=0.3, spike_us=50_000)
    nodes.send(300)
    nodes.wait()
    assert nodes.ends[1].boots() == list(range(1, 301))


def test_datagrams_are_lost_duplicated_and_reordered() -> None:
    nodes = PeersUnderTest(streams=False, peer_loss=0.1, peer_duplicate=0.1, peer_reorder=0.2)
    nodes.send(300)
    nodes.wait()
    boots = nodes.ends[1].boots()
    assert boots != sorted(boots)
    assert len(set(boots)) == 300 - nodes.fault_counts.counts[Fault.PEER_LOST] < 300
    assert len(boots) - len(set(boots)) == nodes.fault_counts.counts[Fault.PEER_DUPLICATED] > 0
    assert nodes.fault_counts.counts[Fault.PEER_REORDERED] > 0


def test_no_datagram_is_lost_while_faults_are_off() -> None:
    nodes = PeersUnderTest(streams=False, peer_loss=0.5, peer_duplicate=0.5, spike=0.5)
    nodes.peer_network.fault_free = True
    nodes.send(100)
    nodes.wait()
    assert len(nodes.ends[1].boots()) == 100


def test_slow_links_do_not_slow_down_the_others() -> None:
    nodes = PeersUnderTest(slow_links=3, slow_link_us=200 * MS_US)
    for one in nodes.ends:
        for other in nodes.ends:
            if one is not other:
                nodes.peer_network.send(one, other.id, NodeHeartbeat(1), ())
    nodes.wait(100 * MS_US)
    assert sum(len(end.received) for end in nodes.ends) == len(ALL_PATHS) - 3
    nodes.wait()
    assert sum(len(end.received) for end in nodes.ends) == len(ALL_PATHS)
    assert nodes.fault_counts.counts[Fault.PEER_SLOW] == 3


def test_a_short_split_loses_datagrams_but_only_delays_a_stream() -> None:
    for streams in (True, False):
        nodes = PeersUnderTest(streams=streams)
        nodes.split(BLIP_US, flaps=True)
        nodes.send(10)
        nodes.wait()
        assert nodes.ends[1].boots() == (list(range(1, 11)) if streams else [])
        assert nodes.fault_counts.counts[Fault.FLAP] >= 10
        assert nodes.ends[0].lost == []


def test_a_flapping_split_lets_messages_through_in_between() -> None:
    nodes = PeersUnderTest(streams=False)
    nodes.split(20 * BLIP_US, flaps=True)
    for number in range(1, 401):
        nodes.send(first=number)
        nodes.wait(2 * MS_US)
    nodes.wait()
    assert 100 < len(nodes.ends[1].boots()) < 300


def test_a_long_split_breaks_a_stream_and_loses_its_messages() -> None:
    nodes = PeersUnderTest(streams=True)
    nodes.split(3 * SECOND_US)
    nodes.send(10)
    nodes.wait(2 * SECOND_US)
    assert (nodes.ends[0].lost, nodes.fault_counts.counts[Fault.PEER_BROKEN]) == ([NODES[1]], 1)
    nodes.wait(2 * SECOND_US)
    nodes.send(first=77)
    nodes.wait()
    assert nodes.ends[1].boots() == [77]


def test_messages_in_flight_to_a_crashed_process_never_arrive_on_a_stream() -> None:
    nodes = PeersUnderTest(streams=True)
    nodes.send(5)
    nodes.ends[1].incarnation += 1
    nodes.peer_network.node_ended(NODES[1], silently=False)
    nodes.wait()
    assert nodes.ends[1].received == []
    assert all(end.lost == [NODES[1]] for end in nodes.ends if end is not nodes.ends[1])


@pytest.mark.parametrize("streams", [True, False])
def test_what_is_sent_before_the_link_is_up_is_dropped(streams: bool) -> None:
    nodes = PeersUnderTest(streams=streams)
    nodes.peer_network.disconnect(nodes.ends[0], NODES[1])
    nodes.send(first=1)
    nodes.peer_network.connect(nodes.ends[0], NODES[1], nodes.ends[1].peer_address)
    nodes.send(first=2)
    nodes.wait()
    nodes.send(first=3)
    nodes.wait()
    assert nodes.ends[1].boots() == [3]


def test_a_link_to_a_process_that_ended_is_dialled_again() -> None:
    nodes = PeersUnderTest(streams=True)
    nodes.ends[1].incarnation += 1
    nodes.ends[1].up = False
    nodes.peer_network.node_ended(NODES[1], silently=False)
    nodes.wait()
    nodes.send(first=1)
    nodes.ends[1].up = True
    nodes.wait()
    nodes.send(first=2)
    nodes.wait()
    assert nodes.ends[1].boots() == [2]


def test_the_process_after_a_power_cut_resets_the_links_to_the_one_before() -> None:
    nodes = PeersUnderTest(streams=True)
    nodes.ends[1].incarnation += 1
    nodes.peer_network.node_ended(NODES[1], silently=True)
    nodes.send(first=1)
    nodes.wait()
    assert (nodes.ends[0].lost, nodes.ends[1].boots()) == ([NODES[1]], [])
    nodes.send(first=2)
    nodes.wait()
    assert nodes.ends[1].boots() == [2]


def test_a_power_cut_is_not_reported_to_peers() -> None:
    nodes = PeersUnderTest(streams=True)
    nodes.peer_network.node_ended(NODES[1], silently=True)
    nodes.wait()
    assert all(end.lost == [] for end in nodes.ends)


def test_an_address_is_resolved_as_soon_as_its_node_is_up() -> None:
    nodes = PeersUnderTest()
    nodes.ends[2].up = False
    nodes.peer_network.connect(nodes.ends[0], NodeId(0), "node3:7401")
    nodes.wait()
    assert nodes.ends[0].met == []
    nodes.ends[2].up = True
    nodes.wait()
    assert nodes.ends[0].met == [NODES[2]]


def test_messages_of_leaders_are_recorded() -> None:
    nodes = PeersUnderTest()
    nodes.peer_network.send(nodes.ends[0], NODES[1], TimeoutNow(METADATA_PARTITION, 4), ())
    nodes.peer_network.send(nodes.ends[2], NODES[1], AppendEntries(METADATA_PARTITION, 4, 0, 0, 0, 0), ())
    assert nodes.history.leaders == {(METADATA_PARTITION, 4): {NODES[0]: None, NODES[2]: None}}


@pytest.mark.parametrize("count", [3, 4, 5, 7])
@pytest.mark.parametrize("shape", [Fault.ONE_WAY, Fault.ISOLATED, Fault.HALVES, Fault.BRIDGE, Fault.RING])
def test_a_split_of_every_shape_blocks_some_links_and_leaves_others(shape: Fault, count: int) -> None:
    nodes = [NodeId(number) for number in range(1, count + 1)]
    ways = {(one, other) for one in nodes for other in nodes if one != other}
    for seed in range(20):
        shut = draw_blocked_paths(shape, nodes, random_for(seed, "split"))
        assert shut and shut < ways
        if shape is Fault.ISOLATED:
            assert len(shut) == 2 * (count - 1)
        if shape in (Fault.HALVES, Fault.BRIDGE):
            assert {(other, one) for one, other in shut} == shut
        if shape is Fault.BRIDGE:
            assert [node for node in nodes if all(node not in way for way in shut)]
        if shape is Fault.RING and count > 3:
            assert all(sum((one, other) not in shut for other in nodes if other != one) == 2 for one in nodes)
        if shape is Fault.ONE_WAY:
            assert all((other, one) not in shut for one, other in shut)
