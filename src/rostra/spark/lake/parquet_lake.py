"""A lake of plain Parquet files: whoever can list a directory can read it.

    LAKE.rostra/plans/NUMBER.json   files that a batch adds, and all that the lake holds with it
    LAKE.rostra/plans/NUMBER.done   they are all there

A plan is created exclusively, under the number after the last one; as soon as it is there, the batch counts. Then its
files are renamed to their places. Whoever opens the lake finishes the last plan and does not write the batch again;
files without a plan are thrown away. Files in the lake are never changed, replaced or removed, so a reader finds each
record at most once, whenever it looks. Small files are put together in a new lake (`compaction.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from rostra.errors import LakeChanged, LakeDamaged
from rostra.spark.lake.lake import Lake, check_columns, ddl
from rostra.spark.lake.offsets import Held, StagedBatch, advanced
from rostra.spark.source.bounds import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PLANS_KEPT = 16
"""The last one is needed; some more are kept for whoever wants to look."""


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A file, from beside the lake into it."""

    staged: str
    target: str
    bytes: int


class Plan(msgspec.Struct, frozen=True):
    """One step of the lake, with all that it holds after it."""

    moves: tuple[Move, ...] = ()
    held: Held = {}
    batches: dict[str, int] = {}
    """By query, the last batch of it."""
    columns: dict[str, str] = {}


class ParquetLake(Lake):
    format = "parquet"

    _number = 0
    _last: Plan | None = None

    # --- plans ---------------------------------------------------------------------------------------

    def _plan(self, number: int, ending: str = "json") -> str:
        return f"{self.beside}/plans/{number:012}.{ending}"

    def _numbers(self) -> list[int]:
        names = self._files.names(f"{self.beside}/plans")
        return [int(name.removesuffix(".json")) for name in names if name.endswith(".json")]

    def _load(self) -> Plan:
        """The last plan that is whole; one that is not was being created when its writer died."""
        self._number, found = 0, Plan()
        for number in reversed(self._numbers()):
            with suppress(msgspec.DecodeError):
                found = msgspec.json.decode(self._files.read(self._plan(number)), type=Plan)
                self._number = number
                break
        return found

    @property
    def plan(self) -> Plan:
        return self._load() if self._last is None else self._last

    def _recover(self, columns: StructType) -> None:
        self._last = self._load()
        for number in self._numbers():
            if number > self._number:
                self._files.delete(self._plan(number))
        self._finish(self._number, self._last)
        known = check_columns(self.root, self._last.columns, columns)
        if known != self._last.columns:
            self._append(msgspec.structs.replace(self._last, moves=(), columns=known))

    def _append(self, plan: Plan) -> None:
        self._check_lease()
        number = self._number + 1
        try:
            self._files.create(self._plan(number), msgspec.json.encode(plan))
        except FileExistsError:
            raise LakeChanged(self.root, f"another writer made plan {number}") from None
        self._number, self._last = number, plan
        self._finish(number, plan)
        for old in self._numbers()[:-PLANS_KEPT]:
            self._files.delete(self._plan(old, "done"))
            self._files.delete(self._plan(old))

    def _finish(self, number: int, plan: Plan) -> None:
        """Carry out what is left of a plan, and see that all of it is there."""
        if not plan.moves or self._files.size(self._plan(number, "done")) is not None:
            return
        self._check_lease()
        for move in plan.moves:
            staged, target = f"{self.beside}/{move.staged}", f"{self.root}/{move.target}"
            if self._files.size(target) is None and self._files.size(staged) is not None:
                self._files.move(staged, target)
            if self._files.size(target) != move.bytes:
                raise LakeDamaged(target, self._plan(number))
        self._files.create(self._plan(number, "done"), b"")

    # --- batches -------------------------------------------------------------------------------------

    def _commit(self, batch: StagedBatch, query: str, number: int) -> None:
        before = self.plan
        self._append(
            Plan(
                self._moves(batch),
                advanced(before.held, batch.spans, self.root),
                {**before.batches, query: number},
                before.columns,
            )
        )

    def _moves(self, batch: StagedBatch) -> tuple[Move, ...]:
        within = self.staging.removeprefix(f"{self.beside}/")
        moves = []
        for name, target in self._targets(batch, f"{self._number + 1:09}").items():
            size = self._files.size(f"{self.staging}/{name}")
            if size is None:
                raise LakeDamaged(f"{self.staging}/{name}", "the rows of the batch")
            moves.append(Move(f"{within}/{name}", target, size))
        return tuple(moves)

    def begin(self, new: Held) -> None:
        if new:
            before = self.plan
            self._append(msgspec.structs.replace(before, moves=(), held={**before.held, **new}))

    def take(self, batch: StagedBatch, plan: Plan) -> None:
        """All files of another lake at once, with what it holds."""
        self._append(msgspec.structs.replace(plan, moves=self._moves(batch)))

    def held(self, wanted: Iterable[TopicPartition]) -> Held:
        return self.plan.held

    def added(self, query: str, number: int) -> bool:
        return self.plan.batches.get(query, -1) >= number

    def tidy(self) -> int:
        return 0

    def columns(self) -> dict[str, str]:
        return self.plan.columns

    def read(self, spark: Any) -> DataFrame:
        frame: DataFrame = spark.read.schema(ddl(self.columns())).parquet(self._files.uri(self.root))
        return frame
