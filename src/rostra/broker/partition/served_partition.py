"""One partition as this node serves it: offsets, derived state, parked replies, readers."""

from __future__ import annotations

from bisect import bisect_left, insort_right
from collections import deque
from operator import attrgetter

import msgspec

from rostra.broker.api import Conn, RecoveredLog
from rostra.broker.partition.compaction_mark import CompactBelow
from rostra.broker.partition.control_batch import read_checkpoint
from rostra.broker.partition.log_derived_state import EMPTY, LogDerivedState
from rostra.broker.partition.tail_cache import PartitionTail, TailCache
from rostra.errors import RostraError, Unavailable
from rostra.model.batch import BROKER_STATE, CHECKPOINT, HEADER_BYTES, PLACED, Buffer, base_offset
from rostra.model.decode import Batch
from rostra.model.ids import Partition, is_internal
from rostra.wire.messages import NodeMessage, Topic, TopicSettings

CONTROL_FLAGS = CHECKPOINT | BROKER_STATE
_last = attrgetter("last")


class ParkedReply(msgspec.Struct, frozen=True, gc=False):
    """A reply that waits until the records up to `last` are safe: `Published`, unless `message` is set."""

    last: int
    conn: Conn
    request: int
    base: int
    message: NodeMessage | None = None


class Reader:
    """One subscription to one partition."""

    __slots__ = ("conn", "credit", "next", "number", "partition", "reading", "ready", "request", "throttled")

    def __init__(self, conn: Conn, number: int, partition: ServedPartition, credit: int, request: int) -> None:
        self.conn = conn
        self.number = number
        self.request = request
        """Answered when the start offset is known."""
        self.partition = partition
        self.credit = credit
        self.next = 0
        self.ready = False
        """False until its start offset is known."""
        self.reading = False
        """A read from disk is in progress."""
        self.throttled = False
        """It waits for the catch-up throttle."""


class ServedPartition:
    """Follows the log: `appended` and `truncated` mirror every change of it."""

    __slots__ = (
        "_appended_meanwhile",
        "_derived_may_undo",
        "_epoch_noted",
        "_restored_at",
        "_sizes",
        "_tail_cache",
        "address",
        "blocked",
        "bytes",
        "commit",
        "commit_is_stale",
        "compacted",
        "covered",
        "derived",
        "end",
        "epoch",
        "epochs",
        "exclusive",
        "first",
        "generation",
        "has_log",
        "held_from",
        "history_depth",
        "internal",
        "live_us",
        "owner",
        "partition",
        "producers",
        "publishers",
        "readers",
        "rebuilding",
        "segment_bytes",
        "segment_bytes_max",
        "synced",
        "tail",
        "topic",
        "uncounted_bytes",
        "view",
        "waiting_commit",
        "waiting_cover",
        "waiting_sync",
    )

    def __init__(self, partition: Partition, topic: Topic, derived: LogDerivedState, tail_cache: TailCache) -> None:
        self.partition = partition
        self.topic = topic.name
        self.internal = is_internal(topic.name)
        """Written by the broker only."""
        self.exclusive = topic.settings.ownership == "exclusive"
        """Whether only the strongest publisher's records are delivered."""
        self.apply_settings(topic.settings)
        self.epoch = 0
        self.first = 0
        self.end = 0
        self.commit = 0
        self.synced = 0
        self.generation = 0
        self.bytes = 0
        self.segment_bytes = 0
        self.uncounted_bytes = 0
        """Appended since the last commit."""
        self.live_us = 0
        """Time of the last commit."""
        self.owner = False
        self.has_log = False
        """Whether this node has a copy of the log."""
        self.address = ""
        """The owner's client address, if it is another node and known."""
        self.blocked: RostraError | None = None
        self.commit_is_stale = False
        """After a start, until the fabric reports the commit offset: more may be committed than is known here."""
        self.derived = derived
        self._derived_may_undo = True
        """Whether the derived state holds undo information."""
        self.producers = derived.producers
        self.publishers = derived.publishers
        self.rebuilding: RostraError | None = None
        """Set while derived state is rebuilt from the log: the error that requests get meanwhile."""
        self._appended_meanwhile: list[Buffer] | None = None
        """Batches appended during a rebuild, as far as derived state needs them."""
        self._restored_at = 0
        """Offset of the checkpoint that the derived state was restored from: it cannot be undone below."""
        self.tail = PartitionTail()
        self._tail_cache = tail_cache
        # Lists, since most partitions have no parked replies: an empty deque takes half a kilobyte.
        self.waiting_commit: list[ParkedReply] = []
        self.waiting_sync: list[ParkedReply] = []
        self.waiting_cover: list[ParkedReply] = []
        self.covered = 0
        self.view: tuple[int, ...] = ()
        """The nodes that have everything below `covered`, where acks `all` means more than the commit."""
        self.epochs: list[tuple[int, int]] = []
        """(owner epoch, its first offset) for every epoch in the log, and the one before its start."""
        self._epoch_noted = -1
        """The last batch's epoch, if `epochs` was checked for it: consecutive batches mostly have the same."""
        self._sizes: list[tuple[int, int, int]] = []
        """(base, bytes, bytes of the segment) before each batch that may still be truncated."""
        self.compacted: CompactBelow | None = None
        """The last compaction decision that was carried out here."""
        self.readers: dict[tuple[Conn, int], Reader] = {}
        self.held_from: int | None = None
        """Nothing from this offset on is delivered yet: earlier records of a producer, in another partition, are
        missing."""

    @property
    def visible_end(self) -> int:
        """Readers may see records below this offset."""
        return self.commit if self.held_from is None else min(self.commit, self.held_from)

    def apply_settings(self, settings: TopicSettings) -> None:
        """Takes over the settings that can be altered."""
        self.segment_bytes_max = settings.segment_bytes
        self.history_depth = settings.history_depth

    def recovered(self, found: RecoveredLog) -> None:
        """Restores the state from what was on disk, all of it synced: the last checkpoint and the batches after it."""
        self.end = self.synced = found.log.end
        self.bytes, self.segment_bytes = found.bytes, found.segment_bytes
        self.epochs = [(row.epoch, row.offset) for row in found.log.epochs]
        self._epoch_noted = -1
        self._rebuild(found)

    def _rebuild(self, found: RecoveredLog) -> None:
        self._derived_may_undo = True
        self._restored_at = found.checkpoint_at
        self.derived.restore(read_checkpoint(found.checkpoint) if found.checkpoint is not None else EMPTY)
        # In their order, as they were appended: an entry may put a producer into its table, and so another out of it.
        controls = deque(found.controls)
        for stamp in found.stamps:
            while controls and controls[0][0] < stamp.base:
                self.derived.apply(*controls.popleft())
            if stamp.producer:
                self.derived.produced(stamp.base, stamp.last, stamp.producer, stamp.epoch, stamp.sequence, stamp.count)
        for base, batch in controls:
            self.derived.apply(base, batch)

    def rebuilt(self, found: RecoveredLog) -> None:
        """The log was looked at again; what was appended behind that is known here."""
        self._rebuild(found)
        since, self._appended_meanwhile = self._appended_meanwhile or [], None
        for batch in since:
            base, _, delta, owner_flags, producer, epoch, sequence = PLACED.unpack_from(batch, 8)
            if base < found.log.end:
                continue
            if producer:
                self.derived.produced(base, base + delta, producer, epoch, sequence, delta + 1)
            if owner_flags & BROKER_STATE:
                self.derived.apply(base, batch)
        self.derived.commit(self.commit)
        if self.blocked is self.rebuilding:
            self.blocked = None
        self.rebuilding = None

    def reset(self, first: int) -> None:
        """The log is empty and begins at `first`."""
        self.first = self.end = self.commit = self.synced = self.covered = first
        self.commit_is_stale = False
        self.bytes = self.segment_bytes = self.generation = 0
        self.epochs = []
        self._epoch_noted = -1
        self._sizes.clear()
        self.held_from = None
        self.derived.restore(EMPTY)
        self._restored_at = first
        self.compacted = None
        self.rebuilding = self._appended_meanwhile = None
        self._tail_cache.truncate(self.tail, 0)
        self.tail.next = first

    def appended(self, batch: bytearray) -> None:
        base, owner_epoch, delta, owner_flags, producer, epoch, sequence = PLACED.unpack_from(batch, 8)
        last = base + delta
        size = len(batch)
        self._sizes.append((base, self.bytes, self.segment_bytes))
        self.segment_bytes += size
        if owner_flags & CONTROL_FLAGS:
            self._apply_control(base, owner_flags, batch)
        self.bytes += size
        self.uncounted_bytes += size
        self.end = last + 1
        if owner_epoch != self._epoch_noted:
            self._note_epoch(owner_epoch, base)
        if producer:
            # Control batches have no producer; neither has a client without deduplication.
            self.derived.produced(base, last, producer, epoch, sequence, delta + 1)
            self._derived_may_undo = True
        if self._appended_meanwhile is not None:
            self._appended_meanwhile.append(batch if owner_flags & BROKER_STATE else batch[:HEADER_BYTES])
        self._tail_cache.add(self.tail, base, last, batch)

    def _note_epoch(self, epoch: int, base: int) -> None:
        if not self.epochs or self.epochs[-1][0] != epoch:
            self.epochs.append((epoch, base))
        self._epoch_noted = epoch

    def _apply_control(self, base: int, owner_flags: int, batch: bytearray) -> None:
        """Applies a batch of the broker's own."""
        self._derived_may_undo = True
        if owner_flags & BROKER_STATE:
            self.derived.apply(base, batch)
            return
        # A checkpoint does not count: one larger than a segment would otherwise start a segment with every batch.
        self.segment_bytes = 0
        if base == self.first:
            self._restore_checkpoint(batch)

    def _restore_checkpoint(self, checkpoint: bytearray) -> None:
        """This copy is filled from another's log start: the state before it is in its first batch."""
        (value,) = Batch(checkpoint).values()
        found = read_checkpoint(value or b"")
        self.derived.restore(found)
        self.epochs = [row for row in found.epochs if row[1] < self.first][-1:]
        self._epoch_noted = -1

    def truncated(self, offset: int, generation: int) -> list[ParkedReply]:
        """The log ends at `offset` now; returns the replies that waited for truncated records."""
        self.end = offset
        self.generation = generation
        self.synced = min(self.synced, offset)
        while self._sizes and self._sizes[-1][0] >= offset:
            _, self.bytes, self.segment_bytes = self._sizes.pop()
        while self.epochs and self.epochs[-1][1] >= offset:
            self.epochs.pop()
        self._epoch_noted = -1
        if offset < self._restored_at or self._appended_meanwhile is not None:
            self._start_rebuild(offset)
        else:
            self.derived.truncate(offset)
        self._tail_cache.truncate(self.tail, offset)
        cut: list[ParkedReply] = []
        for waiting in self._waiting():
            cut += [parked for parked in waiting if parked.last >= offset]
            kept = [parked for parked in waiting if parked.last < offset]
            waiting.clear()
            waiting.extend(kept)
        return cut

    def _start_rebuild(self, offset: int) -> None:
        """The checkpoint that the state was restored from is truncated: the log must be read again."""
        self._appended_meanwhile = [batch for batch in self._appended_meanwhile or () if base_offset(batch) < offset]
        if self.rebuilding is None:
            self.rebuilding = Unavailable(self.topic, self.partition.index, "its log was truncated and is read again")
        if self.blocked is None:
            self.blocked = self.rebuilding

    def committed(self, offset: int) -> list[ParkedReply]:
        """Records below `offset` are safe; returns the replies that waited for them."""
        self.commit = offset
        self.commit_is_stale = False
        sizes = self._sizes
        if sizes:
            if sizes[-1][0] < offset:
                sizes.clear()
            else:
                del sizes[: bisect_left(sizes, (offset,))]
        if self._derived_may_undo:
            self.derived.commit(offset)
            self._derived_may_undo = offset < self.end
        if not self.readers and self.tail.has_memo:
            # With readers the next `take` replaces it.
            self.tail.drop_memo()
        return _released(self.waiting_commit, offset) if self.waiting_commit else []

    def durable(self, offset: int) -> list[ParkedReply]:
        """The local copy below `offset` is synced; returns the replies that waited for that."""
        return _released(self.waiting_sync, offset)

    def cover(self, offset: int, view: tuple[int, ...]) -> list[ParkedReply]:
        """Every node of the view has everything below `offset`; returns the replies that waited for that."""
        self.covered, self.view = max(self.covered, offset), view
        return _released(self.waiting_cover, offset)

    def trimmed(self, first: int) -> None:
        self.first = first
        while len(self.epochs) > 1 and self.epochs[1][1] < first:
            del self.epochs[0]

    def park_in_order(self, parked: ParkedReply, waiting: list[ParkedReply]) -> None:
        """A repeated batch may wait for an earlier offset than the last parked reply: keeps them sorted."""
        insort_right(waiting, parked, key=_last)

    def close(self) -> list[ParkedReply]:
        """The partition was deleted; returns all parked replies."""
        self._tail_cache.truncate(self.tail, 0)
        return self.take_parked()

    def take_parked(self) -> list[ParkedReply]:
        """Removes and returns all parked replies."""
        left = [parked for waiting in self._waiting() for parked in waiting]
        for waiting in self._waiting():
            waiting.clear()
        return left

    @property
    def has_parked(self) -> bool:
        return any(self._waiting())

    def _waiting(self) -> tuple[list[ParkedReply], ...]:
        return self.waiting_commit, self.waiting_sync, self.waiting_cover


def _released(waiting: list[ParkedReply], offset: int) -> list[ParkedReply]:
    count = len(waiting)
    if count and waiting[-1].last >= offset:
        count = bisect_left(waiting, offset, key=_last)
    released = waiting[:count]
    del waiting[:count]
    return released
