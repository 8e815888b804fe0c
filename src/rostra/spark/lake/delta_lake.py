"""A lake that is a Delta table, kept by the library deltalake: a batch is there for all readers at once, or not at all.

Tasks write the files; the driver moves them into the table and commits them. Transactions of the table say what it
holds, so nothing else has to:

    rostra/writer              how many writers there have been: one that was replaced cannot commit any more
    rostra/topic/NAME          the id of the topic
    rostra/offset/ID/N         the offset before which everything of its partition is in the table
    rostra/query/QUERY         the last batch of a query that has no offsets

Each commit names those that it changes. Of two commits that name the same one and saw the same table, the table accepts
one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from rostra.errors import LakeChanged, LakeDamaged, LibraryMissing
from rostra.model.ids import text
from rostra.spark.lake.lake import Lake, check_columns, ddl
from rostra.spark.lake.offsets import Held, StagedBatch, TopicOffsets, advanced
from rostra.spark.source.bounds import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

WRITER = "rostra/writer"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the directory of rows without a value."""
TARGET_BYTES = 128 << 20


class DeltaLake(Lake):
    format = "delta"

    _opened: Any = None
    _epoch = 0

    @property
    def _table(self) -> Any:
        """As it was when it was looked at last."""
        if self._opened is None:
            self._opened = _library().DeltaTable(self.root)
        return self._opened

    def _refresh(self) -> None:
        """Look at what was committed since; the whole log is read once."""
        self._table.update_incremental()

    @property
    def _moving(self) -> str:
        """Which files this writer is moving into the table, until they are committed."""
        return f"{self.beside}/moving/{self._epoch}.json"

    def _recover(self, columns: StructType) -> None:
        self._create(columns)
        self._add_columns(columns)
        self._epoch = (self._version(WRITER) or 0) + 1
        self._transact([], {})
        # From here on whoever wrote before cannot commit: what it moved and did not commit is nobody's.
        committed = set(self._paths())
        for listed in self._files.names(f"{self.beside}/moving"):
            moved = msgspec.json.decode(self._files.read(f"{self.beside}/moving/{listed}"), type=list[str])
            for name in moved:
                if name not in committed:
                    self._files.delete(f"{self.root}/{name}")
            self._files.delete(f"{self.beside}/moving/{listed}")

    def _create(self, columns: StructType) -> None:
        os.makedirs(self.root, exist_ok=True)
        _library().DeltaTable.create(
            self.root, schema=_arrow(columns), mode="ignore", partition_by=list(self._partition_by)
        )
        self._opened = None

    def _add_columns(self, columns: StructType) -> None:
        known = self.columns()
        new = check_columns(self.root, known, columns).keys() - known.keys()
        if new:
            added = _arrow(type(columns)([field for field in columns.fields if field.name in new]))
            self._table.alter.add_columns(_library().Schema.from_arrow(added).fields)
            self._opened = None

    # --- commits -------------------------------------------------------------------------------------

    def _version(self, name: str) -> int | None:
        found: int | None = self._table.transaction_version(name)
        return found

    def _paths(self) -> list[str]:
        return [os.path.relpath(path, self.root) for path in self._table.file_uris()]

    def _transact(self, actions: list[Any], versions: Mapping[str, int]) -> None:
        """On the table as it was looked at: LakeChanged if a transaction of the same name came in between."""
        library = _library()
        self._check_lease()
        transactions = [
            library.Transaction(name, version) for name, version in {**versions, WRITER: self._epoch}.items()
        ]
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self._partition_by),
                commit_properties=library.CommitProperties(app_transactions=transactions),
            )
        except library.exceptions.CommitFailedError as error:
            raise LakeChanged(self.root, f"another writer was faster ({error})") from None
        self._refresh()

    def _look(self) -> None:
        """At the table as it is now; LakeChanged if it has another writer."""
        self._check_lease()
        self._refresh()
        if self._version(WRITER) != self._epoch:
            raise LakeChanged(self.root, "another writer has opened it")

    def _commit(self, batch: StagedBatch, query: str, number: int) -> None:
        self._look()
        spans = batch.spans
        held = advanced(self.held((span.topic, span.partition) for span in spans), spans, self.root)
        changed = {topic: held[topic] for topic in sorted({span.topic for span in spans})}
        targets = self._targets(batch, f"{self._table.version() + 1:09}")
        self._files.create(self._moving, msgspec.json.encode(sorted(targets.values())))
        actions = [self._moved(name, target) for name, target in targets.items()]
        self._transact(actions, {**_versions(changed), f"rostra/query/{query}": number})
        self._files.delete(self._moving)

    def _moved(self, name: str, target: str) -> Any:
        import pyarrow.parquet as pq

        staged, place = f"{self.staging}/{name}", f"{self.root}/{target}"
        size = self._files.size(staged)
        if size is None:
            raise LakeDamaged(staged, "the rows of the batch")
        self._files.move(staged, place)
        folders = (part.partition("=") for part in target.split("/")[:-1])
        values = {column: None if value == NO_VALUE else unquote(value) for column, _, value in folders}
        stats = msgspec.json.encode({"numRecords": pq.read_metadata(place).num_rows}).decode()
        return _library().transaction.AddAction(target, size, values, int(time() * 1000), True, stats)

    def begin(self, new: Held) -> None:
        if new:
            self._look()
            self._transact([], _versions(new))

    def held(self, wanted: Iterable[TopicPartition]) -> Held:
        partitions: dict[str, list[int]] = {}
        if "topic" in self._partition_by:
            partitions = {row["topic"]: [] for row in self._table.partitions()}
        for topic, partition in wanted:
            partitions.setdefault(topic, []).append(partition)
        found: Held = {}
        for topic, numbers in partitions.items():
            number = self._version(f"rostra/topic/{topic}")
            if number is not None:
                ends = {at: self._version(_offset(number, at)) for at in numbers}
                found[topic] = TopicOffsets(number, {at: end for at, end in ends.items() if end is not None})
        return found

    def added(self, query: str, number: int) -> bool:
        self._refresh()
        last = self._version(f"rostra/query/{query}")
        return last is not None and last >= number

    # --- readers -------------------------------------------------------------------------------------

    def tidy(self) -> int:
        """Readers of older versions keep their files for a week."""
        self._look()
        done = self._table.optimize.compact(target_size=TARGET_BYTES)
        self._table.vacuum(dry_run=False)
        # Who opens the table then reads this instead of all that was committed before.
        self._refresh()
        self._table.create_checkpoint()
        return int(done["numFilesRemoved"]) - int(done["numFilesAdded"])

    def columns(self) -> dict[str, str]:
        from pyspark.sql.types import StructType

        declared = StructType.fromJson(msgspec.json.decode(self._table.schema().to_json()))
        return {field.name: field.dataType.simpleString() for field in declared.fields}

    def read(self, spark: Any) -> DataFrame:
        self._refresh()
        schema, names = ddl(self.columns()), self._paths()
        if not names:
            empty: DataFrame = spark.createDataFrame([], schema)
            return empty
        reader = spark.read.schema(schema).option("basePath", self._files.uri(self.root))
        frame: DataFrame = reader.parquet(*(self._files.uri(f"{self.root}/{name}") for name in names))
        return frame


def _versions(changed: Mapping[str, TopicOffsets]) -> dict[str, int]:
    versions = {f"rostra/topic/{topic}": offsets.id for topic, offsets in changed.items()}
    return versions | {_offset(of.id, at): end for of in changed.values() for at, end in of.ends.items()}


def _offset(topic_id: int, partition: int) -> str:
    return f"rostra/offset/{text(topic_id)}/{partition}"


def _arrow(columns: StructType) -> Any:
    """Each may be null: a column that comes later is, in all that was there before."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(columns, timezone="UTC")])


def _library() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError:
        raise LibraryMissing("deltalake, which writes Delta tables,", "lake") from None
    return deltalake
