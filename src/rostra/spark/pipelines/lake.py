"""A lake: Parquet files by topic and date, to which each batch of a query is added once, whatever dies in between.

    LAKE/topic=orders/date=2026-01-31/part-….parquet
    LAKE/_rostra/loose/QUERY/…               files that tasks are writing by themselves
    LAKE/_rostra/staging/QUERY/BATCH/…       files that are being written
    LAKE/_rostra/plans/QUERY/BATCH.json      which of them go where; as soon as it is there, the batch counts
    LAKE/_rostra/schema/NUMBER.json          the columns there have been; the last file has them all

A batch is written to the side, then its plan, then its files are renamed to their places. Whoever finds a plan finishes
it and does not write again; without one, what lies at the side is thrown away. So no reader of the directory, Spark or
not, ever sees a record twice, and none has to know of the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from rostra.errors import InvalidSetting
from rostra.spark.pipelines.files import LakeFile, LakeFileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OWN = "_rostra"
PLANS_KEPT = 16
"""Spark repeats no batch but the last one; some more are kept for whoever wants to look."""
SMALL_BYTES = 32 << 20
TARGET_BYTES = 128 << 20
SMALL_FILES_MIN = 8
WRITING = {
    # By a task; each has buffers. Rows for further files are sorted; without this, Spark sorts all rows first.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    # As every reader knows it, and comparable; Spark's own is of 96 bits.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class Plan(msgspec.Struct, frozen=True):
    """Files to be renamed, from the staging place to the lake; and others that they replace."""

    moves: dict[str, str]
    removes: list[str] = []


class Lake:
    def __init__(self, spark: SparkSession, path: str, *, partition_by: tuple[str, ...] = ("topic", "date")) -> None:
        self._spark = spark
        self._files = LakeFileSystem(spark, path)
        self.root = self._files.root
        self._partition_by = partition_by
        self._finish_all("compaction")

    def _own(self, *parts: str) -> str:
        return "/".join((self.root, OWN, *parts))

    def loose(self, checkpoint: str) -> tuple[str, str] | None:
        """An empty directory for the files that tasks of a query write, as Spark and as the system names it.

        None where only Spark knows how to write.
        """
        scheme, _, path = self.root.partition(":")
        if scheme != "file":
            return None
        within = f"{OWN}/loose/{sha256(checkpoint.encode()).hexdigest()[:16]}"
        self._files.delete(f"{self.root}/{within}")
        return f"{self.root}/{within}", f"/{path.lstrip('/')}/{within}"

    # --- adding --------------------------------------------------------------------------------------

    def add(self, frame: DataFrame, query: str, batch: int) -> bool:
        """Add a batch unless it was added already; whether it was new."""
        return self._add(lambda staging: self._write(frame, staging), query, batch)

    def adopt(self, staged: DataFrame, loose: str, query: str, batch: int) -> bool:
        """The same with files that its tasks write below a directory by themselves."""

        def gather(staging: str) -> None:
            for row in staged.select("file").collect():
                self._files.rename(f"{loose}/{row.file}", f"{staging}/{row.file}")

        return self._add(gather, query, batch)

    def _add(self, fill: Callable[[str], None], query: str, batch: int) -> bool:
        staging, plan = self._own("staging", query, str(batch)), self._own("plans", query, f"{batch:012}.json")
        new = not self._files.exists(plan)
        if new:
            self._files.delete(staging)
            fill(staging)
            names = [file.path for file in self._files.files(staging)]
            moves = {name: _named(name, f"{query}-{batch:09}-{at:05}") for at, name in enumerate(names)}
            self._files.write_json(plan, msgspec.to_builtins(Plan(moves)))
        self._finish(plan, staging)
        self._forget(query)
        return new

    def _write(self, frame: DataFrame, staging: str) -> None:
        with _set(frame.sparkSession, WRITING):
            frame.write.partitionBy(*self._partition_by).parquet(staging)

    def _finish(self, plan: str, staging: str) -> None:
        """Carry out what is left of a plan."""
        if not self._files.exists(staging):
            return
        todo = msgspec.convert(self._files.read_json(plan), Plan)
        for old in todo.removes:
            self._files.delete(f"{self.root}/{old}")
        left = {file.path for file in self._files.files(staging)}
        for old, new in sorted(todo.moves.items()):
            if old in left:
                self._files.rename(f"{staging}/{old}", f"{self.root}/{new}")
        self._files.delete(staging)

    def _finish_all(self, query: str) -> None:
        for name in self._files.names(self._own("plans", query)):
            number = name.removesuffix(".json")
            if name.endswith(".json"):
                self._finish(self._own("plans", query, name), self._own("staging", query, str(int(number))))

    def _forget(self, query: str) -> None:
        for name in self._files.names(self._own("plans", query))[:-PLANS_KEPT]:
            self._files.delete(self._own("plans", query, name))

    # --- compacting ----------------------------------------------------------------------------------

    def compact(
        self, *, small_bytes: int = SMALL_BYTES, files_min: int = SMALL_FILES_MIN, target_bytes: int = TARGET_BYTES
    ) -> int:
        """Puts small files of a directory together where there are many; how many files fewer there are now."""
        by_directory: dict[str, list[LakeFile]] = {}
        for file in self._files.files(self.root):
            if file.bytes < small_bytes and file.path.endswith(".parquet"):
                by_directory.setdefault(file.path.rpartition("/")[0], []).append(file)
        saved = 0
        for directory, small in sorted(by_directory.items()):
            if len(small) >= files_min:
                parts = max(sum(file.bytes for file in small) // target_bytes, 1)
                saved += len(small) - self._put_together(directory, [file.path for file in small], int(parts))
        return saved

    def _put_together(self, directory: str, names: list[str], parts: int) -> int:
        numbers = [int(name.removesuffix(".json")) for name in self._files.names(self._own("plans", "compaction"))]
        number = max(numbers, default=0) + 1
        staging = self._own("staging", "compaction", str(number))
        self._files.delete(staging)
        rows = self._spark.read.option("mergeSchema", "true").parquet(*(f"{self.root}/{name}" for name in names))
        order = [name for name in ("partition", "offset", "start") if name in rows.columns]
        with _set(self._spark, WRITING):
            rows.coalesce(parts).sortWithinPartitions(*order).write.parquet(staging)
        made = [file.path for file in self._files.files(staging)]
        moves = {name: f"{directory}/part-compacted-{number:09}-{at:05}.parquet" for at, name in enumerate(made)}
        plan = self._own("plans", "compaction", f"{number:012}.json")
        self._files.write_json(plan, msgspec.to_builtins(Plan(moves, names)))
        self._finish(plan, staging)
        self._forget("compaction")
        return len(moves)

    # --- columns -------------------------------------------------------------------------------------

    def accept(self, schema: StructType) -> None:
        """Columns may come and go between runs; one that is there never changes its type."""
        known = self._columns()
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name, kind in columns.items():
            if known.get(name, kind) != kind:
                raise InvalidSetting(
                    "lake", f"column {name} is {known[name]} in {self.root}, and would be {kind}; name another lake"
                )
        if columns.keys() - known.keys():
            number = len(self._files.names(self._own("schema")))
            self._files.write_json(self._own("schema", f"{number:06}.json"), {**known, **columns})

    def _columns(self) -> dict[str, str]:
        written = [name for name in self._files.names(self._own("schema")) if name.endswith(".json")]
        found: dict[str, str] = self._files.read_json(self._own("schema", written[-1])) if written else {}
        return found

    def read(self) -> DataFrame:
        """All that was added, each column as it was, none of them guessed from the names of directories."""
        schema = ", ".join(f"`{name}` {kind}" for name, kind in self._columns().items())
        return self._spark.read.schema(schema).parquet(self.root)


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _named(staged: str, name: str) -> str:
    """The same directory, and a name of its own."""
    directory, _, _ = staged.rpartition("/")
    return f"{directory}/part-{name}.parquet" if directory else f"part-{name}.parquet"
