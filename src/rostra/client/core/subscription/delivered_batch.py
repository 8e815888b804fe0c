"""A batch as delivered to a subscriber: decoded on demand, without records below the start offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rostra.model.batch import Header
from rostra.model.decode import Batch, Record, RecordHeaders

if TYPE_CHECKING:
    import pyarrow


Value = bytes | None
"""None is a tombstone, or no key."""


class DeliveredBatch(msgspec.Struct, eq=False):
    """Records of one partition in order.

    >>> for batch in subscription.batches():  # doctest: +SKIP
    ...     total += sum(map(len, batch.values()))
    """

    topic: str
    topic_id: int
    """A topic that was deleted and created again has the same name and another id."""
    partition: int
    next_offset: int
    """The offset behind the last record."""
    bytes: int
    _batch: Batch
    _skipped: int
    """Number of records at the beginning of the batch that lie before the subscription's start."""

    def __len__(self) -> int:
        return self._batch.header.count - self._skipped

    @property
    def header(self) -> Header:
        return self._batch.header

    @property
    def first_offset(self) -> int:
        return self._batch.offsets()[self._skipped] if self._skipped else self._batch.header.base_offset

    def values(self) -> list[Value]:
        values = self._batch.values()
        return values[self._skipped :] if self._skipped else values

    def keys(self) -> list[Value]:
        return self._batch.keys()[self._skipped :]

    def offsets(self) -> list[int]:
        return self._batch.offsets()[self._skipped :]

    def timestamps(self) -> list[int]:
        """Microseconds since 1970, UTC."""
        return self._batch.timestamps()[self._skipped :]

    def headers(self) -> list[RecordHeaders]:
        return self._batch.headers()[self._skipped :]

    def records(self) -> list[Record]:
        records = self._batch.records(self.topic, self.partition)
        return records[self._skipped :] if self._skipped else records

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Columns key, value, offset, timestamp, headers, backed by the received bytes."""
        return self._batch.to_arrow().slice(self._skipped)

    def __repr__(self) -> str:
        return f"<DeliveredBatch {self.topic}/{self.partition}, {len(self)} records before offset {self.next_offset}>"
