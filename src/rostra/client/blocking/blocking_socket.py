"""A blocking socket: one system call to send, one to receive."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rostra.client.core.options import host_and_port, unix_path
from rostra.wire.frames import FROM_NODE, Buffer, FrameReader
from rostra.wire.messages import NodeMessage

FRAME_BYTES_MAX = 64 << 20
SLICE_US = 100_000
"""Longest wait in the kernel; timers have this precision."""
BUFFERS_MAX = 512
_NONBLOCKING: int = socket.MSG_DONTWAIT

Messages = list[tuple[NodeMessage, bytearray | None]]


class BlockingSocket:
    """Receives directly into the frame reader's buffer; what can not be sent at once is sent while reading."""

    def __init__(self, number: int, connected: socket.socket, busy_poll_ms: int = 0) -> None:
        self.number = number
        """The core's number of the link."""
        self.reported_congested = False
        self._socket = connected
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own timeout instead of Python's, which would poll before each receive.
        self._socket.settimeout(None)
        limit = struct.pack("@ll", SLICE_US // 1_000_000, SLICE_US % 1_000_000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        self._outbox: deque[Buffer] = deque()
        self._busy_poll_ns = busy_poll_ms * 1_000_000
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def congested(self) -> bool:
        return bool(self._outbox)

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send the few buffers of one frame, or queue what the kernel does not take."""
        if not self._outbox:
            try:
                sent = self._socket.sendmsg(buffers, (), _NONBLOCKING)
            except BlockingIOError:
                sent = 0
            if sent == sum(map(len, buffers)):
                return
            self._outbox.extend(buffers)
            self._consume(sent)
        else:
            self._outbox.extend(buffers)
            self._send_outbox()

    def _send_outbox(self) -> None:
        while self._outbox:
            some = [self._outbox[index] for index in range(min(len(self._outbox), BUFFERS_MAX))]
            try:
                sent = self._socket.sendmsg(some, (), _NONBLOCKING)
            except BlockingIOError:
                return
            self._consume(sent)

    def _consume(self, sent: int) -> None:
        outbox = self._outbox
        while outbox and sent >= len(outbox[0]):
            sent -= len(outbox.popleft())
        if sent:
            outbox[0] = memoryview(outbox[0])[sent:]

    def read(self, wait_us: int) -> Messages:
        """The messages that arrive within that time, or within one slice of it."""
        flags = _NONBLOCKING
        if self._outbox:
            self._wait_for_either(wait_us)
        elif self._busy_poll_ns and wait_us > 0 and (size := self._busy_read(wait_us)):
            return self._reader.received(size)
        elif wait_us >= SLICE_US:
            flags = 0
        elif wait_us > 0 and not self._poll.poll(-(-wait_us // 1000)):
            return []
        try:
            size = self._socket.recv_into(self._reader.free_space(), 0, flags)
        except BlockingIOError:
            return []
        if size == 0:
            raise ConnectionResetError("closed by the node")
        return self._reader.received(size)

    def _busy_read(self, wait_us: int) -> int:
        """Receive without sleeping, for at most the busy-poll time; return the number of bytes, 0 if none came."""
        space = self._reader.free_space()
        until_ns = time.monotonic_ns() + min(self._busy_poll_ns, wait_us * 1000)
        while time.monotonic_ns() < until_ns:
            try:
                size = self._socket.recv_into(space, 0, _NONBLOCKING)
            except BlockingIOError:
                # Let other processes run first, such as the node that the client waits for.
                os.sched_yield()
            else:
                if size == 0:
                    raise ConnectionResetError("closed by the node")
                return size
        return 0

    def _wait_for_either(self, wait_us: int) -> None:
        self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
        try:
            events = self._poll.poll(max(min(wait_us, SLICE_US), 0) / 1000)
        finally:
            self._poll.modify(self._socket, select.POLLIN)
        if any(event & select.POLLOUT for _, event in events):
            self._send_outbox()

    def close(self) -> None:
        # Best effort for a Goodbye; closing does not wait for it.
        with suppress(OSError):
            self._send_outbox()
        self._socket.close()


class DialingSocket:
    """A connection being opened while other sockets are read; it tries the addresses of a host one after the other."""

    def __init__(self, number: int, address: str) -> None:
        self.number = number
        self._untried = _resolve(address)
        self._socket = self._try_next("no address")

    def fileno(self) -> int:
        return self._socket.fileno()

    def _try_next(self, reason: str) -> socket.socket:
        while self._untried:
            family, address = self._untried.pop(0)
            dialing = socket.socket(family)
            dialing.setblocking(False)
            failure = dialing.connect_ex(address)
            if failure in (0, errno.EINPROGRESS):
                return dialing
            dialing.close()
            reason = os.strerror(failure)
        raise OSError(reason)

    def finished(self) -> socket.socket | None:
        """Called after an event: return the connected socket, or None if the next address is being tried."""
        failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not failure:
            return self._socket
        self._socket.close()
        self._socket = self._try_next(os.strerror(failure))
        return None

    def close(self) -> None:
        self._socket.close()


def _resolve(address: str) -> list[tuple[int, Any]]:
    """Family and address of everything that the address resolves to."""
    path = unix_path(address)
    if path is not None:
        return [(socket.AF_UNIX, path)]
    host, port = host_and_port(address)
    return [(found[0], found[4]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
