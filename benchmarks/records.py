"""The records every contender carries: distinct, cheap to make, and known to both ends."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from time import monotonic_ns

RECORDS_PER_HAND_BATCH = 640
"""64 KiB of 100-byte records: the size at which batching by hand stops paying."""

STAMP = Struct("<qq")
"""A paced record begins with the time it was sent (ns) and its index."""


def distinct_records(count: int, size: int, seed: int = 7) -> list[bytes]:
    """Incompressible records, no two alike: an 8-byte index, then a slice of a random pool."""
    pool_bytes = 1 << 20
    generator = random.Random(seed)
    pool = generator.randbytes(pool_bytes + size)
    body = size - 8
    starts = generator.choices(range(pool_bytes), k=count)
    return [index.to_bytes(8, "little") + pool[start : start + body] for index, start in enumerate(starts)]


def hand_batches(records: Sequence[bytes]) -> Iterator[bytes]:
    """What an application does to a peer that has no batches: many records in one message."""
    remaining = iter(records)
    while batch := b"".join(islice(remaining, RECORDS_PER_HAND_BATCH)):
        yield batch


def stamped_record(index: int, padding: bytes) -> bytes:
    return STAMP.pack(monotonic_ns(), index) + padding


class Inbox(list[bytes]):
    """What one subscriber received; kept whole, and compared when the clock has stopped."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected

    def is_full(self) -> bool:
        return len(self) >= self.expected


class SplittingInbox(Inbox):
    """Takes hand-made batches apart on arrival: the application wants records, not batches."""

    def __init__(self, expected: int, record_bytes: int) -> None:
        super().__init__(expected)
        self._record_bytes = record_bytes

    def append(self, batch: bytes, /) -> None:
        size = self._record_bytes
        super().extend([batch[at : at + size] for at in range(0, len(batch), size)])

    def extend(self, batches: Iterable[bytes], /) -> None:
        for batch in batches:
            self.append(batch)


class TimedInbox(Inbox):
    """Notes the delay of every stamped record as it arrives."""

    def __init__(self, expected: int) -> None:
        super().__init__(expected)
        self.delays_ns: list[int] = []

    def append(self, record: bytes, /) -> None:
        self.delays_ns.append(monotonic_ns() - STAMP.unpack_from(record)[0])
        super().append(record)

    def extend(self, records: Iterable[bytes], /) -> None:
        for record in records:
            self.append(record)
