"""The open batch of one partition, before it is encoded."""

from __future__ import annotations

from rostra.client.core.effects import CallNumber
from rostra.client.core.producer.record_arguments import headers_bytes
from rostra.model.encode import Headers


class BatchBuilder:
    """Collects records for one batch. Columns other than the values are padded when it is closed, so that a plain value
    costs one append.
    """

    __slots__ = ("bytes", "calls", "due_us", "headers", "keys", "timestamps", "values")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.values: list[bytes | None] = []
        self.bytes = 0
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.timestamps: list[int | None] | None = None
        self.calls: list[CallNumber] | None = None
        self.due_us: int | None = None

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_us: int | None,
        call: CallNumber,
    ) -> None:
        values = self.values
        at = len(values)
        # First what may raise: a record is added completely or not at all.
        size = 12 if value is None else len(value) + 12
        if key is not None:
            size += len(key) + 4
        if headers:
            size += headers_bytes(headers)
        if key is not None:
            if self.keys is None:
                self.keys = []
            self.keys += [None] * (at - len(self.keys))
            self.keys.append(key)
        if headers:
            if self.headers is None:
                self.headers = []
            self.headers += [None] * (at - len(self.headers))
            self.headers.append(headers)
        if timestamp_us is not None:
            if self.timestamps is None:
                self.timestamps = []
            self.timestamps += [None] * (at - len(self.timestamps))
            self.timestamps.append(timestamp_us)
        if call:
            if self.calls is None:
                self.calls = []
            self.calls += [0] * (at - len(self.calls))
            self.calls.append(call)
        values.append(value)
        self.bytes += size

    def moved(self) -> BatchBuilder:
        """Move the contents to another builder and clear this one, so that references to it stay valid."""
        moved = BatchBuilder.__new__(BatchBuilder)
        moved.values, moved.bytes = self.values, self.bytes
        moved.keys, moved.headers, moved.timestamps = self.keys, self.headers, self.timestamps
        moved.calls, moved.due_us = self.calls, self.due_us
        self.clear()
        return moved

    def half(self) -> tuple[BatchBuilder, BatchBuilder]:
        """Split into two, for a batch that is too large when encoded."""
        middle = len(self.values) // 2
        halves = BatchBuilder(), BatchBuilder()
        for builder, part in zip(halves, (slice(None, middle), slice(middle, None)), strict=True):
            builder.values = self.values[part]
            builder.keys = None if self.keys is None else self.keys[part]
            builder.headers = None if self.headers is None else self.headers[part]
            builder.timestamps = None if self.timestamps is None else self.timestamps[part]
            builder.calls = None if self.calls is None else self.calls[part]
        return halves

    def fill_up(self, wall_us: int) -> None:
        count = len(self.values)
        if self.keys is not None:
            self.keys += [None] * (count - len(self.keys))
        if self.headers is not None:
            self.headers += [None] * (count - len(self.headers))
        if self.timestamps is not None:
            self.timestamps += [None] * (count - len(self.timestamps))
            self.timestamps = [wall_us if stamp is None else stamp for stamp in self.timestamps]
        if self.calls is not None:
            self.calls += [0] * (count - len(self.calls))
