"""Cores that are kept awake while bytes flow, and only then."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import structlog
from structlog.testing import capture_logs

from rostra.runtime.awake import CORE_SWITCH, AllCores, SomeCores, StayAwake


def holders(switch: Path) -> int:
    """How often this process has the file open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(link.exists() and link.resolve() == switch.resolve() for link in links)


def made(loop: asyncio.AbstractEventLoop, switch: Path, for_ms: int) -> StayAwake:
    return StayAwake(loop, for_ms, structlog.get_logger(), lambda: AllCores(switch))


async def released(switch: Path) -> None:
    async with asyncio.timeout(10):
        while holders(switch):
            await asyncio.sleep(0.001)


def test_the_switch_is_held_while_bytes_come_in_and_let_go_when_they_stop(tmp_path: Path) -> None:
    async def run() -> None:
        switch = tmp_path / "switch"
        switch.touch()
        awake = made(asyncio.get_running_loop(), switch, 5)
        for _ in range(2):
            awake.stir()
            awake.stir()
            assert holders(switch) == 1
            await released(switch)
        assert switch.read_bytes() == bytes(4)

    asyncio.run(run())


def test_who_does_not_ask_for_it_touches_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        with capture_logs() as lines:
            made(asyncio.get_running_loop(), tmp_path / "missing", 0).stir()
        assert lines == []

    asyncio.run(run())


def test_where_it_is_not_allowed_the_node_says_so_once_and_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        with capture_logs() as lines:
            awake = made(asyncio.get_running_loop(), tmp_path / "missing", 5)
            awake.stir()
            awake.stir()
        assert [line["event"] for line in lines] == ["cores may sleep"]

    asyncio.run(run())


def test_a_node_that_stops_lets_go(tmp_path: Path) -> None:
    async def run() -> None:
        switch = tmp_path / "switch"
        switch.touch()
        awake = made(asyncio.get_running_loop(), switch, 60_000)
        awake.stir()
        awake.release()
        assert holders(switch) == 0

    asyncio.run(run())


def machine(directory: Path, *latencies: str) -> list[Path]:
    """The switches of the cores that this process may use, with what is written there."""
    switches = [directory / f"cpu{core}" / CORE_SWITCH for core in sorted(os.sched_getaffinity(0))]
    for switch, latency in zip(switches, latencies, strict=False):
        switch.parent.mkdir(parents=True)
        switch.write_text(latency)
    return switches


def test_some_cores_are_kept_awake_and_put_back_as_they_were(tmp_path: Path) -> None:
    switch, *_ = machine(tmp_path, "70\n")
    cores = SomeCores(1, tmp_path)
    for _ in range(2):
        cores.hold()
        cores.hold()
        assert switch.read_text() == "n/a"
        cores.release()
        assert switch.read_text() == "70"


def test_a_core_that_somebody_else_keeps_awake_is_left_to_them(tmp_path: Path) -> None:
    switch, *_ = machine(tmp_path, "n/a\n")
    ours = SomeCores(1, tmp_path)
    ours.hold()
    ours.release()
    assert switch.read_text() == "n/a\n"
    ours.hold()
    switch.write_text("0\n")
    ours.hold()
    assert switch.read_text() == "n/a", "they let go of it, and it is wanted here"
    ours.release()
    assert switch.read_text() == "0"


def test_a_stream_keeps_its_core_awake_although_another_node_lets_go(tmp_path: Path) -> None:
    switch, *_ = machine(tmp_path, "0\n")

    async def run() -> None:
        awake = StayAwake(asyncio.get_running_loop(), 2, structlog.get_logger(), lambda: SomeCores(1, tmp_path))
        awake.stir()
        switch.write_text("0\n")
        async with asyncio.timeout(10):
            while switch.read_text() != "n/a":
                awake.stir()
                await asyncio.sleep(0.001)
            while switch.read_text() != "0":
                await asyncio.sleep(0.001)
        awake.release()

    asyncio.run(run())


def test_what_a_killed_process_kept_awake_may_sleep_again(tmp_path: Path) -> None:
    """Also a core that it took later than another, when somebody else had let go of it."""
    switches = [tmp_path / f"cpu{core}" / CORE_SWITCH for core in (0, 1)]
    for switch, before in zip(switches, ("0\n", "n/a\n"), strict=True):
        switch.parent.mkdir(parents=True)
        switch.write_text(before)
    program = f"""
import os, sys
from pathlib import Path
from rostra.runtime.awake import SomeCores
os.sched_getaffinity = lambda pid: {{0, 1}}
cores = SomeCores(2, Path({str(tmp_path)!r}))
cores.hold()
Path({str(switches[1])!r}).write_text("70")
cores.hold()
print("held", flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    assert [switch.read_text() for switch in switches] == ["n/a", "n/a"]
    child.send_signal(signal.SIGKILL)
    child.communicate()
    until = time.monotonic() + 10
    while [switch.read_text() for switch in switches] != ["0", "70"]:
        assert time.monotonic() < until
