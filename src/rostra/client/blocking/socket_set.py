"""The sockets of a blocking client. With only one, which is usual, it is read without polling."""

from __future__ import annotations

import os
import select
import socket
import time

from rostra.client.blocking.blocking_socket import SLICE_US, BlockingSocket, DialingSocket
from rostra.client.core.options import host_and_port, unix_path


class BlockingSockets:
    def __init__(self, busy_poll_ms: int = 0) -> None:
        self._busy_poll_ms = busy_poll_ms
        self.by_number: dict[int, BlockingSocket] = {}
        self.only: BlockingSocket | None = None
        """The socket, if it is the only one and nothing is being dialed."""
        self._dialing: dict[int, DialingSocket] = {}
        self._poll: select.poll | None = None
        self._numbers: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.by_number or self._dialing)

    # --- opening and closing -------------------------------------------------------------------------

    def dial(self, number: int, address: str, timeout_s: float) -> bool:
        """Connect, or start to connect if there are other sockets; return whether it is connected."""
        if self:
            self._dialing[number] = DialingSocket(number, address)
            self._changed()
            return False
        self._add(number, _connected(address, timeout_s))
        return True

    def _add(self, number: int, connected: socket.socket) -> None:
        self.by_number[number] = BlockingSocket(number, connected, self._busy_poll_ms)
        self._changed()

    def close(self, number: int) -> None:
        dialing = self._dialing.pop(number, None)
        if dialing is not None:
            dialing.close()
        connected = self.by_number.pop(number, None)
        if connected is not None:
            connected.close()
        self._changed()

    def close_all(self) -> list[int]:
        """Close all sockets and return their numbers."""
        numbers = [*self._dialing, *self.by_number]
        for number in numbers:
            self.close(number)
        return numbers

    def _changed(self) -> None:
        self._poll = None
        alone = len(self.by_number) == 1 and not self._dialing
        self.only = next(iter(self.by_number.values())) if alone else None

    # --- waiting -------------------------------------------------------------------------------------

    def wait(self, wait_us: int) -> list[int]:
        """The numbers of the sockets with events within that time, or within one slice of it."""
        poll = self._poll or self._registered()
        for connected in self.by_number.values():
            if connected.congested:
                poll.modify(connected, select.POLLIN | select.POLLOUT)
                # For this call only: usually there is nothing to send.
                self._poll = None
        wait_us = max(min(wait_us, SLICE_US), 0)
        ready = self._busy_wait(poll, wait_us) if self._busy_poll_ms and wait_us else []
        ready = ready or poll.poll(wait_us / 1000)
        return [self._numbers[descriptor] for descriptor, _ in ready]

    def _busy_wait(self, poll: select.poll, wait_us: int) -> list[tuple[int, int]]:
        """Poll without sleeping, for at most the busy-poll time."""
        until_ns = time.monotonic_ns() + min(self._busy_poll_ms * 1_000_000, wait_us * 1000)
        while not (ready := poll.poll(0)) and time.monotonic_ns() < until_ns:
            os.sched_yield()
        return ready

    def _registered(self) -> select.poll:
        poll = self._poll = select.poll()
        self._numbers = {}
        for connected in self.by_number.values():
            poll.register(connected, select.POLLIN)
            self._numbers[connected.fileno()] = connected.number
        for dialing in self._dialing.values():
            poll.register(dialing, select.POLLOUT)
            self._numbers[dialing.fileno()] = dialing.number
        return poll

    def opened(self, number: int) -> bool | None:
        """Whether a dialed socket is connected now; None if it was not being dialed. Raises if it failed."""
        dialing = self._dialing.get(number)
        if dialing is None:
            return None
        connected = dialing.finished()
        if connected is None:
            self._changed()
            return False
        del self._dialing[number]
        self._add(number, connected)
        return True


def _connected(address: str, timeout_s: float) -> socket.socket:
    path = unix_path(address)
    if path is None:
        return socket.create_connection(host_and_port(address), timeout=timeout_s)
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(timeout_s)
        connected.connect(path)
    except OSError:
        connected.close()
        raise
    return connected
