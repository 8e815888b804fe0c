"""Walking over the batches of a segment file, and finding out what lies behind damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rostra.errors import BatchRejected
from rostra.log.files import File
from rostra.model.batch import HEADER_BYTES, MAGIC, Header, Reason, placement_crc, read_header
from rostra.model.check import check_stored
from rostra.model.ids import Partition

HOP_WINDOW_BYTES = 16 << 10
SECTOR_BYTES = 512
"""The least that a disk writes whole or not at all."""
SEARCH_FACTOR = 4
"""A search behind damage checks at most this many times the bytes it searches, whatever they pretend to be."""


class ScannedBatch(NamedTuple):
    """An intact batch in its place."""

    position: int
    header: Header


class Damage(Exception):
    """From `position` on, where `offset` was expected, the bytes are not the batch they should be."""

    def __init__(self, position: int, offset: int, detail: str) -> None:
        super().__init__(position, offset, detail)
        self.position = position
        self.offset = offset
        self.detail = detail


def stored_length(buffer: bytes, at: int, partition: Partition, verifies: bool) -> int:
    """The length of the batch at `at`, which is intact, unless a test asks for belief."""
    if verifies:
        return check_stored(buffer, at, partition)
    length = read_header(buffer, at).length if at + HEADER_BYTES <= len(buffer) else HEADER_BYTES
    if length < HEADER_BYTES or at + length > len(buffer):
        raise BatchRejected(Reason.TRUNCATED, f"{len(buffer) - at} of {length} bytes present")
    return length


def scan(
    file: File, partition: Partition, first: int, size: int, chunk_bytes: int, verifies: bool = True
) -> Iterator[ScannedBatch]:
    """Every batch from the start to `size`, both checksums verified, offsets without gap, epochs never falling."""
    position, offset, epoch = 0, first, 0
    wanted_size = size
    while position < size:
        buffer = file.read(position, min(chunk_bytes, size - position))
        if len(buffer) < min(chunk_bytes, size - position):
            # The file is shorter than it should be: what is missing is missing, not yet to be read.
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
    """How many bytes the batch at `at` needs to be judged; none if they are all there and wrong."""
    if rejection.reason != Reason.TRUNCATED:
        return 0
    if len(buffer) - at < HEADER_BYTES:
        return HEADER_BYTES
    return read_header(buffer, at).length


def _check_place(position: int, offset: int, epoch: int, header: Header) -> None:
    if header.base_offset != offset:
        raise Damage(position, offset, f"offset {header.base_offset} stands where {offset} belongs")
    if header.owner_epoch < epoch:
        raise Damage(position, offset, f"owner epoch falls from {epoch} to {header.owner_epoch}")


def hop(file: File, partition: Partition, first: int, size: int) -> Iterator[tuple[ScannedBatch, bytes]]:
    """Every batch with the bytes of its header, of which the owner's part is verified; bodies are not read."""
    position, offset, epoch = 0, first, 0
    window, window_at = b"", 0
    while position < size:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            # Batches larger than the window are hopped over one header at a time.
            small = at < len(window) + HEADER_BYTES
            window, window_at, at = file.read(position, HOP_WINDOW_BYTES if small else HEADER_BYTES), position, 0
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


def intact_batch_behind(file: File, partition: Partition, position: int, offsets: range, chunk_bytes: int) -> bool:
    """Whether a batch that begins at one of the offsets lies anywhere at or behind `position`.

    Headers that only look right are bounded by the bytes they make us check; beyond the bound we assume the worst,
    which is True.
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


def has_hole(file: File, partition: Partition, position: int) -> bool:
    """Whether the batch that begins at `position` lacks whole sectors: they were under way when the power went.

    What was not yet written reads as zeros, or lies beyond the end of the file. Damage to what was written once looks
    different, so a batch with a hole was never whole, and nobody ever vouched for it.
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
