"""Runs the command `rostra` in its own process, without the developer's settings."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

COMMAND = (sys.executable, "-m", "rostra")
PATIENCE_S = 60.0
COMMAND_PATIENCE_S = 240.0
"""Ends a command that hangs, before the time limit of its test does."""


class Completed(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        """The rows of NDJSON on stdout."""
        return [msgspec.json.decode(line, type=dict[str, object]) for line in self.out.splitlines()]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROSTRA_", "XDG_"))}
    return {**kept, "HOME": str(home), "TERM": "xterm", "COLUMNS": "120", **(extra or {})}


class CommandLine:
    """The command in its own directory, with a node to connect to."""

    def __init__(self, directory: Path, node: str = "") -> None:
        self.directory = directory
        self.variables = {"ROSTRA_NODE": node} if node else {}

    def run(self, *arguments: str, stdin: bytes = b"", variables: Mapping[str, str] | None = None) -> Completed:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.directory,
            env=environment(self.directory, self.variables if variables is None else variables),
            input=stdin,
            capture_output=True,
            timeout=COMMAND_PATIENCE_S,
            check=False,
        )
        return Completed(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.directory,
            env=environment(self.directory, self.variables),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children_of(pid: int) -> list[int]:
    """Its live descendants."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            found += [int(entry.name), *children_of(int(entry.name))]
    return found
