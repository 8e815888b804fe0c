"""Sparse offset and time index of one segment, in memory and as the file beside a sealed one.

The byte table of the file is in docs/formats/log.md. It is written once and can be rebuilt from the segment
at any time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from sys import byteorder
from typing import NamedTuple

from crc32c import crc32c

from rostra.log.facts import EpochRow
from rostra.model.ids import Partition

MAGIC = b"RSX1"
FIELDS: tuple[tuple[str, str], ...] = (
    ("magic", "4s"),
    ("crc", "I"),
    ("topic", "Q"),
    ("partition", "I"),
    ("entries", "I"),
    ("epochs", "I"),
    ("reserved_28", "I"),
    ("first", "Q"),
    ("next", "Q"),
    ("bytes", "Q"),
    ("max_us", "q"),
)
HEADER = Struct("<" + "".join(form for _, form in FIELDS))
CHECKED_FROM = 8
NO_TIME_US = -(1 << 63)
"""Earlier than every timestamp: the maximum of no timestamps."""


class SealedFacts(NamedTuple):
    """What the index file states about its segment besides the index entries."""

    first: int
    next: int
    bytes: int
    max_us: int
    epochs: tuple[EpochRow, ...]


class Index:
    """Entry i says: the batch at `positions[i]` has base offset `offsets[i]`, and no record before it in the segment is
    later than `maxima[i]`.

    One thread adds while others look up. An entry's offset is added last and entries are never removed: truncation
    makes a new index.
    """

    __slots__ = ("_every_bytes", "max_us", "maxima", "offsets", "positions")

    def __init__(self, every_bytes: int) -> None:
        self._every_bytes = every_bytes
        self.offsets = array("q")
        self.positions = array("q")
        self.maxima = array("q")
        self.max_us = NO_TIME_US

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, position: int, offset: int, max_us: int) -> None:
        """Records a batch at the end; `max_us` is NO_TIME_US for a batch without records for subscribers."""
        positions = self.positions
        if not positions or position - positions[-1] >= self._every_bytes:
            self.maxima.append(self.max_us)
            positions.append(position)
            self.offsets.append(offset)
        if max_us > self.max_us:
            self.max_us = max_us

    def stride_of(self, offset: int) -> int:
        """The last entry at or below the offset."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def stride_at(self, position: int) -> int:
        return max(bisect_right(self.positions, position) - 1, 0)

    def stride_of_time(self, timestamp_us: int) -> int:
        """The entry to start scanning at for the first record at or after the timestamp."""
        return max(bisect_left(self.maxima, timestamp_us) - 1, 0)

    def stride_end(self, entry: int, segment_bytes: int) -> int:
        return self.positions[entry + 1] if entry + 1 < len(self.offsets) else segment_bytes

    def span(self, offset: int, end: int, bytes_max: int, segment_bytes: int) -> tuple[int, int, int]:
        """Where to read: (base offset at the start, start, stop), whole batches, about `bytes_max` from `offset` on."""
        entry = self.stride_of(offset)
        start = self.positions[entry]
        stop = segment_bytes
        if stop - start > bytes_max:
            full = bisect_right(self.positions, start + bytes_max) - 1
            stop = self.positions[full] if full > entry else self.stride_end(entry, segment_bytes)
        beyond = bisect_left(self.offsets, end)
        if entry < beyond < len(self.offsets):
            stop = min(stop, self.positions[beyond])
        return self.offsets[entry], start, stop

    def cut(self, position: int) -> Index:
        """A copy that ends at the last entry below the position; the batches from that entry on must be added again."""
        kept = bisect_left(self.positions, position)
        cut = Index(self._every_bytes)
        cut.offsets = self.offsets[: max(kept - 1, 0)]
        cut.positions = self.positions[: max(kept - 1, 0)]
        cut.maxima = self.maxima[: max(kept - 1, 0)]
        cut.max_us = self.maxima[kept - 1] if kept else NO_TIME_US
        return cut


def encode_index(index: Index, partition: Partition, facts: SealedFacts) -> bytes:
    tail = b"".join(
        (
            _little(index.offsets),
            _little(index.positions),
            _little(index.maxima),
            _little(array("q", (number for row in facts.epochs for number in row))),
        )
    )
    fields = (
        partition.topic,
        partition.index,
        len(index),
        len(facts.epochs),
        0,
        facts.first,
        facts.next,
        facts.bytes,
        facts.max_us,
    )
    checked = HEADER.pack(MAGIC, 0, *fields)[CHECKED_FROM:] + tail
    return MAGIC + crc32c(checked).to_bytes(4, "little") + checked


def decode_index(written: bytes, partition: Partition, every_bytes: int) -> tuple[Index, SealedFacts] | None:
    """None unless every byte is as it was written, for this partition."""
    if len(written) < HEADER.size:
        return None
    magic, crc, topic, number, entries, rows, _, first, following, size, max_us = HEADER.unpack_from(written)
    if magic != MAGIC or (topic, number) != (partition.topic, partition.index):
        return None
    if len(written) != HEADER.size + 24 * entries + 16 * rows or crc != crc32c(memoryview(written)[CHECKED_FROM:]):
        return None
    index = Index(every_bytes)
    at = HEADER.size
    index.offsets = _array(written, at, entries)
    index.positions = _array(written, at + 8 * entries, entries)
    index.maxima = _array(written, at + 16 * entries, entries)
    index.max_us = max_us
    flat = _array(written, at + 24 * entries, 2 * rows)
    epochs = tuple(map(EpochRow, flat[::2], flat[1::2]))
    return index, SealedFacts(first, following, size, max_us, epochs)


def _little(numbers: array[int]) -> bytes:
    if byteorder == "big":
        numbers = array("q", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _array(written: bytes, at: int, count: int) -> array[int]:
    numbers = array("q")
    numbers.frombytes(written[at : at + 8 * count])
    if byteorder == "big":
        numbers.byteswap()
    return numbers
