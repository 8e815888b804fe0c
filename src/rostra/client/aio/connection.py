"""The socket of the asyncio client."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from rostra.busy_poll import BusyPoll
from rostra.errors import PeerViolation
from rostra.wire.frames import FROM_NODE, FrameReader
from rostra.wire.messages import NodeMessage

if TYPE_CHECKING:
    from rostra.client.aio.driver import AsyncioDriver

FRAME_BYTES_MAX = 64 << 20
SEND_BUFFER_BYTES = 1 << 20
ABORT_AFTER_S = 2.0


class Connection(asyncio.BufferedProtocol):
    """One socket, which receives directly into the frame reader's buffer."""

    def __init__(self, driver: AsyncioDriver, number: int) -> None:
        self._driver = driver
        self._number = number
        self._reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        self._busy = BusyPoll(asyncio.get_running_loop(), driver.core.options.busy_poll_ms)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._driver.opened(self._number)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            messages = self._reader.received(nbytes)
        except PeerViolation as violation:
            self._driver.lost(self._number, str(violation))
            self.close()
            return
        if messages:
            self._driver.received(self._number, messages)
        self._busy.extend()

    def connection_lost(self, exc: Exception | None) -> None:
        self._driver.lost(self._number, str(exc) if exc else "closed by the node")

    def pause_writing(self) -> None:
        self._driver.congested(self._number)

    def resume_writing(self) -> None:
        self._driver.drained(self._number)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
            if self.transport.get_write_buffer_size():
                # Closing flushes the send buffer first, which never ends if the node does not read.
                asyncio.get_running_loop().call_later(ABORT_AFTER_S, self.transport.abort)
