"""Polling instead of sleeping: on both ends it only changes how the wait is spent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from rostra.busy_poll import BusyPoll
from rostra.client.blocking.blocking_socket import BlockingSocket
from rostra.wire.frames import encode
from rostra.wire.messages import Ping


class CountingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.calls_at: dict[int, Callable[[], None]] = {}

    def _run_once(self) -> None:
        self.turns += 1
        if self.turns in self.calls_at:
            self.calls_at.pop(self.turns)()
        super()._run_once()  # type: ignore[misc]


async def turned(loop: CountingLoop, times: int) -> None:
    """Returns after this many turns of the loop, which only a polling loop makes, since nothing here wakes it."""
    reached = asyncio.Event()
    loop.calls_at[loop.turns + times] = reached.set
    await asyncio.wait_for(reached.wait(), 60)


def test_a_polling_loop_keeps_turning() -> None:
    loop = CountingLoop()
    BusyPoll(loop, 60_000).extend()
    loop.run_until_complete(turned(loop, 100))
    loop.close()


def test_a_polling_loop_sleeps_again_when_nothing_arrives() -> None:
    loop = CountingLoop()
    BusyPoll(loop, 1).extend()
    with pytest.raises(TimeoutError):
        loop.run_until_complete(asyncio.wait_for(turned(loop, 10_000_000), 0.2))
    before = loop.turns
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    assert loop.turns - before < 10


def test_a_loop_without_busy_poll_sleeps() -> None:
    loop = CountingLoop()
    BusyPoll(loop, 0).extend()
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    assert loop.turns < 10


def test_an_owned_loop_polls_sockets_and_keeps_its_timers() -> None:
    async def heard_and_rung() -> bytes:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        BusyPoll(loop, 60_000, owns_loop=True).extend()
        loop.call_later(0.01, theirs.send, b"x")
        heard = await asyncio.wait_for(loop.sock_recv(ours, 1), 60)
        # And what another thread has to say, for which the loop is woken in a way of its own.
        await asyncio.wait_for(loop.run_in_executor(None, theirs.close), 60)
        ours.close()
        return heard

    assert uvloop.run(heard_and_rung()) == b"x"


def test_an_owned_loop_sleeps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr("rostra.busy_poll.os.sched_yield", counted)

    async def looks_while_asleep() -> int:
        busy = BusyPoll(asyncio.get_running_loop(), 1, owns_loop=True)
        busy.extend()
        while busy.polling:
            await asyncio.sleep(0)
        before = looks
        await asyncio.sleep(0.02)
        return looks - before

    assert uvloop.run(looks_while_asleep()) == 0
    assert looks > 0


@pytest.mark.parametrize("busy_poll_ms", [0, 5])
def test_a_blocking_socket_receives_waits_and_sees_the_end_alike_whether_it_polls_or_sleeps(busy_poll_ms: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = BlockingSocket(1, socket.create_connection(server.getsockname()), busy_poll_ms)
        theirs, _ = server.accept()
        assert ours.read(1_000) == []
        theirs.sendall(encode(Ping(7)))
        messages = ours.read(5_000_000)
        while not messages:
            messages = ours.read(5_000_000)
        assert messages == [(Ping(7), None)]
        theirs.close()
        with pytest.raises(ConnectionResetError):
            while not ours.read(5_000_000):
                pass
        ours.close()
