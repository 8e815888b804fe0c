"""The demo: its results, and that it leaves no process behind."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.processes.command_line import PATIENCE_S, CommandLine, children_of, is_alive, wait_until

SMALL = ("demo", "--no-spark", "--records", "1500", "--duration", "2s")


@pytest.mark.requirement("CM-14:kill")
def test_the_demo_kills_the_owner_and_counts_every_acknowledged_record_once(tmp_path: Path) -> None:
    ran = CommandLine(tmp_path).run(*SMALL, "--kills", "1")
    assert ran.code == 0, ran.out + ran.err
    (killed,) = re.findall(r"kill -9 of (node \d), process \d+, the owner of orders/0", ran.out)
    (successor,) = re.findall(r"(node \d) owns orders/0, seen", ran.out)
    assert successor != killed
    assert re.search(rf"{successor}  leader        info     leads orders/0, term \d", ran.out)
    assert f"{killed} restarted on the same files" in ran.out
    assert f"{killed} has caught up in" in ran.out
    assert "lost the connection to " in ran.out
    header, rows = table_of(ran.out)
    assert header == ["subscriber", "topic", "sent", "acknowledged", "expected", "delivered", "percent", "duplicates"]
    for who in ("shipping", "billing", "statistics", "latecomer"):
        assert rows[who][1:] == ["3,000", "3,000", "3,000", "3,000", "100", "%", "0"]
    assert rows["total"] == ["6,000", "6,000", "12,000", "12,000", "100", "%", "0"]


def table_of(shown: str) -> tuple[list[str], dict[str, list[str]]]:
    lines = shown.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.split()[:2] == ["subscriber", "topic"])
    rows = {}
    for line in lines[begin + 1 :]:
        words = line.split()
        if words and re.fullmatch(r"[a-z]+", words[0]):
            rows[words[0]] = words[1:]
    return lines[begin].split(), rows


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    with CommandLine(tmp_path).start("demo", "--no-spark", "--records", "100000", "--duration", "60s") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        while b"topics orders" not in (line := running.stdout.readline()):
            assert line, running.stderr.read()
        children = children_of(running.pid)
        assert len(children) == 3
        running.send_signal(number)
        running.stdout.read()
        assert running.wait(PATIENCE_S) == 130
        assert b"Traceback" not in running.stderr.read()
    wait_until(lambda: not any(map(is_alive, (running.pid, *children))), "the processes to end")


def test_without_kills_the_demo_shows_the_same_count(tmp_path: Path) -> None:
    ran = CommandLine(tmp_path).run("demo", "--no-spark", "--records", "200", "--duration", "200ms", "--kills", "0")
    assert ran.code == 0, ran.out + ran.err
    _, rows = table_of(ran.out)
    assert rows["total"] == ["800", "800", "1,600", "1,600", "100", "%", "0"]
