"""Small files put together: of a Delta table in place, of plain Parquet files in a new lake.

Readers of plain files know no versions: one that lists a directory while files are replaced finds records twice or not
at all. So the old lake stays as it is, and the new one continues it: an archive into it begins where the old one ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rostra.errors import InvalidSetting
from rostra.spark.lake.files import LakeFile, LakeFiles, files_of
from rostra.spark.lake.formats import format_there, lake_of
from rostra.spark.lake.lake import WRITING, conf_set, ddl
from rostra.spark.lake.offsets import StagedBatch
from rostra.spark.lake.parquet_lake import ParquetLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 128 << 20
ORDER = ("partition", "offset", "start")


class CompactionResult(msgspec.Struct, frozen=True):
    files_before: int
    files_after: int


def compact(spark: SparkSession, lake: str, to: str | None = None) -> CompactionResult:
    """Put the small files of a lake together; InvalidSetting unless `to` fits its format."""
    source = lake_of(spark, lake)
    columns = _columns(spark, source.columns())
    if isinstance(source, ParquetLake):
        if to is None:
            raise InvalidSetting("to", "plain Parquet files are put together in a new lake: name it")
        return _into(spark, source, columns, to)
    if to is not None:
        raise InvalidSetting("to", "a Delta table is compacted in place")
    source.open(columns)
    try:
        fewer = source.tidy()
        after = source.read(spark).inputFiles()
        return CompactionResult(len(after) + fewer, len(after))
    finally:
        source.close()


def _columns(spark: SparkSession, columns: dict[str, str]) -> Any:
    if not columns:
        raise InvalidSetting("lake", "there is no lake")
    return spark.createDataFrame([], ddl(columns)).schema


def _into(spark: SparkSession, source: ParquetLake, columns: Any, to: str) -> CompactionResult:
    files = files_of(spark, to)
    if format_there(files) is not None:
        raise InvalidSetting("to", f"{files.root} is a lake already")
    target = ParquetLake(files)
    # No batch is added to the old lake meanwhile: the new one would not have it.
    source.open(columns)
    try:
        target.open(columns)
        try:
            before = files_of(spark, source.root).files(source.root)
            staged: dict[str, int] = {}
            for folder, inside in sorted(_by_folder(before).items()):
                place = f"{target.staging}/{folder}"
                _rewrite(spark, files, source, folder, inside, place)
                staged |= {f"{folder}/{file.path}": 0 for file in files.files(place)}
            target.take(StagedBatch(staged), source.plan)
            return CompactionResult(len(before), len(staged))
        finally:
            target.close()
    finally:
        source.close()


def _by_folder(files: list[LakeFile]) -> dict[str, list[LakeFile]]:
    by_folder: dict[str, list[LakeFile]] = {}
    for file in files:
        by_folder.setdefault(file.path.rpartition("/")[0], []).append(file)
    return by_folder


def _rewrite(
    spark: SparkSession, files: LakeFiles, source: ParquetLake, folder: str, inside: list[LakeFile], place: str
) -> None:
    """The rows of one directory, in order, in as few files as there should be."""
    of_folder = {part.partition("=")[0] for part in folder.split("/")}
    columns = {name: kind for name, kind in source.columns().items() if name not in of_folder}
    names = [files.uri(f"{source.root}/{file.path}") for file in inside]
    parts = max(sum(file.bytes for file in inside) // TARGET_BYTES, 1)
    rows = spark.read.schema(ddl(columns)).parquet(*names).coalesce(int(parts))
    with conf_set(spark, WRITING):
        ordered = rows.sortWithinPartitions(*(name for name in ORDER if name in columns))
        ordered.write.parquet(files.uri(place))
