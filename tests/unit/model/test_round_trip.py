"""What is encoded is what is decoded, by every path."""

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.model.arrow import encode_arrow
from rostra.model.batch import Codec, Flag, read_header, stamp
from rostra.model.decode import ARROW_COUNT_MIN, Batch, Record, iterate
from rostra.model.encode import ALONE_BYTES_MORE_MAX, encode, encode_alone
from tests.unit.model.batches import HERE, Sample, moments_us, samples


@pytest.fixture(params=["pyarrow", "plain"])
def pyarrow_or_not(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setitem(sys.modules, "pyarrow", None)
        yield


def expected_headers(sample: Sample) -> list[Any]:
    given_headers = sample.columns.get("headers") or [None] * len(sample.values)
    return [tuple(headers or ()) for headers in given_headers]


def expected_timestamps(sample: Sample) -> list[int]:
    common = [sample.columns["timestamp_us"]] * len(sample.values)
    return list(sample.columns.get("timestamps_us") or common)


@pytest.mark.usefixtures("pyarrow_or_not")
@given(sample=samples())
def test_every_column_comes_back(sample: Sample) -> None:
    batch = Batch(bytes(sample.stamped(base_offset=1000)))
    count = len(sample.values)
    keys = sample.columns.get("keys") or [None] * count
    assert batch.count == len(batch) == count
    assert batch.values() == sample.values
    assert batch.keys() == keys
    assert batch.timestamps() == expected_timestamps(sample)
    assert batch.headers() == expected_headers(sample)
    assert batch.offsets() == list(range(1000, 1000 + count))
    assert (batch.base_offset, batch.next_offset) == (1000, 1000 + count)
    assert not batch.is_control
    last = batch.records("plant/line", 3)[-1]
    assert last == Record(
        topic="plant/line",
        partition=3,
        offset=999 + count,
        timestamp_us=expected_timestamps(sample)[-1],
        key=keys[-1],
        value=sample.values[-1],
        headers=expected_headers(sample)[-1],
    )


@given(samples())
def test_the_header_says_what_the_producer_said(sample: Sample) -> None:
    header = read_header(sample.encoded())
    moments = expected_timestamps(sample)
    for name in ("producer", "producer_epoch", "sequence"):
        assert getattr(header, name) == sample.columns[name]
    assert (header.base_timestamp_us, header.max_timestamp_us) == (min(moments), max(moments))
    assert header.count == len(sample.values)


@given(
    value=st.binary(max_size=300),
    timestamp_us=moments_us,
    producer=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(0, (1 << 32) - 1),
    sequence=st.integers(0, (1 << 32) - 1),
)
def test_a_value_alone_gives_the_bytes_of_the_bulk_encoder(
    value: bytes, timestamp_us: int, producer: int, epoch: int, sequence: int
) -> None:
    alone = encode_alone(value, timestamp_us=timestamp_us, producer=producer, producer_epoch=epoch, sequence=sequence)
    assert alone == encode(
        [value], timestamp_us=timestamp_us, producer=producer, producer_epoch=epoch, sequence=sequence
    )
    assert len(alone) <= len(value) + ALONE_BYTES_MORE_MAX
    assert Batch(alone).values() == [value]


@given(samples(), st.data())
def test_arrow_columns_give_the_bytes_of_the_bulk_encoder(sample: Sample, choices: st.DataObject) -> None:
    table = Batch(sample.stamped()).to_arrow()
    assert table.column("value").to_pylist() == sample.values
    assert table.column("offset").to_pylist() == list(range(1000, 1000 + len(sample.values)))
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == expected_timestamps(sample)
    pairs = [
        tuple((pair["name"], pair["value"]) for pair in headers) for headers in table.column("headers").to_pylist()
    ]
    assert pairs == expected_headers(sample)

    stamps = {name: sample.columns[name] for name in ("producer", "producer_epoch", "sequence", "codec")}
    assert encode_arrow(table, **stamps) == sample.encoded()
    start = choices.draw(st.integers(min_value=0, max_value=len(sample.values) - 1))
    part = Sample(
        sample.values[start:],
        {name: column[start:] if isinstance(column, list) else column for name, column in sample.columns.items()},
    )
    assert encode_arrow(table.slice(start), **stamps) == part.encoded()


def test_arrow_values_of_other_types_and_chunks_are_taken() -> None:
    plain = encode([b"one", None, b"three"], timestamp_us=5)
    chunks = pa.chunked_array([pa.array(["one", None]), pa.array(["three"])])
    assert encode_arrow(chunks, timestamp_us=5) == plain
    large = pa.table({"value": pa.array([b"one", None, b"three"], pa.large_binary())})
    assert encode_arrow(large, timestamp_us=5) == plain


def test_arrow_headers_may_be_null_where_a_record_has_none() -> None:
    headers = pa.array([None, [{"name": "a", "value": b"b"}]])
    table = pa.table({"value": pa.array([b"x", b"y"]), "headers": headers})
    expected = encode([b"x", b"y"], headers=[None, [("a", b"b")]], timestamp_us=5)
    assert encode_arrow(table, timestamp_us=5) == expected


def test_an_unknown_arrow_column_is_named() -> None:
    with pytest.raises(ValueError, match="does not know colour"):
        encode_arrow(pa.table({"value": [b"x"], "colour": ["red"]}))
    with pytest.raises(ValueError, match="needs a column value"):
        encode_arrow(pa.table({"key": [b"x"]}))


def test_arrow_arrays_lie_over_the_received_bytes() -> None:
    batch = Sample([b"value"] * 40, {"keys": [b"k"] * 40, "timestamps_us": list(range(40))}).stamped()
    received = pa.py_buffer(bytes(batch))
    table = Batch(memoryview(received)).to_arrow()
    inside = range(received.address, received.address + received.size)
    for name in ("key", "value", "timestamp"):
        for buffer in table.column(name).buffers():
            assert buffer is None or buffer.address in inside


@pytest.mark.usefixtures("pyarrow_or_not")
@pytest.mark.parametrize("count", [0, 1, 7, ARROW_COUNT_MIN, 100])
def test_a_compacted_batch_keeps_its_offsets(count: int) -> None:
    deltas = [3 * place + 1 for place in range(count)]
    batch = encode([b"kept"] * count, timestamp_us=1, offset_deltas=deltas)
    stamp(batch, partition=HERE, base_offset=50, owner_epoch=1, last_offset_delta=400)
    compacted = Batch(batch)
    assert compacted.header.flags == Flag.OFFSET_DELTAS
    assert compacted.offsets() == [50 + delta for delta in deltas]
    assert compacted.values() == [b"kept"] * count
    assert compacted.next_offset == 451


def test_arrow_shows_the_offsets_of_a_compacted_batch() -> None:
    batch = encode([b"kept", None], timestamp_us=1, offset_deltas=[4, 9])
    stamp(batch, partition=HERE, base_offset=50, owner_epoch=1, last_offset_delta=20)
    assert Batch(batch).to_arrow().column("offset").to_pylist() == [54, 59]


def test_an_older_pyarrow_shows_the_same_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pa, "arange", raising=False)
    assert Batch(Sample([b"a", b"b"]).stamped()).to_arrow().column("offset").to_pylist() == [1000, 1001]


def test_without_pyarrow_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install"):
        Batch(encode([b"x"], timestamp_us=1)).to_arrow()


def test_a_control_batch_says_so() -> None:
    assert Batch(encode([b"checkpoint"], timestamp_us=1, control=True)).is_control


def test_columns_that_say_nothing_are_left_out() -> None:
    bare = encode([b"a", b"b"], timestamp_us=5)
    wordy = encode(
        [b"a", b"b"],
        keys=[None, None],
        headers=[None, []],
        timestamp_us=0,
        timestamps_us=[5, 5],
    )
    assert wordy == bare
    assert read_header(bare).flags == 0


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compression_is_kept_only_where_it_saves(codec: Codec) -> None:
    repetitive = encode([b"again and " * 20] * 20, timestamp_us=1, codec=codec)
    assert read_header(repetitive).codec == codec
    assert len(repetitive) < read_header(repetitive).raw_body_bytes
    assert encode([b"x"], timestamp_us=1, codec=codec) == encode([b"x"], timestamp_us=1)


@given(st.lists(samples(records_max=5), max_size=5))
def test_a_payload_comes_apart_into_its_batches(parts: list[Sample]) -> None:
    payload = b"".join(bytes(part.stamped()) for part in parts)
    assert [batch.values() for batch in iterate(payload)] == [part.values for part in parts]


@pytest.mark.parametrize("column", ["keys", "headers", "timestamps_us", "offset_deltas"])
def test_columns_of_another_length_are_refused(column: str) -> None:
    with pytest.raises(ValueError, match="for 2 values"):
        Sample([b"a", b"b"]).encoded(**{column: [None]})


@pytest.mark.parametrize(
    "field",
    [
        {"timestamp_us": 1 << 63},
        {"timestamps_us": [0, 1 << 63]},
        {"producer": -1},
        {"producer_epoch": 1 << 32},
        {"sequence": -1},
        {"offset_deltas": [0, 1 << 31]},
    ],
)
def test_a_number_too_large_for_its_field_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Sample([b"a", b"b"]).encoded(**field)


def test_a_header_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="leave the header out"):
        Sample([b"a"]).encoded(headers=[[("name", None)]])
