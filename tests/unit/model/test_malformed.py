"""Bodies that contradict themselves under valid checksums: refused, never read out of range."""

import sys
from collections.abc import Iterator
from struct import pack_into
from typing import Any

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rostra.errors import BatchRejected, CodecUnavailable
from rostra.model.batch import HEADER_BYTES, Codec, Reason, read_header
from rostra.model.decode import Batch, iterate
from rostra.model.encode import encode
from tests.unit.model.batches import Sample, samples

COUNT = 40


@pytest.fixture(params=["pyarrow", "plain"])
def pyarrow_or_not(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setitem(sys.modules, "pyarrow", None)
        yield


def decode_all(batch: bytes | bytearray) -> list[Any]:
    decoded = Batch(batch, raw_body_bytes_max=1 << 20)
    return [
        decoded.values(),
        decoded.keys(),
        decoded.timestamps(),
        decoded.offsets(),
        decoded.headers(),
    ]


def outcome(batch: bytes | bytearray) -> Any:
    try:
        columns = decode_all(batch)
    except BatchRejected:
        return "rejected"
    assert {len(column) for column in columns} == {read_header(batch).count}
    return columns


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    batch = draw(samples()).stamped(codec=draw(st.sampled_from(Codec)))
    for _ in range(draw(st.integers(1, 4))):
        form, limit = draw(st.sampled_from([("<B", 1 << 8), ("<H", 1 << 16), ("<I", 1 << 32)]))
        at = draw(st.integers(4, len(batch) - 4))
        number = draw(st.integers(0, 64) | st.integers(0, limit - 1))
        pack_into(form, batch, at, number % limit)
    return bytes(batch)


@given(damaged())
def test_damage_is_refused_or_decoded_alike_with_and_without_pyarrow(batch: bytes) -> None:
    with_pyarrow = outcome(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        assert outcome(batch) == with_pyarrow


@given(damaged())
def test_damage_never_gives_an_invalid_arrow_batch(batch: bytes) -> None:
    try:
        table = Batch(batch, raw_body_bytes_max=1 << 20).to_arrow()
    except BatchRejected:
        return
    table.validate(full=True)
    assert table.num_rows == read_header(batch).count


@given(st.binary(max_size=300))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(BatchRejected):
        decode_all(garbage)
    with pytest.raises(BatchRejected):
        decode_all(b"RST1" + garbage)


@pytest.mark.usefixtures("pyarrow_or_not")
@pytest.mark.parametrize("count", [3, COUNT])
@pytest.mark.parametrize("offset", [-1, -(2**31), 0, 7, 2**31 - 1])
def test_offsets_that_fall_are_refused(count: int, offset: int) -> None:
    batch = encode([b"abcdefg"] * count, timestamp_us=1)
    pack_into("<i", batch, HEADER_BYTES + 8, offset)
    if 7 <= offset <= 21:
        assert outcome(batch) != "rejected"
    else:
        assert outcome(batch) == "rejected"


@given(first=st.integers(-1, 1), last=st.integers(-8, 40), size=st.integers(0, 24), cut=st.integers(0, 16))
def test_a_value_alone_is_refused_or_decoded_as_its_body_is_laid_out(
    first: int, last: int, size: int, cut: int
) -> None:
    batch = encode([bytes(range(size))], timestamp_us=1)
    pack_into("<ii", batch, HEADER_BYTES, first, last)
    del batch[max(len(batch) - cut, HEADER_BYTES) :]
    pack_into("<I", batch, 4, len(batch))
    pack_into("<I", batch, 80, len(batch) - HEADER_BYTES)
    try:
        _, layout = Batch(batch).body()
    except BatchRejected:
        with pytest.raises(BatchRejected):
            Batch(batch).values()
    else:
        at = layout.values.bytes_at
        assert Batch(batch).values() == [bytes(batch[at : at + last])]


@pytest.mark.usefixtures("pyarrow_or_not")
@pytest.mark.parametrize("deltas", [[0, 0], [5, 3], [1, 11], [-1, 3]])
def test_offset_deltas_that_do_not_rise_are_refused(deltas: list[int]) -> None:
    batch = encode([b"a", b"b"], timestamp_us=1, offset_deltas=deltas)
    pack_into("<I", batch, 24, 10)
    with pytest.raises(BatchRejected):
        Batch(batch).offsets()


def test_offsets_beyond_63_bits_are_refused() -> None:
    batch = encode([b"a"], timestamp_us=1)
    pack_into("<Q", batch, 8, (1 << 63) - 1)
    with pytest.raises(BatchRejected) as rejected:
        Batch(batch)
    assert rejected.value.reason == Reason.OFFSETS


@pytest.mark.usefixtures("pyarrow_or_not")
def test_a_header_name_that_is_not_text_is_refused() -> None:
    batch = encode([b"v"], headers=[[("name", b"")]], timestamp_us=1)
    batch[batch.index(b"name")] = 0xFF
    with pytest.raises(BatchRejected, match="UTF-8"):
        Batch(batch).headers()


def test_arrow_refuses_a_header_name_that_is_not_text() -> None:
    batch = encode([b"v"], headers=[[("name", b"")]], timestamp_us=1)
    batch[batch.index(b"name")] = 0xFF
    with pytest.raises(BatchRejected):
        Batch(batch).to_arrow()


@given(samples(records_max=4))
def test_a_payload_that_ends_within_a_batch_is_refused(sample: Sample) -> None:
    batch = bytes(sample.stamped())
    for size in range(1, len(batch)):
        parts = iterate(batch + batch[:size])
        next(parts)
        with pytest.raises(BatchRejected) as rejected:
            next(parts)
        assert rejected.value.reason == Reason.TRUNCATED


def compressed_batch(codec: Codec, body: bytes, raw_bytes: int) -> bytearray:
    batch = encode([b"again " * 50], timestamp_us=1)[:HEADER_BYTES] + body
    pack_into("<I", batch, 4, len(batch))
    pack_into("<B", batch, 62, codec)
    pack_into("<I", batch, 80, raw_bytes)
    return batch


RAW = bytes(encode([b"again " * 50], timestamp_us=1)[HEADER_BYTES:])
BOMB = bytes(1 << 24)


def zstd_frame(raw: bytes, *, declared: bool) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=declared).compress(raw)


@pytest.mark.parametrize(
    ("codec", "body", "raw_bytes"),
    [
        (Codec.ZSTD, zstd_frame(BOMB, declared=True), len(RAW)),
        (Codec.ZSTD, zstd_frame(BOMB, declared=False), len(RAW)),
        (Codec.ZSTD, zstd_frame(RAW, declared=True), len(RAW) + 8),
        (Codec.ZSTD, zstd_frame(RAW[:-8], declared=False), len(RAW)),
        (Codec.ZSTD, zstd_frame(RAW, declared=False), len(RAW)),
        (Codec.ZSTD, zstd_frame(b"", declared=True), 0),
        (Codec.ZSTD, zstd_frame(RAW, declared=True) + b"more", len(RAW)),
        (Codec.ZSTD, zstd_frame(RAW, declared=True)[:-3], len(RAW)),
        (Codec.ZSTD, b"not a frame", len(RAW)),
        (Codec.ZSTD, b"", len(RAW)),
        (Codec.LZ4, lz4.block.compress(BOMB, store_size=False), len(RAW)),
        (Codec.LZ4, lz4.block.compress(RAW, store_size=False), len(RAW) + 8),
        (Codec.LZ4, lz4.block.compress(RAW, store_size=False), 0),
        (Codec.LZ4, b"not a block", len(RAW)),
        (Codec.LZ4, b"", len(RAW)),
    ],
)
def test_a_body_that_does_not_inflate_to_its_claimed_size_is_refused(codec: Codec, body: bytes, raw_bytes: int) -> None:
    with pytest.raises(BatchRejected) as rejected:
        Batch(compressed_batch(codec, body, raw_bytes)).values()
    assert rejected.value.reason == Reason.COMPRESSION


def test_nothing_is_inflated_beyond_the_reader_s_limit() -> None:
    batch = encode([b"again " * 50] * 10, timestamp_us=1, codec=Codec.ZSTD)
    raw_bytes = read_header(batch).raw_body_bytes
    assert len(Batch(batch, raw_body_bytes_max=raw_bytes).values()) == 10
    with pytest.raises(BatchRejected) as rejected:
        Batch(batch, raw_body_bytes_max=raw_bytes - 1).values()
    assert rejected.value.reason == Reason.TOO_LARGE


@pytest.mark.parametrize(
    ("codec", "library", "extra"),
    [(Codec.LZ4, "lz4.block", "lz4"), (Codec.ZSTD, "zstandard", "zstd")],
)
def test_a_missing_library_is_named_with_its_remedy(
    codec: Codec, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = encode([b"again " * 50], timestamp_us=1, codec=codec)
    monkeypatch.setitem(sys.modules, library, None)
    for use in (
        lambda: Batch(batch).values(),
        lambda: encode([b"again " * 50], timestamp_us=1, codec=codec),
    ):
        with pytest.raises(CodecUnavailable, match=rf"pip install 'rostra\[{extra}\]'"):
            use()
