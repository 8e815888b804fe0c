"""The simulated network between nodes: messages are delayed, lost, duplicated, reordered or stopped by splits.

Theory of operation. Every message is encoded and decoded by the wire codec. The fault plan chooses one of two modes for
a seed. As streams, like the TCP links of real peers, messages of one node to another keep their order and none is lost;
a split holds them back, and if it lasts longer than `STREAM_BREAKS_US` the link breaks, its messages are lost and the
sender gets `PeerLost`. As datagrams, each message travels alone and may be lost, duplicated or reordered. A fabric must
work in both modes.

A message in flight belongs to the receiver's incarnation: a stream to a process that crashed since delivers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from rostra.errors import PeerViolation
from rostra.fabric.api import Buffer
from rostra.fabric.consensus.messages import InstallGroupSnapshot, TimeoutNow
from rostra.fabric.flood.messages import Barrier, Records
from rostra.fabric.links.messages import NodeHeartbeat
from rostra.fabric.registry import FABRICS
from rostra.fabric.replication.messages import AppendEntries
from rostra.model.ids import NodeId
from rostra.simulator.clock import MS_US, SECOND_US, Clock
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.history import History
from rostra.simulator.network.splits import NetworkSplit
from rostra.simulator.trace import Trace
from rostra.wire.frames import Dialect, Framed, encode

OBSERVED: frozenset[type[object]] = frozenset(
    {NodeHeartbeat, AppendEntries, InstallGroupSnapshot, TimeoutNow, Records, Barrier}
)
CONNECT_RETRY_US = 200 * MS_US
STREAM_BREAKS_US = SECOND_US
"""How long a split may hold a stream back before the link breaks."""
RETRANSMIT_US = 5 * MS_US
"""How long after a split ends a stream retransmits."""

FRAME_BYTES_MAX = 1 << 30
FROM_PEERS: Dialect[Framed] = Dialect(
    [kind for fabric in FABRICS.values() for kind in fabric.peer_kinds], payload_optional=True
)
"""The message kinds of all fabrics, which do not overlap."""


class SimulatedPeer(Protocol):
    """A node, as the other nodes see it."""

    id: NodeId
    peer_address: str
    incarnation: int
    up: bool

    @property
    def host_up(self) -> bool: ...

    def peer_received(self, sender: NodeId, message: object, payload: bytearray | None) -> None: ...
    def peer_connected(self, peer: NodeId, address: str) -> None: ...
    def peer_lost(self, peer: NodeId) -> None: ...


class PeerWire:
    """The directed link from one node to another."""

    __slots__ = ("breaks", "held", "last_us", "pair", "receiver", "slow")

    def __init__(self, pair: tuple[NodeId, NodeId], receiver: SimulatedPeer) -> None:
        self.pair = pair
        self.receiver = receiver
        self.last_us = 0
        self.slow = False
        self.breaks = 0
        """How often the link broke; messages sent before the last break never arrive."""
        self.held: list[tuple[bytes, int, int]] = []
        """Messages held back by a split, if this is a stream."""


class PeerNetwork:
    """All links between nodes, and the splits that are active."""

    def __init__(
        self, clock: Clock, trace: Trace, plan: FaultPlan, fault_counts: FaultCounts, history: History, random: Random
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._plan = plan
        self._fault_counts = fault_counts
        self._history = history
        self._random = random
        self._low, high = plan.delay_us
        self._spread = high - self._low
        self._nodes: dict[NodeId, SimulatedPeer] = {}
        self._wires: dict[tuple[NodeId, NodeId], PeerWire] = {}
        self._addresses: dict[str, NodeId] = {}
        self._encoded: tuple[Framed | None, bytes] = (None, b"")
        """The last message without payload, encoded: nodes often send the same one to all peers."""
        self.fault_free = True
        self.splits: list[NetworkSplit] = []

    def add(self, nodes: Sequence[SimulatedPeer]) -> None:
        for node in nodes:
            self._nodes[node.id] = node
            self._addresses[node.peer_address] = node.id
        pairs = [(one, other) for one in self._nodes for other in self._nodes if one != other]
        self._wires = {pair: PeerWire(pair, self._nodes[pair[1]]) for pair in pairs}
        for pair in self._random.sample(pairs, min(self._plan.slow_links, len(pairs))):
            self._wires[pair].slow = True

    # --- links -------------------------------------------------------------------------------------------

    def connect(self, node: SimulatedPeer, peer: NodeId, address: str) -> None:
        """Resolves the node id behind an address, retrying until it answers; links to known peers need no set-up."""
        if not peer:
            self._try_connect(node, node.incarnation, address)

    def _try_connect(self, node: SimulatedPeer, incarnation: int, address: str) -> None:
        if node.incarnation != incarnation:
            return
        found = self._addresses.get(address)
        if found is not None and self._nodes[found].up and not self._is_blocked(node.id, found):
            self._clock.after(self._delay_us(), self._connected, node, incarnation, found, address)
        else:
            self._clock.after(CONNECT_RETRY_US, self._try_connect, node, incarnation, address)

    def _connected(self, node: SimulatedPeer, incarnation: int, found: NodeId, address: str) -> None:
        if node.incarnation == incarnation:
            node.peer_connected(found, address)

    def node_ended(self, node: NodeId, *, silently: bool) -> None:
        """Ends the links of a node whose process has ended; without notice (`silently`) after a power cut."""
        for (one, other), wire in self._wires.items():
            if node == other:
                wire.held.clear()
                if not silently and self._plan.streams:
                    self._clock.after(self._delay_us(), self._report_lost, one, node)

    def _report_lost(self, node: NodeId, peer: NodeId) -> None:
        if self._nodes[node].up and not self._is_blocked(peer, node):
            self._nodes[node].peer_lost(peer)

    # --- messages ----------------------------------------------------------------------------------------

    def send(self, sender: SimulatedPeer, receiver: NodeId, message: Framed, payload: tuple[Buffer, ...]) -> None:
        own = sender.id
        if type(message) in OBSERVED:
            self._observe(own, message)
        wire = self._wires.get((own, receiver))
        if wire is None:
            return
        if payload:
            frame = b"".join((encode(message, sum(map(len, payload))), *payload))
        elif self._encoded[0] is message:
            frame = self._encoded[1]
        else:
            frame = encode(message)
            self._encoded = message, frame
        plan, clock, random = self._plan, self._clock, self._random.random
        arrival_us = clock.now_us + self._low + int(random() * self._spread)
        if not self.fault_free:
            if wire.slow:
                arrival_us += plan.slow_link_us
                self._fault_counts.add(Fault.PEER_SLOW)
            if plan.spike and random() < plan.spike:
                arrival_us += int(random() * plan.spike_us)
                self._fault_counts.add(Fault.DELAYED)
        if plan.streams:
            if arrival_us <= wire.last_us:
                arrival_us = wire.last_us + 1
            wire.last_us = arrival_us
            clock.at(arrival_us, self._arrive, wire, frame, wire.receiver.incarnation, wire.breaks)
            return
        if not self.fault_free:
            if plan.peer_loss and random() < plan.peer_loss:
                self._fault_counts.add(Fault.PEER_LOST)
                return
            if plan.peer_duplicate and random() < plan.peer_duplicate:
                self._fault_counts.add(Fault.PEER_DUPLICATED)
                again_us = arrival_us + int(random() * 100 * MS_US)
                clock.at(again_us, self._arrive, wire, frame, 0, 0)
            if plan.peer_reorder and random() < plan.peer_reorder:
                arrival_us += int(random() * 60 * MS_US)
        if arrival_us < wire.last_us:
            self._fault_counts.add(Fault.PEER_REORDERED)
        else:
            wire.last_us = arrival_us
        clock.at(arrival_us, self._arrive, wire, frame, 0, 0)

    def _arrive(self, wire: PeerWire, frame: bytes, incarnation: int, breaks: int) -> None:
        if self.splits and self._is_blocked(*wire.pair):
            self._hold(wire, frame, incarnation, breaks)
            return
        node = wire.receiver
        if self._plan.streams and (breaks != wire.breaks or incarnation != node.incarnation):
            return
        if not node.up:
            self._fault_counts.add(Fault.DROPPED)
            return
        self._trace.note("mesh", "arrives", frame, wire.pair)
        try:
            message, payload = FROM_PEERS.read(frame, FRAME_BYTES_MAX)
        except PeerViolation as violation:
            self._history.exceptions.append(f"node {node.id} reading from {wire.pair[0]}: {violation}")
            return
        node.peer_received(wire.pair[0], message, payload)

    def _delay_us(self) -> int:
        return self._low + int(self._random.random() * self._spread)

    def _observe(self, sender: NodeId, message: Framed) -> None:
        """Records who acts as leader in which term, and the hops of flooded messages."""
        match message:
            case NodeHeartbeat():
                for heartbeat in message.partitions:
                    self._history.saw_leader(heartbeat.partition, heartbeat.epoch, sender)
            case AppendEntries() | InstallGroupSnapshot() | TimeoutNow():
                self._history.saw_leader(message.partition, message.epoch, sender)
            case Records() | Barrier():
                self._history.record_queue_size("hops of a message", message.hops, len(self._nodes))
            case _:
                pass

    # --- splits ------------------------------------------------------------------------------------------

    def _is_blocked(self, sender: NodeId, receiver: NodeId) -> bool:
        return any(split.blocks(self._clock.now_us, sender, receiver) for split in self.splits)

    def _hold(self, wire: PeerWire, frame: bytes, incarnation: int, breaks: int) -> None:
        for split in self.splits:
            if split.blocks(self._clock.now_us, *wire.pair):
                self._fault_counts.add(split.counts_as)
        if not self._plan.streams:
            return
        if not wire.held:
            self._clock.after(STREAM_BREAKS_US, self._break, wire, wire.breaks)
            self._retry_later(wire)
        wire.held.append((frame, incarnation, breaks))

    def _retry_later(self, wire: PeerWire) -> None:
        now_us = self._clock.now_us
        opens_us = max(split.opens_us(now_us) for split in self.splits if split.blocks(now_us, *wire.pair))
        self._clock.at(opens_us + RETRANSMIT_US, self._retry, wire)

    def _retry(self, wire: PeerWire) -> None:
        """Retransmits the held messages of a stream, once no split stops them."""
        if not wire.held:
            return
        if self._is_blocked(*wire.pair):
            self._retry_later(wire)
            return
        held, wire.held = wire.held, []
        for frame, incarnation, breaks in held:
            self._arrive(wire, frame, incarnation, breaks)

    def _break(self, wire: PeerWire, breaks: int) -> None:
        if wire.breaks != breaks or not wire.held:
            return
        wire.breaks += 1
        wire.held.clear()
        self._fault_counts.add(Fault.PEER_BROKEN)
        sender, receiver = wire.pair
        if self._nodes[sender].up:
            self._nodes[sender].peer_lost(receiver)
