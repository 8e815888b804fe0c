"""Every combination of flags with every codec, one by one rather than by chance."""

import sys
from functools import reduce
from itertools import chain, combinations
from operator import or_
from typing import Any

import pytest

from rostra.model.batch import Codec, Flag, read_header, stamp
from rostra.model.check import check_stored
from rostra.model.decode import Batch
from rostra.model.encode import encode
from tests.unit.model.batches import HERE

COUNT = 64
COMBINATIONS = [
    reduce(or_, chosen, Flag(0))
    for chosen in chain.from_iterable(combinations(Flag, size) for size in range(len(Flag) + 1))
    if Flag.KEY_NULLS not in chosen or Flag.KEYS in chosen
]


def columns_of(flags: Flag) -> dict[str, Any]:
    """Arguments of `encode` that need exactly these flags, repetitive enough to be compressed."""
    places = range(COUNT)
    columns: dict[str, Any] = {"values": [b"again and again"] * COUNT, "control": Flag.CONTROL in flags}
    if Flag.VALUE_NULLS in flags:
        columns["values"] = [None if place % 3 == 1 else b"again and again" for place in places]
    if Flag.KEYS in flags:
        nulls = Flag.KEY_NULLS in flags
        columns["keys"] = [None if nulls and place % 5 == 2 else b"key" for place in places]
    if Flag.TIMESTAMPS in flags:
        columns["timestamps_us"] = [10 * place for place in places]
    if Flag.HEADERS in flags:
        columns["headers"] = [(("name", b"content"),) * (place % 3) for place in places]
    if Flag.OFFSET_DELTAS in flags:
        columns["offset_deltas"] = [2 * place for place in places]
    return columns


def test_no_combination_is_left_out() -> None:
    assert len(COMBINATIONS) == 2**7 * 3 // 4


@pytest.mark.parametrize("reader", ["pyarrow", "plain"])
@pytest.mark.parametrize("codec", Codec)
def test_every_combination_of_flags_comes_back(codec: Codec, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow

    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow if reader == "pyarrow" else None)
    for flags in COMBINATIONS:
        columns = columns_of(flags)
        encoded = encode(**columns, timestamp_us=5, codec=codec)
        stamp(encoded, partition=HERE, base_offset=100, owner_epoch=1, last_offset_delta=2 * COUNT)
        header = read_header(encoded)
        assert (header.flags, header.codec) == (flags, codec)
        assert check_stored(encoded, 0, HERE) == len(encoded)
        batch = Batch(encoded)
        assert batch.is_control == (Flag.CONTROL in flags)
        assert batch.values() == columns["values"]
        assert batch.keys() == columns.get("keys", [None] * COUNT)
        assert batch.timestamps() == columns.get("timestamps_us", [5] * COUNT)
        assert batch.headers() == columns.get("headers", [()] * COUNT)
        assert batch.offsets() == [100 + delta for delta in columns.get("offset_deltas", range(COUNT))]
