"""The simulated network between nodes: messages are delayed, lost, duplicated, reordered or stopped by splits.

Theory of operation. Every message is encoded and decoded by the wire codec. The fault plan chooses one of two modes for
a seed. As streams, like the TCP links of real peers, messages of one node to another keep their order and none is lost;
a split holds them back, and if it lasts longer than `STREAM_BREAKS_US` the link breaks, its messages are lost and the
sender gets `PeerLost`. As datagrams, each message travels alone and may be lost, duplicated or reordered. A fabric must
work in both modes.

A link is up when it was dialled and the other process answered, as on sockets; what is sent before is dropped. A stream
leads to one incarnation of the receiver: when that process ends, the link is down until it was dialled again. After a
power cut nobody is told; the process that comes next resets the link as soon as something arrives on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from rostra.errors import PeerViolation
from rostra.fabric.api import Buffer
from rostra.fabric.registry import FABRICS, FabricKind
from rostra.model.ids import NodeId
from rostra.simulator.clock import MS_US, SECOND_US, Clock
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.history import History
from rostra.simulator.network.splits import NetworkSplit
from rostra.simulator.trace import Trace
from rostra.wire.frames import Dialect, Framed, encode

CONNECT_RETRY_US = 200 * MS_US
STREAM_BREAKS_US = SECOND_US
"""How long a split may hold a stream back before the link breaks."""
REPLAYED = 0.02
"""Share of datagrams of which a copy arrives late, where the plan has it."""
RETRANSMIT_US = 5 * MS_US
"""How long after a split ends a stream retransmits."""

FRAME_BYTES_MAX = 1 << 30


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

    __slots__ = (
        "address",
        "breaks",
        "held",
        "incarnation",
        "last_us",
        "pair",
        "receiver",
        "seed",
        "sender",
        "slow",
        "up",
    )

    def __init__(self, sender: SimulatedPeer, receiver: SimulatedPeer, *, slow: bool) -> None:
        self.pair = sender.id, receiver.id
        self.sender = sender
        self.receiver = receiver
        self.slow = slow
        self.last_us = 0
        self.address = ""
        """Where the sender dials the receiver; empty if it does not."""
        self.seed = False
        """Whether it was dialled by its address alone: then each answer tells the sender who is there."""
        self.up = False
        self.incarnation = 0
        """The incarnation of the receiver that answered."""
        self.breaks = 0
        """How often the link broke; messages sent before the last break never arrive."""
        self.held: list[tuple[bytes, int, int]] = []
        """Messages held back by a split, if this is a stream."""

    def close(self) -> None:
        self.up = False
        self.breaks += 1
        self.held.clear()


class PeerNetwork:
    """The links between nodes, made when they are first dialled, and the splits that are active."""

    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        plan: FaultPlan,
        fault_counts: FaultCounts,
        history: History,
        random: Random,
        kinds: Sequence[FabricKind] = (),
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._plan = plan
        self._fault_counts = fault_counts
        self._history = history
        self._random = random
        # Without a choice, all fabrics: their message kinds do not overlap.
        chosen = kinds or tuple(FABRICS.values())
        messages = [message for kind in chosen for message in kind.peer_kinds]
        self._dialect: Dialect[Framed] = Dialect(messages, payload_optional=True)
        self._claims = {message: found for kind in chosen for message, found in kind.claims.items()}
        self._hops = {message: found for kind in chosen for message, found in kind.hops.items()}
        self._low, high = plan.delay_us
        self._spread = high - self._low
        self._nodes: dict[NodeId, SimulatedPeer] = {}
        self._from: dict[NodeId, dict[NodeId, PeerWire]] = {}
        self._to: dict[NodeId, dict[NodeId, PeerWire]] = {}
        """The same wires, by receiver and sender."""
        self._slow: set[tuple[NodeId, NodeId]] = set()
        self._addresses: dict[str, NodeId] = {}
        self._encoded: tuple[Framed | None, bytes] = (None, b"")
        """The last message without payload, encoded: nodes often send the same one to all peers."""
        self.fault_free = True
        self.splits: list[NetworkSplit] = []

    def add(self, nodes: Sequence[SimulatedPeer]) -> None:
        for node in nodes:
            self._nodes[node.id] = node
            self._addresses[node.peer_address] = node.id
            self._from[node.id], self._to[node.id] = {}, {}
        ids = list(self._nodes)
        while len(self._slow) < min(self._plan.slow_links, len(ids) * (len(ids) - 1)):
            one, other = self._random.sample(ids, 2)
            self._slow.add((one, other))

    def _wire(self, sender: SimulatedPeer, receiver: NodeId) -> PeerWire:
        wire = self._from[sender.id].get(receiver)
        if wire is None:
            slow = (sender.id, receiver) in self._slow
            wire = PeerWire(sender, self._nodes[receiver], slow=slow)
            self._from[sender.id][receiver] = self._to[receiver][sender.id] = wire
        return wire

    # --- links -------------------------------------------------------------------------------------------

    def connect(self, node: SimulatedPeer, peer: NodeId, address: str) -> None:
        """Dials the node at an address until it answers, and again whenever the link to it breaks."""
        if peer:
            if peer not in self._nodes:
                return
            wire = self._wire(node, peer)
            known = wire.address == address
            wire.address, wire.seed = address, False
            if known:
                return
            if wire.up:
                # The link by which the peer was found goes on.
                return
        self._dial(node, node.incarnation, peer, address)

    def disconnect(self, node: SimulatedPeer, peer: NodeId) -> None:
        wire = self._from[node.id].get(peer)
        if wire is not None:
            wire.address = ""
            wire.close()

    def _dial(self, node: SimulatedPeer, incarnation: int, peer: NodeId, address: str) -> None:
        if node.incarnation != incarnation or (peer and self._wire(node, peer).address != address):
            return
        found = self._addresses.get(address)
        if found is not None and peer in (0, found) and self._nodes[found].up and self._is_open_between(node.id, found):
            answers = self._nodes[found].incarnation
            self._clock.after(self._delay_us(), self._answered, node, incarnation, peer, found, answers, address)
        else:
            self._clock.after(CONNECT_RETRY_US, self._dial, node, incarnation, peer, address)

    def _answered(
        self, node: SimulatedPeer, incarnation: int, peer: NodeId, found: NodeId, answers: int, address: str
    ) -> None:
        if node.incarnation != incarnation:
            return
        if self._nodes[found].incarnation != answers:
            self._dial(node, incarnation, peer, address)
            return
        if found != node.id:
            wire = self._wire(node, found)
            if peer and wire.address != address:
                return
            if not peer and not wire.address:
                wire.address, wire.seed = address, True
            if not wire.up:
                wire.up, wire.incarnation = True, answers
            peer = NodeId(0) if wire.seed else peer
        if not peer:
            node.peer_connected(found, address)

    def node_ended(self, node: NodeId, *, silently: bool) -> None:
        """Ends the links of a node whose process has ended; without notice (`silently`) after a power cut."""
        for wire in self._from[node].values():
            wire.address = ""
            wire.close()
        for wire in self._to[node].values():
            wire.held.clear()
            if not silently and wire.up and self._plan.streams:
                wire.close()
                self._clock.after(self._delay_us(), self._lost, wire, wire.breaks, wire.sender.incarnation)

    def _lost(self, wire: PeerWire, breaks: int, incarnation: int) -> None:
        """Tells the sender that its link is lost, and dials again."""
        sender, receiver = wire.pair
        if wire.breaks != breaks or wire.up or wire.sender.incarnation != incarnation:
            return
        if self._is_blocked(receiver, sender):
            # Nothing from there arrives: the sender notices by itself.
            self._clock.after(STREAM_BREAKS_US, self._give_up, wire, incarnation)
        else:
            wire.sender.peer_lost(receiver)
        if wire.address:
            self._dial(wire.sender, incarnation, receiver, wire.address)

    def _give_up(self, wire: PeerWire, incarnation: int) -> None:
        if wire.sender.incarnation == incarnation:
            wire.sender.peer_lost(wire.receiver.id)

    # --- messages ----------------------------------------------------------------------------------------

    def send(self, sender: SimulatedPeer, receiver: NodeId, message: Framed, payload: tuple[Buffer, ...]) -> None:
        own = sender.id
        if (claims := self._claims.get(type(message))) is not None:
            for partition, epoch in claims(message):
                self._history.saw_leader(partition, epoch, own)
        elif (hops := self._hops.get(type(message))) is not None:
            self._history.record_queue_size("hops of a message", hops(message), len(self._nodes))
        wire = self._from[own].get(receiver)
        if wire is None or not wire.up:
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
            clock.at(arrival_us, self._arrive, wire, frame, wire.incarnation, wire.breaks)
            return
        if not self.fault_free:
            if plan.peer_loss and random() < plan.peer_loss:
                self._fault_counts.add(Fault.PEER_LOST)
                return
            if plan.peer_duplicate and random() < plan.peer_duplicate:
                self._fault_counts.add(Fault.PEER_DUPLICATED)
                again_us = arrival_us + int(random() * 100 * MS_US)
                clock.at(again_us, self._arrive, wire, frame, 0, 0)
            if plan.replay_us and random() < REPLAYED:
                self._fault_counts.add(Fault.PEER_REPLAYED)
                late_us = arrival_us + int(random() * plan.replay_us)
                clock.at(late_us, self._arrive, wire, frame, 0, 0)
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
        if self._plan.streams and breaks != wire.breaks:
            return
        if not node.up:
            self._fault_counts.add(Fault.DROPPED)
            return
        if self._plan.streams and incarnation != node.incarnation:
            # The power of its host was cut: the process that runs there now knows nothing of this link.
            wire.close()
            self._lost(wire, wire.breaks, wire.sender.incarnation)
            return
        self._trace.note("mesh", "arrives", frame, wire.pair)
        try:
            message, payload = self._dialect.read(frame, FRAME_BYTES_MAX)
        except PeerViolation as violation:
            self._history.exceptions.append(f"node {node.id} reading from {wire.pair[0]}: {violation}")
            return
        node.peer_received(wire.pair[0], message, payload)

    def _delay_us(self) -> int:
        return self._low + int(self._random.random() * self._spread)

    # --- splits ------------------------------------------------------------------------------------------

    def _is_blocked(self, sender: NodeId, receiver: NodeId) -> bool:
        return any(split.blocks(self._clock.now_us, sender, receiver) for split in self.splits)

    def _is_open_between(self, one: NodeId, other: NodeId) -> bool:
        return not self.splits or not (self._is_blocked(one, other) or self._is_blocked(other, one))

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
        wire.close()
        self._fault_counts.add(Fault.PEER_BROKEN)
        if wire.sender.up:
            wire.sender.peer_lost(wire.receiver.id)
            if wire.address:
                self._dial(wire.sender, wire.sender.incarnation, wire.receiver.id, wire.address)
