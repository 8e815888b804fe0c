"""Files that tasks write by themselves: by day, named as Spark names them, and told of once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.spark.source import parquet_staging
from rostra.spark.source.columns import schema_of
from rostra.spark.source.options import COLUMNS
from rostra.spark.source.parquet_staging import DAY_US, DAYS_OPEN_MAX, by_day, escaped, stage
from rostra.spark.source.plan import Span

SPAN = Span("t/1", 7, 0, 0, 99)


def batch_of(moments_us: Sequence[int], first: int = 0) -> pa.RecordBatch:
    count = len(moments_us)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([b"%d" % (first + n) for n in range(count)], pa.binary()),
        "topic": pa.repeat("t/1", count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "timestamp": pa.array(moments_us, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "headers": pa.nulls(count, schema_of().field("headers").type),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema_of())


def staged(root: Path, batches: Sequence[pa.RecordBatch]) -> dict[str, int]:
    told = [row for batch in stage(batches, SPAN, str(root), COLUMNS) for row in batch.to_pylist()]
    assert len({row["file"] for row in told}) == len(told)
    assert {(row["topic"], row["topic_id"], row["partition"], row["first"], row["end"]) for row in told} == {
        ("t/1", 7, 0, 0, 99)
    }
    return {row["file"]: row["records"] for row in told if row["file"]}


def offsets(root: Path, names: Sequence[str]) -> list[int]:
    return sorted(
        offset for name in names for offset in pq.read_table(root / name, partitioning=None)["offset"].to_pylist()
    )


@given(st.lists(st.lists(st.integers(0, 12 * DAY_US), min_size=1, max_size=20), max_size=6))
def test_every_record_is_in_one_file_of_its_day(batches: list[list[int]]) -> None:
    counted = {}
    at = 0
    for moments in batches:
        parts = list(by_day(batch_of(moments, at)))
        assert [day for day, _ in parts] == sorted({moment // DAY_US for moment in moments})
        for day, part in parts:
            for record in part.to_pylist():
                counted[record["offset"]] = day
        at += len(moments)
    assert counted == {n: moment // DAY_US for n, moment in enumerate(moment for batch in batches for moment in batch)}


def test_more_days_than_files_may_be_open_are_more_files_and_lose_nothing(tmp_path: Path) -> None:
    days = DAYS_OPEN_MAX + 3
    turns = [
        batch_of([day * DAY_US + n for n in range(3)], 3 * (turn * days + day))
        for turn in range(2)
        for day in range(days)
    ]
    told = staged(tmp_path, turns)
    assert {name.split("/")[1] for name in told} == {f"date=1970-01-{day + 1:02}" for day in range(days)}
    assert all(name.startswith("topic=t%2F1/date=") for name in told)
    assert sum(told.values()) == 6 * days
    assert offsets(tmp_path, list(told)) == list(range(6 * days))


def test_many_row_groups_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_staging, "GROUP_BYTES", 1)
    told = staged(tmp_path, [batch_of([1, 2, 3], 3 * n) for n in range(4)])
    (name,) = told
    assert pq.ParquetFile(tmp_path / name).metadata.num_row_groups == 4
    assert offsets(tmp_path, [name]) == list(range(12))


def test_of_nothing_there_is_no_file_but_a_row_with_what_was_read(tmp_path: Path) -> None:
    assert staged(tmp_path, []) == {} and not list(tmp_path.iterdir())


def test_an_attempt_that_fails_tells_of_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch_of([1, 2])
        raise OSError("the broker is gone")

    with pytest.raises(OSError, match="gone"):
        list(stage(failing(), SPAN, str(tmp_path), COLUMNS))


def test_names_of_directories_are_written_as_spark_writes_them() -> None:
    assert escaped("plant/line 1=a%b[c]") == "plant%2Fline 1%3Da%25b%5Bc%5D"
