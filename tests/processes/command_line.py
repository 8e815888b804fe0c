"""Runs the real `rostra` in a process of its own, with nothing of the developer's settings around it."""

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


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        """What stdout holds as NDJSON."""
        return [msgspec.json.decode(line, type=dict[str, object]) for line in self.out.splitlines()]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROSTRA_", "XDG_"))}
    return {**kept, "HOME": str(home), "TERM": "xterm", "COLUMNS": "120", **(extra or {})}


class CommandLine:
    """The command in a directory of its own, talking to one node unless told otherwise."""

    def __init__(self, place: Path, node: str = "") -> None:
        self.place = place
        self.variables = {"ROSTRA_NODE": node} if node else {}

    def run(self, *arguments: str, stdin: bytes = b"", variables: Mapping[str, str] | None = None) -> Ran:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.place,
            env=environment(self.place, self.variables if variables is None else variables),
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.place,
            env=environment(self.place, self.variables),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )


def wait_until(is_so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited {patience_s} s in vain for: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children_of(pid: int) -> list[int]:
    """Its living children, and theirs."""
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
