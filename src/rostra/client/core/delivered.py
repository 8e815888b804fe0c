"""A batch as a subscriber gets it: decoded when asked, without the records below the offset asked for."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from rostra.model.batch import Header
from rostra.model.decode import Batch, Record, RecordHeaders

if TYPE_CHECKING:
    import pyarrow


class Delivered:
    """Records of one partition in order.

    >>> for batch in subscription.batches():  # doctest: +SKIP
    ...     total += sum(map(len, batch.values()))
    """

    __slots__ = ("_batch", "_skipped", "bytes", "next_offset", "partition", "topic", "topic_id")

    def __init__(self, topic: str, partition: int, batch: Batch, first: int, topic_id: int = 0) -> None:
        header = batch.header
        self.topic = topic
        self.topic_id = topic_id
        """A topic that was deleted and made again has the same name, and another id."""
        self.partition = partition
        self.next_offset: int = header.base_offset + header.last_offset_delta + 1
        """The offset behind the last record."""
        self.bytes = header.length
        self._batch = batch
        # A subscription may begin inside a batch; what lies before is nobody's business.
        self._skipped = 0 if first <= header.base_offset else bisect_left(batch.offsets(), first)

    def __len__(self) -> int:
        return self._batch.header.count - self._skipped

    @property
    def header(self) -> Header:
        return self._batch.header

    @property
    def first_offset(self) -> int:
        return self._batch.offsets()[self._skipped] if self._skipped else self._batch.header.base_offset

    def values(self) -> list[bytes | None]:
        values = self._batch.values()
        return values[self._skipped :] if self._skipped else values

    def keys(self) -> list[bytes | None]:
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
        """Columns key, value, offset, timestamp, headers; they lie over the received bytes."""
        return self._batch.to_arrow().slice(self._skipped)

    def __repr__(self) -> str:
        return f"<Delivered {self.topic}/{self.partition}, {len(self)} records before offset {self.next_offset}>"
