"""Writes the buffers of a turn to a socket immediately, in order."""

from __future__ import annotations

import asyncio
import os

BUFFERS_MAX = 512
"""Half of IOV_MAX of Linux."""

Buffer = bytes | bytearray | memoryview


def write_now(transport: asyncio.Transport, descriptor: int, buffers: list[Buffer]) -> int:
    """Bypasses the event loop, which would write later; the transport gets only what the socket does not take now.

    Returns the size of the buffers in bytes.
    """
    size = sum(map(len, buffers))
    if descriptor >= 0 and len(buffers) <= BUFFERS_MAX and not transport.get_write_buffer_size():
        try:
            sent = os.writev(descriptor, buffers)
        except OSError:
            # The buffer is full, or the connection has ended, which the transport notices and reports itself.
            sent = 0
        if sent == size:
            return size
        buffers = _rest(buffers, sent)
    transport.writelines(buffers)
    return size


def _rest(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """The buffers without the first `sent` bytes."""
    at = 0
    while sent >= len(buffers[at]):
        sent -= len(buffers[at])
        at += 1
    return [memoryview(buffers[at])[sent:], *buffers[at + 1 :]]
