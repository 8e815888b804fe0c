"""Polling instead of sleeping: on both ends it only changes how the wait is spent."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rostra.busy import BusyPoll
from rostra.client.blocking_socket import BlockingSocket
from rostra.wire.frames import encode
from rostra.wire.messages import Ping


class CountingLoop(asyncio.SelectorEventLoop):
    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


def test_a_stirred_loop_keeps_turning_and_then_sleeps_again() -> None:
    loop = CountingLoop()
    busy = BusyPoll(loop, 20)
    busy.stir()
    loop.run_until_complete(asyncio.sleep(0.1))
    turned = loop.turns
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()
    assert turned > 20
    assert loop.turns - turned < 10


def test_a_node_that_is_not_told_to_poll_sleeps() -> None:
    loop = CountingLoop()
    BusyPoll(loop, 0).stir()
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    assert loop.turns < 10


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
