"""The end of a connection: its reason is reported once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rostra.runtime.network.client_connection import ClientConnection
from rostra.runtime.node import Node
from rostra.runtime.settings import NodeSettings
from rostra.wire.frames import Violation, encode
from rostra.wire.messages import Ping


class Sink(asyncio.Transport):
    """Accepts all writes, so that the test decides the order in which bytes and the end arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def receive(connection: ClientConnection, raw: bytes) -> None:
    connection.get_buffer(-1)[: len(raw)] = raw
    connection.buffer_updated(len(raw))


def test_the_end_of_a_stream_that_the_broker_hung_up_on_is_no_second_violation(tmp_path: Path) -> None:
    async def play() -> dict[str, int]:
        node = Node(NodeSettings(directory=str(tmp_path), listen="127.0.0.1:0"))
        await node.start()
        connection = ClientConnection(node)
        sink = Sink()
        connection.connection_made(sink)
        receive(connection, encode(Ping(1)) + encode(Ping(2))[:-1])
        connection.eof_received()
        await asyncio.sleep(0)
        assert sink.closed
        connection.connection_lost(None)
        await node.stop()
        return dict(node.counters.violations)

    assert asyncio.run(play()) == {Violation.NOT_GREETED: 1}
