"""The tutorial does what it says: every command is run as printed, and what comes out is compared."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import rostra.testing
from rostra.cli.app import run

TUTORIAL = Path(__file__).resolve().parent.parent.parent / "docs" / "tutorial.md"
BLOCKS = re.findall(r"```(python|console)\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
ADDRESS = "127.0.0.1:7400"


class Step(NamedTuple):
    command: list[str]
    shown: list[str]


def steps_of(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield Step(shlex.split(command), [line.rstrip() for line in shown])


def test_the_tutorial_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROSTRA_OUTPUT", "table")
    monkeypatch.setenv("COLUMNS", "100")
    with rostra.testing.node() as node:
        monkeypatch.setenv("ROSTRA_NODE", node.address)
        for kind, block in BLOCKS:
            if kind == "python":
                Path("handler.py").write_text(block.replace(ADDRESS, node.address), encoding="utf-8")
                continue
            for step in steps_of(block):
                program, *arguments = step.command
                if program == "rostra":
                    assert run(arguments) == 0, step.command
                    out, err = capfd.readouterr()
                else:
                    done = subprocess.run(
                        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=60
                    )
                    out, err = done.stdout, done.stderr
                # On a slow machine a command says what it waits for.
                shown = [line.rstrip() for line in (out + err).splitlines() if "still waiting" not in line]
                assert shown == step.shown, step.command


def test_the_tutorial_has_commands() -> None:
    assert sum(len(list(steps_of(block))) for kind, block in BLOCKS if kind == "console") > 15
