"""Lakes without Spark: a batch is added once, whatever dies between two steps, and one writer at a time."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, DateType, LongType, StringType, StructType

from rostra.errors import InvalidSetting, LakeChanged, LakeDamaged, LakeInUse
from rostra.spark.lake.delta_lake import DeltaLake
from rostra.spark.lake.files import LocalFiles
from rostra.spark.lake.lake import Lake
from rostra.spark.lake.lease import LockedFile
from rostra.spark.lake.offsets import StagedBatch, TopicOffsets
from rostra.spark.lake.parquet_lake import PLANS_KEPT, ParquetLake

COLUMNS = (
    StructType().add("value", BinaryType()).add("offset", LongType()).add("topic", StringType()).add("date", DateType())
)
FOLDER = "topic=a%2Fb/date=2023-11-14"
FORMATS: dict[str, type[Lake]] = {"parquet": ParquetLake, "delta": DeltaLake}
PLAIN = LocalFiles.names
both_formats = pytest.mark.parametrize("format", FORMATS)


class Died(Exception):
    """The writer, between two steps."""


class MortalFiles(LocalFiles):
    """Whoever uses them dies before a certain change of them."""

    def __init__(self, root: Path, lives: int) -> None:
        super().__init__(root)
        self.left = lives

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Died

    def create(self, path: str, content: bytes) -> None:
        self._live()
        super().create(path, content)

    def move(self, old: str, new: str) -> None:
        self._live()
        super().move(old, new)

    def delete(self, path: str) -> None:
        self._live()
        super().delete(path)


def lake_at(place: Path, format: str, lives: int = 1_000_000) -> Lake:
    return FORMATS[format](MortalFiles(place / "lake", lives))


def stage(lake: Lake, first: int, end: int, *, files: int = 2) -> list[Any]:
    """What tasks do: files, and a row for each of them."""
    rows = []
    bounds = [first + (end - first) * at // files for at in range(files + 1)]
    for at in range(files):
        start, stop = bounds[at], bounds[at + 1]
        path = Path(lake.staging) / FOLDER / f"{first}-{at}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        numbers = pa.array(range(start, stop), pa.int64())
        pq.write_table(pa.table({"value": numbers.cast(pa.string()).cast(pa.binary()), "offset": numbers}), path)
        name = os.path.relpath(path, lake.staging)
        span = {"topic": "a/b", "topic_id": 7, "partition": 0, "first": start, "end": stop}
        rows.append(SimpleNamespace(file=name, records=stop - start, **span))
    return rows


def values(place: Path, format: str) -> Counter[int]:
    """What a reader finds that knows nothing of Rostra."""
    lake = place / "lake"
    if format == "delta":
        import deltalake

        table = deltalake.DeltaTable(str(lake)).to_pyarrow_dataset().to_table()
    elif list(lake.glob("topic=*/date=*/*")):
        table = ds.dataset(lake, format="parquet", partitioning="hive").to_table()
    else:
        return Counter()
    return Counter(table["offset"].to_pylist())


def end_of(lake: Lake) -> int:
    held = lake.held([("a/b", 0)])
    return held["a/b"].ends[0] if "a/b" in held else 0


def orphans(place: Path, format: str) -> set[str]:
    """Files in the lake that are not a part of it."""
    there = {str(path) for path in (place / "lake").glob("topic=*/date=*/*")}
    if format == "parquet":
        return {name for name in there if not name.endswith(".parquet")}
    import deltalake

    return there - set(deltalake.DeltaTable(str(place / "lake")).file_uris())


@both_formats
@pytest.mark.requirement("PL-10:exactly-once")
def test_a_batch_is_added_once_wherever_its_writer_dies(format: str, tmp_path: Path) -> None:
    lives = 0
    died = True
    while died:
        place = tmp_path / str(lives)
        mortal = lake_at(place, format, lives)
        try:
            mortal.open(COLUMNS)
            for start in (0, 10):
                mortal.adopt(stage(mortal, start, start + 10), "q", start // 10)
            died = False
        except Died:
            died = True
        mortal._in_a_batch = True  # It has no time to delete what is its own.
        mortal._files.left = 1_000_000  # type: ignore[attr-defined]
        mortal.close()
        survivor = lake_at(place, format)
        survivor.open(COLUMNS)
        assert set(values(place, format).values()) <= {1}
        while (start := end_of(survivor)) < 20:
            survivor.adopt(stage(survivor, start, start + 10), "q2", start // 10)
        survivor.close()
        assert values(place, format) == Counter(range(20)), f"after {lives} steps"
        assert orphans(place, format) == set()
        assert not (place / "lake.rostra" / "runs").exists() or not list((place / "lake.rostra" / "runs").iterdir())
        lives += 1
    assert lives > 8


@both_formats
def test_a_lake_has_one_writer_at_a_time(format: str, tmp_path: Path) -> None:
    first, second = lake_at(tmp_path, format), lake_at(tmp_path, format)
    first.open(COLUMNS)
    with pytest.raises(LakeInUse, match=f"process {os.getpid()} on "):
        second.open(COLUMNS)
    first.adopt(stage(first, 0, 4), "q", 0)
    first.close()
    second.open(COLUMNS)
    assert end_of(second) == 4
    second.close()


@both_formats
def test_a_writer_that_has_lost_its_lease_adds_nothing(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lake_at(tmp_path, format), lake_at(tmp_path, format)
    first.open(COLUMNS)
    (tmp_path / "lake.rostra" / "writer.lock").unlink()
    rows = stage(first, 0, 4)
    with pytest.raises(LakeChanged, match="was removed"):
        first.adopt(rows, "q", 0)
    second.open(COLUMNS)
    second.adopt(stage(second, 0, 6), "q2", 0)
    with pytest.raises(LakeChanged, match="made anew"):
        first.adopt(stage(first, 0, 4), "q", 0)
    assert values(tmp_path, format) == Counter(range(6))
    # Without the check of the lease it is the lake itself that refuses.
    monkeypatch.setattr(LockedFile, "check", lambda lease: None)
    with pytest.raises(LakeChanged, match="another writer"):
        first.adopt(stage(first, 6, 9), "q", 1)
    assert values(tmp_path, format) == Counter(range(6))
    first.close()
    second.close()


@both_formats
def test_a_writer_that_is_replaced_in_the_middle_of_a_batch_adds_nothing(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no lease at all: between its last look at the lake and the commit another one opens it."""
    monkeypatch.setattr(LockedFile, "check", lambda lease: None)
    first, second = lake_at(tmp_path, format), lake_at(tmp_path, format)
    first.open(COLUMNS)
    (tmp_path / "lake.rostra" / "writer.lock").unlink()
    plain = first._targets

    def replaced(batch: StagedBatch, prefix: str) -> dict[str, str]:
        targets = plain(batch, prefix)
        second.open(COLUMNS)
        second.adopt(stage(second, 0, 6), "q2", 0)
        return targets

    # The new one does not delete what the old one has staged: the worst there is.
    monkeypatch.setattr(LocalFiles, "names", lambda files, path: [] if path.endswith("/runs") else PLAIN(files, path))
    monkeypatch.setattr(first, "_targets", replaced)
    with pytest.raises(LakeChanged, match="another writer"):
        first.adopt(stage(first, 0, 4), "q", 0)
    assert values(tmp_path, format) == Counter(range(6))
    first.close()
    second.close()


@both_formats
def test_what_is_in_the_lake_is_not_added_again_from_another_checkpoint(format: str, tmp_path: Path) -> None:
    lake = lake_at(tmp_path, format)
    lake.open(COLUMNS)
    lake.adopt(stage(lake, 0, 10), "q", 0)
    with pytest.raises(LakeChanged, match="holds a/b/0 up to 10, and a batch begins at 5"):
        lake.adopt(stage(lake, 5, 12, files=1), "another", 0)
    lake.close()
    assert values(tmp_path, format) == Counter(range(10))


@both_formats
def test_files_of_attempts_that_do_not_count_are_deleted_with_their_batch(format: str, tmp_path: Path) -> None:
    lake = lake_at(tmp_path, format)
    lake.open(COLUMNS)
    rows = stage(lake, 0, 10)
    stage(lake, 100, 110)
    lake.adopt(rows, "q", 0)
    assert values(tmp_path, format) == Counter(range(10))
    assert not Path(lake.staging).exists()
    lake.close()


@both_formats
def test_offsets_at_which_topics_begin_and_ids_are_remembered(format: str, tmp_path: Path) -> None:
    lake = lake_at(tmp_path, format)
    lake.open(COLUMNS)
    lake.begin({"a/b": TopicOffsets(7, {0: 5, 1: 0})})
    lake.close()
    again = lake_at(tmp_path, format)
    again.open(COLUMNS)
    assert again.held([("a/b", 0), ("a/b", 1), ("c", 0)]) == {"a/b": TopicOffsets(7, {0: 5, 1: 0})}
    again.close()


@both_formats
@pytest.mark.requirement("PL-10:schema")
def test_columns_may_come_later_and_none_changes_its_type(format: str, tmp_path: Path) -> None:
    lake = lake_at(tmp_path, format)
    lake.open(COLUMNS)
    lake.adopt(stage(lake, 0, 3), "q", 0)
    lake.close()
    wider = StructType([*COLUMNS.fields]).add("price", LongType())
    lake = lake_at(tmp_path, format)
    lake.open(wider)
    assert lake.columns()["price"] == "bigint"
    lake.close()
    wrong = StructType().add("value", StringType())
    lake = lake_at(tmp_path, format)
    with pytest.raises(InvalidSetting, match="column value is binary"):
        lake.open(wrong)
    assert values(tmp_path, format) == Counter(range(3))
    lake_at(tmp_path, format).open(wider)


def test_a_plan_whose_files_are_gone_is_told_and_plans_are_bounded(tmp_path: Path) -> None:
    lake = lake_at(tmp_path, "parquet")
    lake.open(COLUMNS)
    for start in range(PLANS_KEPT + 3):
        lake.adopt(stage(lake, start, start + 1, files=1), "q", start)
    plans = sorted((tmp_path / "lake.rostra" / "plans").glob("*.json"))
    assert len(plans) == PLANS_KEPT
    lake.close()
    plans[-1].with_suffix(".done").unlink()
    last = max((tmp_path / "lake").glob("topic=*/date=*/*"))
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(LakeDamaged, match=last.name):
        lake_at(tmp_path, "parquet").open(COLUMNS)


def test_a_stream_without_offsets_is_refused_when_its_checkpoint_is_a_new_one(tmp_path: Path) -> None:
    lake = lake_at(tmp_path, "parquet")
    for query in ("q", "q"):
        lake.claim("checkpoint", query)
    lake.claim("another", "q2")
    with pytest.raises(LakeChanged, match="the checkpoint checkpoint is a new one"):
        lake.claim("checkpoint", "q3")


def test_small_files_of_a_table_are_put_together_and_readers_of_the_old_version_are_not_disturbed(
    tmp_path: Path,
) -> None:
    import deltalake

    lake = lake_at(tmp_path, "delta")
    lake.open(COLUMNS)
    for start in range(0, 90, 10):
        lake.adopt(stage(lake, start, start + 10), "q", start // 10)
    before = deltalake.DeltaTable(str(tmp_path / "lake"))
    assert lake.tidy() == 17
    lake.adopt(stage(lake, 90, 100), "q", 9)
    lake.close()
    assert Counter(before.to_pyarrow_dataset().to_table()["offset"].to_pylist()) == Counter(range(90))
    assert values(tmp_path, "delta") == Counter(range(100))
    again = lake_at(tmp_path, "delta")
    again.open(COLUMNS)
    assert end_of(again) == 100
    again.close()
