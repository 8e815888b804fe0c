"""Deduplication: the latest batches of each producer in a partition, so that a batch sent twice is stored once."""

from __future__ import annotations

from collections import OrderedDict, deque

import msgspec

from rostra.errors import ProducerFenced, RostraError, SequenceGap, UnknownProducer
from rostra.safeguards import ALL_ON, Safeguard, Without

BATCHES_PER_PRODUCER = 64
"""Batches per producer whose offsets are kept to answer a repeat: as many as a client keeps in flight."""

SNAPSHOT_BATCHES_MAX = 1 << 16
"""Batches of all producers together in one checkpoint: about 1.5 MiB."""

SEQUENCES = 1 << 32
"""Sequences count records modulo this."""


Stored = tuple[int, int]
"""First and last offset of a batch that is in the log already. If its exact offsets were evicted, first is -1, and it
ends at or before last."""


class ProducerEntry(msgspec.Struct, array_like=True):
    """One producer: its epoch, the sequence expected next, and (sequence, base, last) of its latest batches."""

    epoch: int
    expected: int
    latest: tuple[tuple[int, int, int], ...]


class ProducerTable:
    """The bounded table of one partition. It follows the log: entries of truncated batches are undone."""

    __slots__ = ("_check_sequence", "_dedup", "_entries", "_max", "_undo", "forgot")

    def __init__(self, producers_max: int, without: Without = ALL_ON) -> None:
        self._max = producers_max
        self._dedup = Safeguard.DEDUP not in without
        self._check_sequence = Safeguard.SEQUENCE not in without
        self._entries: OrderedDict[int, ProducerEntry] = OrderedDict()
        self.forgot = False
        """Whether a producer was ever evicted."""
        self._undo: deque[tuple[int, int, ProducerEntry | None]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def check(
        self, producer: int, epoch: int, sequence: int, count: int, again: bool = False
    ) -> Stored | RostraError | None:
        """None if the batch is new, its offsets if it is a repeat, or why it is refused.

        The first batch of an unknown producer is new, unless it comes `again` and producers were evicted: it may be one
        of theirs.
        """
        return self.check_against(self._entries.get(producer), producer, epoch, sequence, count, again)

    def entry(self, producer: int) -> ProducerEntry | None:
        return self._entries.get(producer)

    def check_against(
        self, entry: ProducerEntry | None, producer: int, epoch: int, sequence: int, count: int, again: bool = False
    ) -> Stored | RostraError | None:
        """Checks a batch against an entry of the producer, from this partition or another."""
        if entry is None or epoch > entry.epoch:
            if (sequence or (again and self.forgot and entry is None)) and self._check_sequence:
                return UnknownProducer(producer) if entry is None else SequenceGap(producer, 0, sequence)
            return None
        if epoch < entry.epoch:
            return ProducerFenced(producer, entry.epoch)
        if sequence == entry.expected or not self._dedup:
            return None
        for known, base, last in entry.latest:
            if known == sequence:
                if last - base + 1 != count:
                    # A different batch under a stored sequence: to acknowledge it would lose it.
                    return SequenceGap(producer, entry.expected, sequence)
                return base, last
        behind = (entry.expected - sequence) % SEQUENCES
        if behind >= SEQUENCES >> 1 or count > behind:
            # A gap, or a repeat that was split differently and holds records that are not stored.
            if not self._check_sequence:
                return None
            return SequenceGap(producer, entry.expected, sequence)
        oldest = entry.latest[0][1] if entry.latest else 0
        return -1, max(oldest - 1, 0)

    def apply(self, base: int, last: int, producer: int, epoch: int, sequence: int, count: int) -> None:
        """This batch is now at the end of the log."""
        entries = self._entries
        before = entries.get(producer)
        self._undo.append((base, producer, before))
        latest: tuple[tuple[int, int, int], ...] = ((sequence, base, last),)
        if before is not None and before.epoch == epoch:
            latest = before.latest[-BATCHES_PER_PRODUCER + 1 :] + latest
        self._insert(base, producer, ProducerEntry(epoch, (sequence + count) % SEQUENCES, latest))

    def _insert(self, base: int, producer: int, entry: ProducerEntry) -> None:
        entries = self._entries
        entries[producer] = entry
        entries.move_to_end(producer)
        if len(entries) > self._max:
            self.forgot = True
            forgotten, left = entries.popitem(last=False)
            self._undo.append((base, forgotten, left))

    def adopt(self, base: int, producer: int, epoch: int, expected: int) -> None:
        """The batch at `base` says that the producer is stored up to `expected`, though in another partition."""
        before = self._entries.get(producer)
        if before is not None and before.epoch == epoch:
            ahead = (expected - before.expected) % SEQUENCES
            if ahead == 0 or ahead >= SEQUENCES >> 1:
                return
        elif before is not None and before.epoch > epoch:
            return
        self._undo.append((base, producer, before))
        latest = before.latest if before is not None and before.epoch == epoch else ()
        self._insert(base, producer, ProducerEntry(epoch, expected, latest))

    def commit(self, offset: int) -> None:
        """Changes below this offset need no undo any more."""
        undo = self._undo
        while undo and undo[0][0] < offset:
            undo.popleft()

    def truncate(self, offset: int) -> None:
        """Undoes the changes at or above `offset`, where the log ends now."""
        while self._undo and self._undo[-1][0] >= offset:
            _, producer, before = self._undo.pop()
            if before is None:
                self._entries.pop(producer, None)
            else:
                forgotten = producer not in self._entries
                self._entries[producer] = before
                if forgotten:
                    self._entries.move_to_end(producer, last=False)

    def snapshot(self) -> list[tuple[int, ProducerEntry]]:
        """For a checkpoint, which must fit into one frame: the more producers, the fewer batches of each.

        A repeat of a batch left out is still recognised as stored, only its offset is unknown.
        """
        kept = max(1, min(BATCHES_PER_PRODUCER, SNAPSHOT_BATCHES_MAX // max(1, len(self._entries))))
        return [
            (producer, ProducerEntry(entry.epoch, entry.expected, entry.latest[-kept:]))
            for producer, entry in self._entries.items()
        ]

    def restore(self, entries: list[tuple[int, ProducerEntry]], forgot: bool = False) -> None:
        self._entries = OrderedDict(entries)
        self.forgot = forgot
        self._undo.clear()
