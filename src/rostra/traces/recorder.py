"""Writes a trace: rows are buffered, and a thread writes the files, so that callers do not wait."""

from __future__ import annotations

import queue
import secrets
import threading
from pathlib import Path
from time import monotonic
from typing import Any

from rostra.errors import LibraryMissing
from rostra.traces.events import COLUMNS, VERSION, TraceRole, TraceRow

ROWS_MAX = 1 << 16
"""Rows per file."""
AGE_S_MAX = 1.0
"""Maximum age of buffered rows while others are added. Rows that a killed process had not written are lost."""
WAITING_MAX = 16
"""Files that may wait to be written; then adding a row blocks."""


class Recorder:
    """The trace of one client or node.

    Several threads may add rows: appending to a list is atomic, and a full list is replaced as a whole.
    """

    def __init__(self, directory: str | Path, role: TraceRole, who: int, *, rows_max: int = ROWS_MAX) -> None:
        try:
            import pyarrow.parquet
        except ImportError:
            raise LibraryMissing("pyarrow, which writes traces,", "arrow") from None
        self._arrow: Any = pyarrow
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._role = role
        self.who = who
        self._rows_max = rows_max
        # A restarted process has the same identity: its files must not replace older ones.
        self._name = f"{role.value}-{who:016x}-{secrets.token_hex(4)}"
        self._rows: list[TraceRow] = []
        self._due_s = monotonic() + AGE_S_MAX
        self._files = 0
        self._waiting: queue.Queue[list[TraceRow] | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._write_all, name="rostra-trace", daemon=True)
        self._thread.start()

    def note(self, row: TraceRow) -> None:
        rows = self._rows
        rows.append(row)
        if len(rows) >= self._rows_max or monotonic() >= self._due_s:
            self.flush()

    def flush(self) -> None:
        """Gives the buffered rows to the writing thread."""
        rows, self._rows = self._rows, []
        self._due_s = monotonic() + AGE_S_MAX
        if rows:
            self._waiting.put(rows)

    def close(self) -> None:
        """Returns when all is written."""
        self.flush()
        self._waiting.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        while (rows := self._waiting.get()) is not None:
            self._write(rows)

    def _write(self, rows: list[TraceRow]) -> None:
        pa = self._arrow
        table = pa.table(list(map(list, zip(*rows, strict=True))), schema=schema(self._role))
        self._files += 1
        path = self._directory / f"{self._name}-{self._files:06}.parquet"
        temporary = path.with_name(f".{path.name}")
        pa.parquet.write_table(table, temporary, compression="zstd", use_dictionary=["event", "topic", "name"])
        # Only complete files get their final name.
        temporary.replace(path)


def schema(role: TraceRole) -> Any:
    import pyarrow as pa

    kinds = {
        "event": pa.string(),
        "topic": pa.string(),
        "name": pa.string(),
        "partition": pa.int32(),
        "records": pa.int32(),
        "sequence": pa.int64(),
        "hops": pa.int32(),
    }
    fields = [pa.field(name, kinds.get(name, pa.int64()), nullable=False) for name in COLUMNS]
    return pa.schema(fields, metadata={"rostra.trace": str(VERSION), "rostra.role": role.value})
