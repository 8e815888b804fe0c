"""Output of commands: tables on a terminal, NDJSON on a pipe; data on stdout, everything else on stderr."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping, Sequence

import msgspec
import typer

Cell = str | int | float | bool | None | list["Cell"] | dict[str, "Cell"]
Row = Mapping[str, Cell]


class Output:
    """Writes the rows of one command as a table or as NDJSON; `auto` chooses by whether stdout is a terminal."""

    def __init__(self, form: str) -> None:
        self.is_json = form == "json" or (form == "auto" and not sys.stdout.isatty())

    def row(self, row: Row) -> None:
        """Writes one line of NDJSON and flushes it."""
        self.write(msgspec.json.encode(row) + b"\n")

    def rows(self, rows: Sequence[Row], *, columns: Sequence[str], title: str | None = None, blank: str = "-") -> None:
        """A table of these columns, `blank` where a row has no such cell; as NDJSON, all cells of every row."""
        if self.is_json:
            self.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0), show_edge=False)
        for column in columns:
            cells = [row[column] for row in rows if row.get(column) is not None]
            numeric = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
            table.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(show(row[column]) if column in row else blank) for column in columns))
        console = Console(file=sys.stdout)
        with console.capture() as drawn:
            console.print(table)
        self.write(drawn.get().encode())

    def line(self, line: str) -> None:
        self.write(f"{line}\n".encode(errors="replace"))

    def write(self, chunk: bytes) -> None:
        """Writes to stdout and flushes; ends the command without an error if the reader has closed the pipe."""
        try:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise output_closed() from None


def output_closed() -> typer.Exit:
    """How a command ends when the reader of its output has closed the pipe."""
    # Python flushes stdout once more at exit; that must not fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return typer.Exit(0)


def show(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case float():
            return f"{cell:,.1f}"
        case list():
            return ", ".join(show(item) for item in cell)
        case dict():
            return " ".join(f"{name}={show(item)}" for name, item in cell.items())
        case _:
            return str(cell)


def bytes_cell(name: str, content: bytes | None) -> dict[str, Cell]:
    """UTF-8 as text; other bytes in base64, under `NAME_base64`."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def print_error(fact: str, remedy: str = "") -> None:
    print(f"error: {fact}", file=sys.stderr)
    if remedy:
        print(f"hint: {remedy}", file=sys.stderr)


def print_note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
