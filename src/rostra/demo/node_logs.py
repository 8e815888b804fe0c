"""Follows the log files of nodes: one line for each entry, with time, node, role, level and text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

_COLUMNS = ("time", "node", "role", "level", "event", "partition")
_OMITTED = ("metrics", "clean", "cluster", "end")


class NodeLine(msgspec.Struct, frozen=True):
    """`event`, `partition` and `term` are fields of the log entry; `text` is the whole entry as text."""

    time: str
    node: str
    role: str
    level: str
    text: str
    event: str
    partition: str
    term: int

    def __str__(self) -> str:
        return f"{self.time}  {self.node:<6}  {self.role:<12}  {self.level:<7}  {self.text}"


class NodeLogs:
    """Replaces the names of nodes by those that the demo uses."""

    def __init__(self) -> None:
        self._files: dict[str, Path] = {}
        self._read_to: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self.lines: list[NodeLine] = []
        """All lines so far."""

    def follow(self, name: str, log_file: Path) -> None:
        self._files[name] = log_file
        self._read_to[name] = 0

    def _with_names(self, text: str) -> str:
        for logged, shown in self._names.items():
            text = text.replace(logged, shown)
        return text

    def read_new(self) -> list[NodeLine]:
        """The lines since the last call, by time."""
        found = [(name, about) for name in self._files for about in self._read(name)]
        for name, about in found:
            # Before any line is formatted: other nodes refer to this one by its name.
            self._names.setdefault(str(about.get("node", "")), name)
        lines = sorted((self._formatted(name, about) for name, about in found), key=lambda line: line.time)
        self.lines += lines
        return lines

    def _read(self, name: str) -> list[dict[str, object]]:
        try:
            with self._files[name].open("rb") as log:
                log.seek(self._read_to[name])
                written = log.read()
        except FileNotFoundError:
            return []
        # A last line without its end is still being written.
        whole = written[: written.rfind(b"\n") + 1]
        self._read_to[name] += len(whole)
        return [about for line in whole.splitlines() if (about := _parse(line)) is not None]

    def _formatted(self, name: str, about: Mapping[str, object]) -> NodeLine:
        term = about.get("term")
        return NodeLine(
            time=str(about.get("time", ""))[11:23],
            node=name,
            role=str(about.get("role", "")),
            level=str(about.get("level", "")),
            text=self._with_names(text_of(about)),
            event=str(about.get("event", "")),
            partition=str(about.get("partition", "")),
            term=term if isinstance(term, int) else 0,
        )


def _parse(line: bytes) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        return None


def text_of(about: Mapping[str, object]) -> str:
    """`follows orders/0, term 2, leader node 1`."""
    partition = f" {about['partition']}" if "partition" in about else ""
    rest = [f"{name} {value}" for name, value in about.items() if name not in (*_COLUMNS, *_OMITTED) and value != ""]
    return ", ".join([f"{about.get('event', '')}{partition}", *rest])
