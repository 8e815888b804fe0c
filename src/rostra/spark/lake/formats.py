"""Which format a lake has, or is to have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.errors import InvalidSetting
from rostra.spark.lake.delta_lake import DeltaLake
from rostra.spark.lake.files import LakeFiles, files_of
from rostra.spark.lake.lake import BY_TOPIC_AND_DATE, Lake
from rostra.spark.lake.parquet_lake import ParquetLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: dict[str, type[Lake]] = {"parquet": ParquetLake, "delta": DeltaLake}


def lake_of(
    spark: SparkSession, path: str, format: str | None = None, *, partition_by: tuple[str, ...] = BY_TOPIC_AND_DATE
) -> Lake:
    """The lake at that place; of a new one, the format that was asked for, or plain Parquet."""
    if format is not None and format not in FORMATS:
        raise InvalidSetting("format", f"{format!r} is none of {', '.join(FORMATS)}")
    files = files_of(spark, path)
    there = format_there(files)
    if there is not None and format not in (None, there):
        raise InvalidSetting("format", f"{files.root} is a lake of the format {there}")
    chosen = there or format or ParquetLake.format
    if chosen == DeltaLake.format and files.on_disk(files.root) is None:
        raise InvalidSetting("format", f"Delta tables are written to disks only; {files.root} is none")
    return FORMATS[chosen](files, partition_by)


def format_there(files: LakeFiles) -> str | None:
    names = files.names(files.root)
    if "_delta_log" in names:
        return DeltaLake.format
    planned = files.names(f"{files.root}.rostra/plans")
    return ParquetLake.format if planned or any("=" in name for name in names) else None
