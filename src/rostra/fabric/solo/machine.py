"""The fabric of a node that stands alone."""

from __future__ import annotations

from typing import assert_never

import msgspec

from rostra.errors import (
    NotAReplica,
    PartitionDamaged,
    QuorumAtRisk,
    RostraError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from rostra.fabric.api import (
    Accepted,
    AcksAll,
    Append,
    AskHeld,
    Blocked,
    Broke,
    Committed,
    Confirm,
    Confirmed,
    Delivers,
    Describe,
    Described,
    Drop,
    Echo,
    FabricEffect,
    FabricInput,
    GiveAway,
    Guarantees,
    HandedOver,
    HandOver,
    HeldByAll,
    Note,
    Now,
    Open,
    Order,
    PassOn,
    PeerLost,
    PeerMet,
    PeerReceived,
    Persist,
    Propose,
    ProposeDrop,
    ProposeSettings,
    ProposeStart,
    ProposeTopic,
    Read,
    ReadDone,
    ReadFailed,
    Ready,
    Recovered,
    Refused,
    RemoveMember,
    Serving,
    Settled,
    Split,
    Started,
    Survives,
    Sync,
    Synced,
    TimerFired,
    TopicChanged,
    TopicClosed,
    TopicOpened,
    TopicSpec,
    Trim,
    WriteFailed,
)
from rostra.model.batch import stamp
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition
from rostra.model.decode import iterate
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.safeguards import ALL_ON, Safeguard, Without

GUARANTEES = Guarantees(
    fabric="solo",
    order=Order.PARTITION,
    acks_all=AcksAll.OWNER,
    delivers=Delivers.OWNER,
    split=Split.ALONE,
    survives=Survives.RESTART,
    groups_span_nodes=False,
    exactly_once_sink=False,
)

META = Partition(TopicId(0), PartitionIndex(0))
"""The catalogue is a log like any other: topics made and dropped, in order."""
META_SEGMENT_BYTES = 1 << 26
EPOCH = "solo/epoch"
REPLAY_BYTES = 1 << 20
NOBODY = NodeId(0)


class Made(msgspec.Struct, frozen=True, array_like=True, tag="made"):
    spec: TopicSpec
    segment_bytes: int


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    topic: TopicId


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    topic: TopicId
    settings: bytes
    segment_bytes: int


Entry = Made | Gone | Changed
_entries = msgspec.msgpack.Decoder(Entry)


class Held:
    """One partition's log: what the fabric must know of it."""

    __slots__ = ("damaged_at", "end", "first", "generation", "synced")

    def __init__(self, first: int, end: int, damaged_at: int | None) -> None:
        self.first = first
        self.end = end
        self.synced = end
        self.generation = 0
        self.damaged_at = damaged_at


class Solo:
    """Owner of every partition. Its owner epoch rises with every start, so no two starts write under the same one."""

    guarantees = GUARANTEES

    def __init__(
        self,
        without: Without = ALL_ON,
        *,
        node: NodeId = NOBODY,
        address: str = "",
        peer_address: str = "",
    ) -> None:
        self._node = node
        self._address = address
        self._peer_address = peer_address
        self._sync_first = Safeguard.SYNC_BEFORE_ACK not in without
        self._epoch = 0
        self._held: dict[Partition, Held] = {}
        self._topics: dict[TopicId, Made] = {}
        self._names: dict[str, TopicId] = {}
        self._found: dict[Partition, Recovered] = {}
        self._pending: list[tuple[int, int | None, Entry]] = []
        self._replayed = False

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        match given:
            case Propose():
                return self._propose(given)
            case Synced():
                return self._synced(given)
            case Started():
                return self._started(given)
            case ReadDone():
                return self._replay(given)
            case ReadFailed() if given.partition != META:
                return []
            case ReadFailed():
                return [*self._replayed_all(), Note("error", "catalogue damaged", {"error": str(given.error)})]
            case ProposeTopic():
                return self._propose_topic(now, given)
            case ProposeDrop():
                return self._propose_drop(now, given)
            case ProposeSettings():
                return self._propose_settings(now, given)
            case AskHeld():
                held = self._held.get(given.partition)
                return [HeldByAll(given.partition, held.synced)] if held is not None else []
            case Confirm():
                return [Confirmed(given.token)]
            case ProposeStart():
                self._held[given.partition].first = given.first
                return [Trim(given.partition, given.first)]
            case WriteFailed():
                return self._write_failed(given)
            case Broke():
                return []
            case HandOver():
                return [HandedOver()]
            case Describe():
                return [Described(given.token, self._status())]
            case RemoveMember():
                # Nobody would be left to agree on anything.
                return [Refused(given.token, QuorumAtRisk(given.node, 0, 1))]
            case GiveAway():
                made = self._topics.get(given.partition.topic)
                error = NotAReplica(given.peer, made.spec.name if made else "", given.partition.index)
                return [Refused(given.token, error)] if given.token else []
            case PeerReceived() | PeerMet() | PeerLost() | TimerFired() | Echo() | PassOn() | Settled():
                raise AssertionError(f"a node alone has no peers and no timers: {given}")
            case _:
                assert_never(given)

    # --- starting ---

    def _started(self, given: Started) -> list[FabricEffect]:
        self._epoch = int.from_bytes(given.hard.get(EPOCH, b""), "little") + 1
        self._found = {found.partition: found for found in given.partitions}
        meta = self._found.pop(META, None)
        effects: list[FabricEffect] = []
        if meta is None:
            self._held[META] = Held(0, 0, None)
            effects.append(Open(META, META_SEGMENT_BYTES))
            effects += self._replayed_all()
        else:
            self._held[META] = Held(meta.first, meta.end, meta.damaged_at)
            effects.append(self._replay_from(meta.first))
        # Nothing is written under this epoch before it is durable: else two starts could share it.
        return [Persist(EPOCH, self._epoch.to_bytes(8, "little"), tuple(effects))]

    def _replay_from(self, offset: int) -> Read:
        return Read(0, META, offset, self._held[META].end, REPLAY_BYTES)

    def _replay(self, given: ReadDone) -> list[FabricEffect]:
        for batch in iterate(given.batches):
            for value in batch.values():
                assert value is not None
                self._remember(_entries.decode(value))
        if given.batches and given.next < self._held[META].end:
            return [self._replay_from(given.next)]
        return self._replayed_all()

    def _remember(self, entry: Entry) -> None:
        match entry:
            case Made(spec=spec):
                self._topics[spec.topic] = entry
                self._names[spec.name] = spec.topic
            case Gone(topic=topic):
                made = self._topics.pop(topic, None)
                if made is not None and self._names.get(made.spec.name) == topic:
                    del self._names[made.spec.name]
            case Changed(topic=topic):
                made = self._topics.get(topic)
                if made is not None:
                    spec = msgspec.structs.replace(made.spec, settings=entry.settings)
                    self._topics[topic] = Made(spec, entry.segment_bytes)
            case _:
                assert_never(entry)

    def _replayed_all(self) -> list[FabricEffect]:
        effects: list[FabricEffect] = []
        for made in self._topics.values():
            effects += self._open_topic(None, made)
        damaged = self._held[META].damaged_at is not None
        for partition in sorted(self._found):
            # A crash may leave the log of a dropped topic behind. A damaged catalogue cannot tell which those are.
            if not damaged:
                note = Note("warning", "log without topic dropped", {"partition": str(partition)})
                effects += [note, Drop(partition)]
        self._found.clear()
        self._replayed = True
        return [*effects, Ready()]

    def _open_topic(self, token: int | None, made: Made) -> list[FabricEffect]:
        effects: list[FabricEffect] = [TopicOpened(token, made.spec)]
        for index in range(made.spec.partitions):
            partition = Partition(made.spec.topic, PartitionIndex(index))
            found = self._found.pop(partition, None)
            if found is None:
                held = Held(0, 0, None)
                effects.append(Open(partition, made.segment_bytes))
            else:
                held = Held(found.first, found.end, found.damaged_at)
            self._held[partition] = held
            effects.append(Serving(partition, self._epoch, True, held.first, held.end, held.synced))
            if held.damaged_at is not None:
                effects.append(Blocked(partition, PartitionDamaged(made.spec.name, index, held.damaged_at)))
        return effects

    # --- records ---

    def _propose(self, given: Propose) -> list[FabricEffect]:
        partition = given.partition
        held = self._held.get(partition)
        if held is None:
            return [Refused(given.token, UnknownPartition("", partition.index))]
        if held.damaged_at is not None:
            return [Refused(given.token, self._damage(partition, held.damaged_at))]
        base = held.end
        last = self._place(partition, held, given.batch, given.owner_flags)
        effects: list[FabricEffect] = [
            Append(partition, given.batch),
            Accepted(given.token, partition, base, last),
            Sync(partition),
        ]
        return effects if self._sync_first else [*effects, Committed(partition, held.end)]

    def _place(self, partition: Partition, held: Held, batch: bytearray, owner_flags: int) -> int:
        """At the end of the log; returns the last offset of the batch."""
        last = stamp(batch, partition=partition, base_offset=held.end, owner_epoch=self._epoch, owner_flags=owner_flags)
        held.end = last + 1
        return last

    def _synced(self, given: Synced) -> list[FabricEffect]:
        held = self._held.get(given.partition)
        if held is None or given.generation != held.generation or given.offset <= held.synced:
            return []
        held.synced = given.offset
        if given.partition == META:
            return self._apply(given.offset)
        return [Committed(given.partition, given.offset)]

    def _write_failed(self, given: WriteFailed) -> list[FabricEffect]:
        held = self._held.get(given.partition)
        if held is None:
            # The topic was dropped while the write was on its way.
            return []
        held.end = given.offset
        held.generation = given.generation
        if given.partition != META:
            return []
        failed = [(token, entry) for offset, token, entry in self._pending if offset >= given.offset]
        self._pending = [pending for pending in self._pending if pending[0] < given.offset]
        return [Refused(token, given.error) for token, _ in failed if token is not None]

    def _damage(self, partition: Partition, offset: int) -> RostraError:
        made = self._topics.get(partition.topic)
        return PartitionDamaged(made.spec.name if made else "catalogue", partition.index, offset)

    def _status(self) -> ClusterState:
        """The node that is asked is the only one."""
        node = self._node
        partitions = tuple(
            PlacedPartition(
                made.spec.name,
                index,
                node,
                self._epoch,
                held.first,
                held.end,
                held.synced,
                (CopyState(node, held.synced, True),),
            )
            for made in self._topics.values()
            for index in range(made.spec.partitions)
            if (held := self._held.get(Partition(made.spec.topic, PartitionIndex(index)))) is not None
        )
        count = len(partitions)
        nodes = (NodeState(node, self._address, self._peer_address, True, True, False, count, count),)
        return ClusterState("solo", nodes, partitions, (node,))

    # --- the catalogue ---

    def _propose_topic(self, now: Now, given: ProposeTopic) -> list[FabricEffect]:
        name = given.spec.name
        making = (entry.spec.name for _, _, entry in self._pending if isinstance(entry, Made))
        if name in self._names or name in making:
            return [Refused(given.token, TopicExists(name))]
        return self._log_entry(now, given.token, Made(given.spec, given.segment_bytes))

    def _propose_drop(self, now: Now, given: ProposeDrop) -> list[FabricEffect]:
        if given.topic not in self._topics:
            return [Refused(given.token, UnknownTopic(str(given.topic)))]
        return self._log_entry(now, given.token, Gone(given.topic))

    def _propose_settings(self, now: Now, given: ProposeSettings) -> list[FabricEffect]:
        if given.topic not in self._topics:
            return [Refused(given.token, UnknownTopic(str(given.topic)))]
        return self._log_entry(now, given.token, Changed(given.topic, given.settings, given.segment_bytes))

    def _log_entry(self, now: Now, token: int, entry: Entry) -> list[FabricEffect]:
        held = self._held[META]
        if held.damaged_at is not None:
            return [Refused(token, self._damage(META, held.damaged_at))]
        batch = encode([msgspec.msgpack.encode(entry)], timestamp_us=now.wall_us, control=True)
        base = held.end
        self._place(META, held, batch, 0)
        self._pending.append((base, token, entry))
        return [Append(META, batch), Sync(META)]

    def _apply(self, offset: int) -> list[FabricEffect]:
        """Catalogue entries below `offset` are durable: now they take effect."""
        effects: list[FabricEffect] = []
        done = [pending for pending in self._pending if pending[0] < offset]
        self._pending = [pending for pending in self._pending if pending[0] >= offset]
        for _, token, entry in done:
            if isinstance(entry, Gone):
                effects += self._close_topic(token, entry.topic)
            self._remember(entry)
            if isinstance(entry, Made):
                effects += self._open_topic(token, entry)
            elif isinstance(entry, Changed):
                effects.append(self._changed(token, entry.topic))
        return effects

    def _changed(self, token: int | None, topic: TopicId) -> FabricEffect:
        made = self._topics.get(topic)
        if made is not None:
            return TopicChanged(token, made.spec)
        assert token is not None
        return Refused(token, UnknownTopic(str(topic)))

    def _close_topic(self, token: int | None, topic: TopicId) -> list[FabricEffect]:
        made = self._topics.get(topic)
        effects: list[FabricEffect] = [TopicClosed(token, topic)]
        for index in range(made.spec.partitions if made else 0):
            partition = Partition(topic, PartitionIndex(index))
            self._held.pop(partition, None)
            effects.append(Drop(partition))
        return effects
