"""The tutorial does what it says: every command is run as printed, and what comes out is compared."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rostra import blocking
from rostra.cli.app import run
from rostra.errors import RostraError
from tests.processes.command_line import wait_until

TUTORIAL = Path(__file__).resolve().parent.parent.parent / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?:`(\w+\.py)`:\n\n)?```(python|console)\n(.*?)```|<!-- (await|kill) (\S+) -->", re.DOTALL)
PORTS = (7400, 7401, 7410, 7411, 7420, 7421)
ADDRESS = re.compile(r"127\.0\.0\.1:(74\d\d)")


class Step(NamedTuple):
    command: list[str]
    shown: list[str]


def steps_of(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield Step(shlex.split(command), [line.rstrip() for line in shown])


def free_base() -> int:
    """A port that stands for 7400, so that all ports of the tutorial are free."""
    for base in range(20_000, 30_000, 50):
        try:
            for port in PORTS:
                with socket.socket() as asking:
                    asking.bind(("127.0.0.1", base + port - PORTS[0]))
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")


class Reader:
    """Does what a reader of the tutorial does, at other ports."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self._base = free_base()
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def at(self, text: str) -> str:
        return ADDRESS.sub(lambda found: f"127.0.0.1:{int(found[1]) - PORTS[0] + self._base}", text)

    def follow(self, step: Step) -> None:
        program, *arguments = step.command
        if (program, *arguments[:1]) == ("rostra", "serve"):
            self._serve(arguments)
            return
        if program == "rostra":
            assert run([self.at(argument) for argument in arguments]) == 0, (step.command, self._capfd.readouterr())
            out, err = self._capfd.readouterr()
        else:
            command = [sys.executable, *arguments]
            narrow = {**os.environ, "COLUMNS": "80"}
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=narrow)
            assert done.returncode == 0, done.stdout + done.stderr
            out, err = done.stdout, done.stderr
        if step.shown:
            assert self.lines(out + err) == self.lines("\n".join(step.shown)), step.command

    def lines(self, text: str) -> list[str]:
        # On a slow machine a command says what it waits for, and pytest how long it took.
        shown = [line.rstrip() for line in text.splitlines() if "still waiting" not in line]
        return [re.sub(r"passed in [\d.]+s", "passed", line) for line in shown]

    def _serve(self, arguments: list[str]) -> None:
        address = arguments[arguments.index("--listen") + 1] if "--listen" in arguments else "127.0.0.1:7400"
        listen = [] if "--listen" in arguments else ["--listen", self.at(address)]
        command = [sys.executable, "-m", "rostra", *map(self.at, arguments), *listen]
        with Path("nodes.log").open("ab") as log:
            self._nodes[address] = subprocess.Popen(command, stderr=log, stdout=log)
        wait_until(lambda: self._answers(self.at(address)), f"a node at {address}")

    def _answers(self, address: str) -> bool:
        try:
            with blocking.connect(address, connect_timeout_ms=500) as client:
                return bool(client.describe_cluster().nodes)
        except RostraError:
            return False

    def await_replicas(self) -> None:
        with blocking.connect(self.at("127.0.0.1:7410")) as client:
            wait_until(
                lambda: all(
                    sum(copy.match >= placed.commit for copy in placed.copies) == 3
                    for placed in client.describe_cluster().partitions
                ),
                "three replicas of every partition",
            )

    def kill(self, address: str) -> None:
        node = self._nodes.pop(address)
        node.kill()
        node.wait()

    def end(self) -> None:
        for address in list(self._nodes):
            self.kill(address)


def test_the_tutorial_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROSTRA_OUTPUT", "table")
    monkeypatch.setenv("COLUMNS", "100")
    reader = Reader(capfd)
    monkeypatch.setenv("ROSTRA_NODE", reader.at("127.0.0.1:7400"))
    try:
        for file, kind, block, act, about in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
            if act == "await":
                reader.await_replicas()
            elif act == "kill":
                reader.kill(about)
            elif kind == "python":
                Path(file).write_text(reader.at(block), encoding="utf-8")
            else:
                for step in steps_of(block):
                    reader.follow(step)
    finally:
        reader.end()


@pytest.mark.parametrize(
    "part", ["rostra pub", "--from earliest", "--name billing", "asyncio", "pytest", "--join", "kill -9", "rostra user"]
)
def test_the_tutorial_covers_what_the_first_hour_needs(part: str) -> None:
    assert part in TUTORIAL.read_text(encoding="utf-8")
