"""A free port that stays ours while a node is down."""

from __future__ import annotations

import os
import socket
import weakref

ANY_LOOPBACK_PORT = "127.0.0.1:0"


class ReservedAddress:
    """An address of this host, reserved until the object is collected.

    The port is bound and never listened on: the system does not give it out as a free port, but a node that names
    it may bind it, as often as it is restarted.
    """

    def __init__(self) -> None:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        host, port = bound.getsockname()
        self.address = f"{host}:{port}"
        weakref.finalize(self, os.close, bound.detach())


class ReservedAddresses:
    """The addresses that one node was given."""

    def __init__(self) -> None:
        self._reserved: list[ReservedAddress] = []

    def fix(self, address: str) -> str:
        """The address itself, or a reserved one if it leaves the port of the loopback interface open."""
        if address != ANY_LOOPBACK_PORT:
            return address
        self._reserved.append(ReservedAddress())
        return self._reserved[-1].address
