"""Positions of the Arrow buffers in a batch body."""

from functools import lru_cache
from struct import Struct, pack

import msgspec

from rostra.errors import BatchRejected
from rostra.model.batch import Buffer, Flag, Reason

_INT32 = Struct("<i")

# Plain ints: combining an IntFlag with an int builds a Flag object, which costs a microsecond.
CONTROL = int(Flag.CONTROL)
OFFSET_DELTAS = int(Flag.OFFSET_DELTAS)
TIMESTAMPS = int(Flag.TIMESTAMPS)
KEYS = int(Flag.KEYS)
KEY_NULLS = int(Flag.KEY_NULLS)
VALUE_NULLS = int(Flag.VALUE_NULLS)
HEADERS = int(Flag.HEADERS)


def padded(size: int) -> int:
    """Arrow wants its buffers to begin at multiples of eight."""
    return (size + 7) & ~7


@lru_cache(maxsize=16)
def even_offsets(count: int, size: int) -> bytes:
    """The offsets of `count` strings of equal size. Cached, since the batches of a producer tend to be alike, and
    comparing two buffers is far cheaper than checking each number."""
    return pack(f"<{count + 1}i", *range(0, size * count + 1, size)) if size else bytes(4 * count + 4)


class Column(msgspec.Struct, frozen=True, gc=False):
    """A column of byte strings: positions of its buffers and the size of its last one."""

    offsets_at: int
    bytes_at: int
    size: int
    validity_at: int = -1


class HeaderColumns(msgspec.Struct, frozen=True, gc=False):
    """Headers of all records: how many each record has, then all names, then all values."""

    lists_at: int
    count: int
    names: Column
    values: Column


class Layout(msgspec.Struct, frozen=True, gc=False):
    """Positions within a raw body; -1 and None stand for a buffer that is absent."""

    deltas_at: int
    timestamps_at: int
    keys: Column | None
    values: Column
    headers: HeaderColumns | None


class _Walk:
    """Steps over the buffers of a body, never past its end."""

    __slots__ = ("at", "body", "end")

    def __init__(self, body: Buffer, start: int, end: int) -> None:
        self.body = body
        self.at = start
        self.end = end

    def step(self, size: int) -> int:
        at = self.at
        self.at = at + padded(size)
        if self.at > self.end:
            raise BatchRejected(Reason.BODY_LAYOUT, "a buffer reaches past the end of the body")
        return at

    def offsets(self, count: int) -> tuple[int, int]:
        """Step over count+1 offsets; their position and the last of them."""
        at = self.step(4 * count + 4)
        (first,) = _INT32.unpack_from(self.body, at)
        (last,) = _INT32.unpack_from(self.body, at + 4 * count)
        if first != 0 or last < 0:
            raise BatchRejected(Reason.BODY_LAYOUT, f"offsets run from {first} to {last}")
        return at, last

    def column(self, count: int, *, nullable: bool) -> Column:
        validity_at = self.step((count + 7) // 8) if nullable else -1
        offsets_at, size = self.offsets(count)
        return Column(offsets_at, self.step(size), size, validity_at)


def lay_out(body: Buffer, start: int, end: int, count: int, flags: int) -> Layout:
    """Find every buffer of the raw body at start..end; work does not grow with the count."""
    walk = _Walk(body, start, end)
    deltas_at = walk.step(4 * count) if flags & OFFSET_DELTAS else -1
    timestamps_at = walk.step(8 * count) if flags & TIMESTAMPS else -1
    keys = None
    if flags & KEYS:
        keys = walk.column(count, nullable=bool(flags & KEY_NULLS))
    values = walk.column(count, nullable=bool(flags & VALUE_NULLS))
    headers = None
    if flags & HEADERS:
        lists_at, header_count = walk.offsets(count)
        names = walk.column(header_count, nullable=False)
        headers = HeaderColumns(lists_at, header_count, names, walk.column(header_count, nullable=False))
    if walk.at != end:
        raise BatchRejected(Reason.BODY_LAYOUT, f"{end - walk.at} bytes follow the last buffer of the body")
    return Layout(deltas_at, timestamps_at, keys, values, headers)
