"""Sending what a turn has gathered, at once and in order."""

from __future__ import annotations

import asyncio
import os

BUFFERS_MAX = 512
"""The kernel takes no more than 1024 at once."""

Buffer = bytes | bytearray | memoryview


def send_at_once(transport: asyncio.Transport, descriptor: int, buffers: list[Buffer]) -> int:
    """The loop would send at the end of its turn, whichever connection first; it gets only what does not fit now.

    Returns how many bytes they are.
    """
    size = sum(map(len, buffers))
    if descriptor >= 0 and len(buffers) <= BUFFERS_MAX and not transport.get_write_buffer_size():
        try:
            sent = os.writev(descriptor, buffers)
        except OSError:
            # A full buffer, or the end of the connection, which the transport finds too and tells.
            sent = 0
        if sent == size:
            return size
        buffers = _rest(buffers, sent)
    transport.writelines(buffers)
    return size


def _rest(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """What is left of them when that many bytes have gone."""
    at = 0
    while sent >= len(buffers[at]):
        sent -= len(buffers[at])
        at += 1
    return [memoryview(buffers[at])[sent:], *buffers[at + 1 :]]
