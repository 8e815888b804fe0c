"""Addresses of a node: what is written in a setting, what is bound, and what others are told."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from pathlib import Path

from rostra.errors import InvalidSetting
from rostra.model.addresses import UNIX_PATH_BYTES_MAX

EVERYWHERE = ("0.0.0.0", "::")


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `:port` (loopback)."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise InvalidSetting("address", f"{address!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def next_door(address: str) -> str:
    """Where peers are listened to if nobody says: beside the clients."""
    host, port = split_address(address)
    return join_address(host, port + 1 if port else 0)


def bind(address: str) -> socket.socket:
    """A port of one's own, on which nobody is answered yet: others can be told of it before anything is served."""
    host, port = split_address(address)
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def listen(bound: socket.socket, backlog: int) -> None:
    """Before a loop is given the socket. Two who bound the same port may both believe that it is theirs until one of
    them listens, and uvloop would not tell the other that it was too late: it would wait for callers that never come.
    """
    try:
        bound.listen(backlog)
    except OSError as error:
        raise OSError(error.errno, error.strerror, bound_address(bound)) from None


def bind_unix(path: str) -> socket.socket:
    """A socket in the file system. What a node that was killed has left there is cleared away."""
    if len(path.encode()) > UNIX_PATH_BYTES_MAX:
        raise InvalidSetting("listen_unix", f"{path!r} is longer than {UNIX_PATH_BYTES_MAX} bytes")
    bound = socket.socket(socket.AF_UNIX)
    try:
        if _is_left_over(path):
            Path(path).unlink()
        bound.bind(path)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, path) from None
    bound.setblocking(False)
    return bound


def _is_left_over(path: str) -> bool:
    """Whether there is a socket to which nobody listens."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(path) == errno.ECONNREFUSED


def close_unix(bound: socket.socket, path: str) -> None:
    """Nothing is left behind. A path that is gone, or not to be reached any more, does no harm."""
    bound.close()
    with suppress(OSError):
        Path(path).unlink()


def bound_address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return join_address(host, port)


def told_address(bound: socket.socket, advertised: str) -> str:
    """What others are told: what the operator says, else what is bound, under a name if that is every address."""
    if advertised:
        return advertised
    host, port = bound.getsockname()[:2]
    return join_address(socket.gethostname() if host in EVERYWHERE else host, port)
