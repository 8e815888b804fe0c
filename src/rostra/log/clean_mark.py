"""The clean-stop mark: a file with the end of every partition, which saves the next start from scanning segments."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

import msgspec
from crc32c import crc32c

from rostra.log.files import Files
from rostra.model.ids import Partition, PartitionIndex, TopicId

PATH = "clean"
NEXT_PATH = "clean.next"
MAGIC = b"RSC1"
HEADER_FIELDS: tuple[tuple[str, str], ...] = (("magic", "4s"), ("crc", "I"), ("rows", "I"))
ROW_FIELDS: tuple[tuple[str, str], ...] = (
    ("topic", "Q"),
    ("partition", "I"),
    ("end", "Q"),
    ("bytes", "Q"),
    ("headers_crc", "I"),
)
HEADER = Struct("<" + "".join(form for _, form in HEADER_FIELDS))
ROW = Struct("<" + "".join(form for _, form in ROW_FIELDS))
CHECKED_FROM = 8


class CleanEnd(msgspec.Struct, frozen=True, gc=False):
    """Where a partition ended, the size of its last segment, and the checksum of all headers in that segment."""

    end: int
    bytes: int
    headers_crc: int


def write_clean_mark(files: Files, ends: Mapping[Partition, CleanEnd]) -> None:
    rows = [
        ROW.pack(partition.topic, partition.index, end.end, end.bytes, end.headers_crc)
        for partition, end in sorted(ends.items())
    ]
    checked = len(rows).to_bytes(4, "little") + b"".join(rows)
    file = files.open(NEXT_PATH, create=True)
    file.truncate(0)
    file.append([MAGIC, crc32c(checked).to_bytes(4, "little"), checked])
    file.begin_sync()()
    file.close()
    files.rename(NEXT_PATH, PATH)
    files.sync_directory("")


def take_clean_mark(files: Files) -> dict[Partition, CleanEnd] | None:
    """Reads and durably removes the mark: from now on a crash counts as an unclean stop. None if there is none."""
    if not files.exists(PATH):
        return None
    file = files.open(PATH)
    written = file.read(0, file.size())
    file.close()
    files.remove(PATH)
    files.sync_directory("")
    return _decode(written)


def _decode(written: bytes) -> dict[Partition, CleanEnd] | None:
    if len(written) < HEADER.size:
        return None
    magic, crc, rows = HEADER.unpack_from(written)
    if magic != MAGIC or crc != crc32c(written[CHECKED_FROM:]) or len(written) != HEADER.size + rows * ROW.size:
        return None
    return {
        Partition(TopicId(topic), PartitionIndex(index)): CleanEnd(*end)
        for topic, index, *end in ROW.iter_unpack(written[HEADER.size :])
    }
