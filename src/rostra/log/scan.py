"""Scans the batches of a segment file, and searches for intact batches after damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rostra.errors import BatchRejected
from rostra.log.files import ReadableFile
from rostra.model.batch import HEADER_BYTES, MAGIC, Header, Reason, placement_crc, read_header
from rostra.model.check import check_stored
from rostra.model.ids import Partition

HEADER_WINDOW_BYTES = 16 << 10
SECTOR_BYTES = 512
"""What a disk writes atomically."""
SEARCH_FACTOR = 4
"""Bounds the bytes that a search after damage verifies, as a multiple of the bytes it searches."""


class ScannedBatch(NamedTuple):
    """An intact batch and its position."""

    position: int
    header: Header


class Damage(Exception):
    """The bytes at `position` are not an intact batch that begins with `offset`."""

    def __init__(self, position: int, offset: int, detail: str) -> None:
        super().__init__(position, offset, detail)
        self.position = position
        self.offset = offset
        self.detail = detail


def stored_length(buffer: bytes, at: int, partition: Partition, verifies: bool) -> int:
    """The length of the batch at `at`, verified unless `verifies` is off."""
    if verifies:
        return check_stored(buffer, at, partition)
    length = read_header(buffer, at).length if at + HEADER_BYTES <= len(buffer) else HEADER_BYTES
    if length < HEADER_BYTES or at + length > len(buffer):
        raise BatchRejected(Reason.TRUNCATED, f"{len(buffer) - at} of {length} bytes present")
    return length


def scan(
    file: ReadableFile, partition: Partition, first: int, size: int, chunk_bytes: int, verifies: bool = True
) -> Iterator[ScannedBatch]:
    """Every batch from the start to `size`, both checksums verified, offsets without gap, epochs never falling."""
    position, offset, epoch = 0, first, 0
    wanted_size = size
    while position < size:
        buffer = file.read(position, min(chunk_bytes, size - position))
        if len(buffer) < min(chunk_bytes, size - position):
            # The file is shorter than expected: the missing bytes will not come.
            size = position + len(buffer)
        at = 0
        while at < len(buffer):
            try:
                length = stored_length(buffer, at, partition, verifies)
            except BatchRejected as rejection:
                wanted = _wanted(buffer, at, rejection)
                if (at == 0 and wanted <= len(buffer)) or position + at + wanted > size:
                    raise Damage(position + at, offset, rejection.detail) from None
                if at == 0:
                    chunk_bytes = max(chunk_bytes, wanted)
                break
            header = read_header(buffer, at)
            _check_place(position + at, offset, epoch, header)
            yield ScannedBatch(position + at, header)
            offset, epoch = header.next_offset, header.owner_epoch
            at += length
        position += at
    if position < wanted_size:
        raise Damage(position, offset, f"the file ends before byte {wanted_size}")


def _wanted(buffer: bytes, at: int, rejection: BatchRejected) -> int:
    """How many bytes are needed to check the batch at `at`; 0 if enough are present and wrong."""
    if rejection.reason != Reason.TRUNCATED:
        return 0
    if len(buffer) - at < HEADER_BYTES:
        return HEADER_BYTES
    return read_header(buffer, at).length


def _check_place(position: int, offset: int, epoch: int, header: Header) -> None:
    if header.base_offset != offset:
        raise Damage(position, offset, f"offset {header.base_offset} found where {offset} was expected")
    if header.owner_epoch < epoch:
        raise Damage(position, offset, f"owner epoch falls from {epoch} to {header.owner_epoch}")


def scan_headers(
    file: ReadableFile, partition: Partition, first: int, size: int
) -> Iterator[tuple[ScannedBatch, bytes]]:
    """Every batch with the bytes of its header, whose owner fields are verified; bodies are not read."""
    position, offset, epoch = 0, first, 0
    window, window_at = b"", 0
    while position < size:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            # Of batches larger than the window only the headers are read.
            small = at < len(window) + HEADER_BYTES
            window, window_at, at = file.read(position, HEADER_WINDOW_BYTES if small else HEADER_BYTES), position, 0
        raw = window[at : at + HEADER_BYTES]
        if len(raw) < HEADER_BYTES or raw[:4] != MAGIC:
            raise Damage(position, offset, "no batch header")
        header = read_header(raw)
        if header.placement_crc != placement_crc(raw, 0, partition) or header.length < HEADER_BYTES:
            raise Damage(position, offset, "header damaged")
        if position + header.length > size:
            raise Damage(position, offset, f"the file ends before byte {position + header.length}")
        _check_place(position, offset, epoch, header)
        yield ScannedBatch(position, header), raw
        offset, epoch = header.next_offset, header.owner_epoch
        position += header.length


def intact_batch_behind(
    file: ReadableFile, partition: Partition, position: int, offsets: range, chunk_bytes: int
) -> bool:
    """Whether an intact batch that begins at one of the offsets lies anywhere at or after `position`.

    The bytes verified for headers that only look plausible are bounded; beyond the bound the answer is True, the safe
    one.
    """
    size = file.size()
    budget = SEARCH_FACTOR * (size - position) + chunk_bytes
    while position < size:
        window = file.read(position, chunk_bytes + HEADER_BYTES)
        at = window.find(MAGIC)
        while 0 <= at < chunk_bytes:
            header = _plausible(window, at, partition)
            if header is not None and header.base_offset in offsets and position + at + header.length <= size:
                budget -= header.length
                if budget < 0 or is_intact(file.read(position + at, header.length), partition):
                    return True
            at = window.find(MAGIC, at + 1)
        position += chunk_bytes
    return False


def has_hole(file: ReadableFile, partition: Partition, position: int) -> bool:
    """Whether the batch at `position` lacks whole sectors, which were being written when the power went.

    Unwritten sectors read as zeros or lie beyond the end of the file. Damage to written data looks different, so a
    batch with a hole was never completely written and never acknowledged.
    """
    size = file.size()
    header = _plausible(file.read(position, HEADER_BYTES), 0, partition)
    end = position + (HEADER_BYTES if header is None else header.length)
    if position >= size or end > size:
        return position < size
    batch = file.read(position, end - position)
    at = position
    while at < end:
        stop = min(at - at % SECTOR_BYTES + SECTOR_BYTES, end)
        if not any(batch[at - position : stop - position]):
            return True
        at = stop
    return False


def _plausible(window: bytes, at: int, partition: Partition) -> Header | None:
    if at + HEADER_BYTES > len(window):
        return None
    header = read_header(window, at)
    if header.placement_crc != placement_crc(window, at, partition) or header.length < HEADER_BYTES:
        return None
    return header


def is_intact(batch: bytes, partition: Partition) -> bool:
    try:
        check_stored(batch, 0, partition)
    except BatchRejected:
        return False
    return True
