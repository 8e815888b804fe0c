"""A trace is a set of whole Parquet files with every row that was noted, in order."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from rostra.traces.events import COLUMNS, TraceEvent, TraceRole, TraceRow
from rostra.traces.recorder import Recorder


def row(number: int) -> TraceRow:
    return TraceRow(
        number, TraceEvent.PUBLISHED.value, 1_000 + number, 7, "orders", 1, first=number, end=number + 3, records=3
    )


def test_every_row_is_in_the_files_in_the_order_it_was_noted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "traces", TraceRole.CLIENT, 7, rows_max=10)
    for number in range(95):
        recorder.note(row(number))
    recorder.close()
    files = sorted((tmp_path / "traces").iterdir())
    assert len(files) >= 10
    assert all(file.name.startswith("client-0000000000000007-") and file.suffix == ".parquet" for file in files)
    table = pq.read_table(files)
    assert tuple(table.column_names) == COLUMNS
    assert [TraceRow(*found.values()) for found in table.to_pylist()] == [row(number) for number in range(95)]
    assert pq.read_schema(files[0]).metadata[b"rostra.role"] == b"client"


def test_a_second_trace_of_the_same_writer_leaves_the_first_as_it_is(tmp_path: Path) -> None:
    for number in range(2):
        recorder = Recorder(tmp_path, TraceRole.NODE, 7)
        recorder.note(row(number))
        recorder.close()
    assert sorted(pq.read_table(tmp_path)["number"].to_pylist()) == [0, 1]


def test_where_nothing_was_noted_there_is_no_file(tmp_path: Path) -> None:
    Recorder(tmp_path, TraceRole.NODE, 7).close()
    assert list(tmp_path.iterdir()) == []
