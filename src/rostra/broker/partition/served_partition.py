"""One partition as this node serves it: its ends, its producers, who waits for what, who reads it."""

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
from rostra.model.batch import CHECKPOINT, HEADER_BYTES, LEDGER, PLACED, Buffer, base_offset
from rostra.model.decode import Batch
from rostra.model.ids import Partition, is_internal
from rostra.wire.messages import NodeMessage, Topic, TopicSettings

OF_THE_BROKER = CHECKPOINT | LEDGER
_last = attrgetter("last")


class ParkedReply(msgspec.Struct, frozen=True, gc=False):
    """A reply that waits until the records up to `last` are safe: `Published`, unless it is another `message`."""

    last: int
    conn: Conn
    request: int
    base: int
    message: NodeMessage | None = None


class Reader:
    """One subscription to one partition."""

    __slots__ = ("conn", "credit", "held", "next", "number", "partition", "reading", "ready", "request")

    def __init__(self, conn: Conn, number: int, partition: ServedPartition, credit: int, request: int) -> None:
        self.conn = conn
        self.number = number
        self.request = request
        """The one that is answered when its start offset is known."""
        self.partition = partition
        self.credit = credit
        self.next = 0
        self.ready = False
        """False until its start offset is known."""
        self.reading = False
        """A read from disk is under way for it."""
        self.held = False
        """It waits for its share of the disk."""


class ServedPartition:
    """State that follows the log: `appended` and `truncated` mirror every change of it."""

    __slots__ = (
        "_books_may_change",
        "_epoch_noted",
        "_restored_at",
        "_since",
        "_sizes",
        "_tails",
        "address",
        "blocked",
        "books",
        "bytes",
        "commit",
        "commit_is_old",
        "compacted",
        "copy",
        "covered",
        "end",
        "epoch",
        "epochs",
        "exclusive",
        "first",
        "generation",
        "history_depth",
        "hold",
        "internal",
        "live_us",
        "owner",
        "partition",
        "producers",
        "publishers",
        "readers",
        "segment_bytes",
        "segment_bytes_max",
        "synced",
        "tail",
        "topic",
        "uncounted_bytes",
        "unsure",
        "view",
        "waiting_commit",
        "waiting_cover",
        "waiting_sync",
    )

    def __init__(self, partition: Partition, topic: Topic, books: LogDerivedState, tails: TailCache) -> None:
        self.partition = partition
        self.topic = topic.name
        self.internal = is_internal(topic.name)
        """Written by Rostra alone."""
        self.exclusive = topic.settings.ownership == "exclusive"
        """Whether only the strongest publisher's records are delivered."""
        self.settle_on(topic.settings)
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
        """When there was a commit last."""
        self.owner = False
        self.copy = False
        """Whether this node has a log of it."""
        self.address = ""
        """The owner's, if it is another node and known."""
        self.blocked: RostraError | None = None
        self.commit_is_old = False
        """Since the start nobody has said how much of the log is committed: more is than is known here."""
        self.books = books
        self._books_may_change = True
        """Whether they hold something that a cut would undo."""
        self.producers = books.producers
        self.publishers = books.publishers
        self.unsure: RostraError | None = None
        """Why nothing is ordered here, while the log is looked at again."""
        self._since: list[Buffer] | None = None
        """What was appended meanwhile, as far as the books follow it."""
        self._restored_at = 0
        """The books were restored from a checkpoint here: below this they cannot be undone."""
        self.tail = PartitionTail()
        self._tails = tails
        # Lists, since most partitions of a node have nobody who waits: an empty deque takes half a kilobyte.
        self.waiting_commit: list[ParkedReply] = []
        self.waiting_sync: list[ParkedReply] = []
        self.waiting_cover: list[ParkedReply] = []
        self.covered = 0
        self.view: tuple[int, ...] = ()
        """The nodes that have all below `covered`, where acks `all` asks for more than commit."""
        self.epochs: list[tuple[int, int]] = []
        """(owner epoch, its first offset) for every epoch in the log, and the one before its start."""
        self._epoch_noted = -1
        """That of the last batch, if `epochs` has been asked for it: nearly every batch has that of the one before."""
        self._sizes: list[tuple[int, int, int]] = []
        """(base, bytes, bytes of the segment) before each batch that may still be cut."""
        self.compacted: CompactBelow | None = None
        """The word of an owner that was last carried out here."""
        self.readers: dict[tuple[Conn, int], Reader] = {}
        self.hold: int | None = None
        """From here on nothing is shown yet: what comes before it, in another partition, is not here."""

    @property
    def shown(self) -> int:
        """Below this readers may see it."""
        return self.commit if self.hold is None else min(self.commit, self.hold)

    def settle_on(self, settings: TopicSettings) -> None:
        """What may be altered while the topic lives."""
        self.segment_bytes_max = settings.segment_bytes
        self.history_depth = settings.history_depth

    def recovered(self, found: RecoveredLog) -> None:
        """From what the disk had, all of it fsynced: the last checkpoint and the batches behind it."""
        self.end = self.synced = found.log.end
        self.bytes, self.segment_bytes = found.bytes, found.segment_bytes
        self.epochs = [(row.epoch, row.offset) for row in found.log.epochs]
        self._epoch_noted = -1
        self._rebuild(found)

    def _rebuild(self, found: RecoveredLog) -> None:
        self._books_may_change = True
        self._restored_at = found.checkpoint_at
        self.books.restore(read_checkpoint(found.checkpoint) if found.checkpoint is not None else EMPTY)
        # In their order, as they were appended: an entry may put a producer into its table, and so another out of it.
        controls = deque(found.controls)
        for stamp in found.stamps:
            while controls and controls[0][0] < stamp.base:
                self.books.apply(*controls.popleft())
            if stamp.producer:
                self.producers.apply(stamp.base, stamp.last, stamp.producer, stamp.epoch, stamp.sequence, stamp.count)
        for base, batch in controls:
            self.books.apply(base, batch)

    def recalled(self, found: RecoveredLog) -> None:
        """The log was looked at again; what was appended behind that is known here."""
        self._rebuild(found)
        since, self._since = self._since or [], None
        for batch in since:
            base, _, delta, owner_flags, producer, epoch, sequence = PLACED.unpack_from(batch, 8)
            if base < found.log.end:
                continue
            if producer:
                self.producers.apply(base, base + delta, producer, epoch, sequence, delta + 1)
            if owner_flags & LEDGER:
                self.books.apply(base, batch)
        self.books.commit(self.commit)
        if self.blocked is self.unsure:
            self.blocked = None
        self.unsure = None

    def emptied(self, first: int) -> None:
        """The log is empty and begins at `first`."""
        self.first = self.end = self.commit = self.synced = self.covered = first
        self.commit_is_old = False
        self.bytes = self.segment_bytes = self.generation = 0
        self.epochs = []
        self._epoch_noted = -1
        self._sizes.clear()
        self.hold = None
        self.books.restore(EMPTY)
        self._restored_at = first
        self.compacted = None
        self.unsure = self._since = None
        self._tails.truncate(self.tail, 0)
        self.tail.next = first

    def appended(self, batch: bytearray) -> None:
        base, owner_epoch, delta, owner_flags, producer, epoch, sequence = PLACED.unpack_from(batch, 8)
        last = base + delta
        size = len(batch)
        self._sizes.append((base, self.bytes, self.segment_bytes))
        self.segment_bytes += size
        if owner_flags & OF_THE_BROKER:
            self._enter(base, owner_flags, batch)
        self.bytes += size
        self.uncounted_bytes += size
        self.end = last + 1
        if owner_epoch != self._epoch_noted:
            self._note_epoch(owner_epoch, base)
        if producer:
            # Control batches have no producer; neither has a client that asks for no protection from repeats.
            self.producers.apply(base, last, producer, epoch, sequence, delta + 1)
            self._books_may_change = True
        if self._since is not None:
            self._since.append(batch if owner_flags & LEDGER else batch[:HEADER_BYTES])
        self._tails.add(self.tail, base, last, batch)

    def _note_epoch(self, epoch: int, base: int) -> None:
        if not self.epochs or self.epochs[-1][0] != epoch:
            self.epochs.append((epoch, base))
        self._epoch_noted = epoch

    def _enter(self, base: int, owner_flags: int, batch: bytearray) -> None:
        """A batch of the broker's own."""
        self._books_may_change = True
        if owner_flags & LEDGER:
            self.books.apply(base, batch)
            return
        # A checkpoint does not count: one larger than a segment would otherwise begin a segment with every batch.
        self.segment_bytes = 0
        if base == self.first:
            self._begin_with(batch)

    def _begin_with(self, checkpoint: bytearray) -> None:
        """A copy that is filled from another's log start: what was before it is known from its first batch alone."""
        (value,) = Batch(checkpoint).values()
        found = read_checkpoint(value or b"")
        self.books.restore(found)
        self.epochs = [row for row in found.epochs if row[1] < self.first][-1:]
        self._epoch_noted = -1

    def truncated(self, offset: int, generation: int) -> list[ParkedReply]:
        """The log ends at `offset` now; returns the replies that wait for what was cut."""
        self.end = offset
        self.generation = generation
        self.synced = min(self.synced, offset)
        while self._sizes and self._sizes[-1][0] >= offset:
            _, self.bytes, self.segment_bytes = self._sizes.pop()
        while self.epochs and self.epochs[-1][1] >= offset:
            self.epochs.pop()
        self._epoch_noted = -1
        if offset < self._restored_at or self._since is not None:
            self._lose_track(offset)
        else:
            self.books.truncate(offset)
        self._tails.truncate(self.tail, offset)
        cut: list[ParkedReply] = []
        for waiting in self._waiting():
            cut += [parked for parked in waiting if parked.last >= offset]
            kept = [parked for parked in waiting if parked.last < offset]
            waiting.clear()
            waiting.extend(kept)
        return cut

    def _lose_track(self, offset: int) -> None:
        """The books came from a checkpoint that is cut: what they said before is in the log, which must be read."""
        self._since = [batch for batch in self._since or () if base_offset(batch) < offset]
        if self.unsure is None:
            self.unsure = Unavailable(self.topic, self.partition.index, "its log was cut and is read again")
        if self.blocked is None:
            self.blocked = self.unsure

    def committed(self, offset: int) -> list[ParkedReply]:
        """Records below `offset` are safe; returns the replies that waited for that."""
        self.commit = offset
        self.commit_is_old = False
        sizes = self._sizes
        if sizes:
            if sizes[-1][0] < offset:
                sizes.clear()
            else:
                del sizes[: bisect_left(sizes, (offset,))]
        if self._books_may_change:
            self.books.commit(offset)
            self._books_may_change = offset < self.end
        if not self.readers and self.tail.has_answers:
            # Else the next one to be fed replaces it.
            self.tail.forget_answers()
        return _released(self.waiting_commit, offset) if self.waiting_commit else []

    def durable(self, offset: int) -> list[ParkedReply]:
        """The owner's copy below `offset` is on stable storage; returns the replies that waited for that."""
        return _released(self.waiting_sync, offset)

    def cover(self, offset: int, view: tuple[int, ...]) -> list[ParkedReply]:
        """Every node of the view has what lies below `offset`; returns the replies that waited for that."""
        self.covered, self.view = max(self.covered, offset), view
        return _released(self.waiting_cover, offset)

    def trimmed(self, first: int) -> None:
        self.first = first
        while len(self.epochs) > 1 and self.epochs[1][1] < first:
            del self.epochs[0]

    def park_early(self, parked: ParkedReply, waiting: list[ParkedReply]) -> None:
        """A repeated batch may wait for an earlier place than the last one parked: keep them in order."""
        insort_right(waiting, parked, key=_last)

    def close(self) -> list[ParkedReply]:
        """The partition is gone; returns all replies that waited."""
        self._tails.truncate(self.tail, 0)
        return self.give_up()

    def give_up(self) -> list[ParkedReply]:
        """Nothing is acknowledged here any more; returns all replies that waited."""
        left = [parked for waiting in self._waiting() for parked in waiting]
        for waiting in self._waiting():
            waiting.clear()
        return left

    @property
    def awaited(self) -> bool:
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
