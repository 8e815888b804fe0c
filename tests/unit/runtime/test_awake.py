"""Cores that are kept awake while bytes flow, and only then."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog
from structlog.testing import capture_logs

from rostra.runtime.awake import StayAwake


def holders(switch: Path) -> int:
    """How often this process has the file open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(link.exists() and link.resolve() == switch.resolve() for link in links)


def made(loop: asyncio.AbstractEventLoop, switch: Path, for_ms: int) -> StayAwake:
    return StayAwake(loop, for_ms, structlog.get_logger(), switch)


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
