"""docs/formats/batch.md says what the code does."""

import re
from pathlib import Path
from struct import calcsize

import pytest

from rostra.model.batch import FIELDS, HEADER_BYTES, MAGIC, Codec, Flag, Header, OwnerFlag, stamp
from rostra.model.check import check_stored
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import Partition, PartitionIndex, TopicId

DOCUMENT = Path(__file__).parents[3] / "docs" / "formats" / "batch.md"
PLACE = Partition(TopicId(0x0123_4567_89AB_CDEF), PartitionIndex(2))

NAMES = {
    "magic": "magic `RST1`",
    "length": "length of the whole batch",
    "base_offset": "base offset",
    "owner_epoch": "owner epoch",
    "last_offset_delta": "last offset delta (count−1 unless compacted)",
    "owner_flags": "owner flags (suppressed by ownership, …)",
    "reserved_30": "reserved",
    "placement_crc": "placement CRC: CRC-32C of bytes 0–32 and the body CRC, seeded with topic id and partition",
    "body_crc": "body CRC: CRC-32C of bytes 40–end",
    "producer": "producer id",
    "producer_epoch": "producer epoch",
    "sequence": "base sequence",
    "count": "record count n",
    "flags": "flags (control, timestamps, keys, key nulls, value nulls, headers, offset deltas)",
    "codec": "codec (none, lz4, zstd)",
    "reserved_63": "reserved",
    "base_timestamp_us": "base timestamp",
    "max_timestamp_us": "max timestamp",
    "raw_body_bytes": "body bytes when decompressed (checked against the limit before inflating, and while)",
    "reserved_84": "reserved",
}


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading."""
    after = DOCUMENT.read_text(encoding="utf-8").split(f"\n| {heading} |", 1)[1]
    rows = after.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def example() -> bytearray:
    batch = encode(
        [b"hello", None],
        keys=[b"a", b"b"],
        headers=[[("h", b"1")], None],
        timestamp_us=1_700_000_000_000_000,
        producer=7,
        producer_epoch=1,
        sequence=10,
    )
    stamp(batch, partition=PLACE, base_offset=41, owner_epoch=3)
    return batch


def hex_lines(batch: bytes | bytearray) -> str:
    return "\n".join(f"{at:04x}  {batch[at : at + 16].hex(' ')}" for at in range(0, len(batch), 16))


def printed_example() -> tuple[str, bytes]:
    found = re.search(r"```hex\n(.*?)\n?```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1], bytes.fromhex("".join(line[6:] for line in found[1].splitlines()))


def test_the_header_table_is_the_header() -> None:
    at, expected = 0, []
    for name, form in FIELDS:
        size = calcsize("<" + form)
        expected.append([str(at), str(size), NAMES[name]])
        at += size
    *fields, body = table("at")
    assert [row[:3] for row in fields] == expected
    assert body[:2] == [str(HEADER_BYTES), "…"]
    assert body[2].startswith("body")
    assert Header.__struct_fields__ == tuple(name for name, _ in FIELDS)
    assert MAGIC.decode() in NAMES["magic"]


def test_the_table_says_who_writes_what() -> None:
    bare, stamped = encode([b"x"], timestamp_us=1), encode([b"x"], timestamp_us=1)
    stamp(stamped, partition=PLACE, base_offset=(1 << 62) + 1, owner_epoch=(1 << 64) - 1, owner_flags=1)
    owners = [range(int(row[0]), int(row[0]) + int(row[1])) for row in table("at") if row[3] == "owner"]
    changed = [at for at in range(len(bare)) if bare[at] != stamped[at]]
    assert changed
    assert all(any(at in field for field in owners) for at in changed)


@pytest.mark.parametrize(("heading", "members"), [("flag", Flag), ("owner flag", OwnerFlag), ("codec", Codec)])
def test_flags_and_codecs_are_listed_with_their_values(
    heading: str, members: type[Flag] | type[OwnerFlag] | type[Codec]
) -> None:
    listed = [(row[0].strip("`"), int(row[1])) for row in table(heading)]
    assert listed == [(str(member.name), member.value) for member in members]


def test_the_worked_example_is_what_the_code_writes() -> None:
    printed, _ = printed_example()
    assert printed == hex_lines(example())


def test_the_worked_example_decodes() -> None:
    _, batch = printed_example()
    assert check_stored(batch, 0, PLACE) == len(batch)
    first, second = Batch(batch).records("t", 2)
    assert (first.offset, first.key, first.value, first.headers) == (41, b"a", b"hello", (("h", b"1"),))
    assert (second.offset, second.key, second.value, second.headers) == (42, b"b", None, ())
    assert first.timestamp_us == second.timestamp_us == 1_700_000_000_000_000
