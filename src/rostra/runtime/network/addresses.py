"""Addresses of a node: parsing settings, binding sockets, and the address to advertise."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from pathlib import Path

from rostra.errors import AddressInUse, AddressNotLocal, InvalidSetting, PortNotPermitted, RostraError
from rostra.model.addresses import UNIX_PATH_BYTES_MAX

PORT_STEP = 10
PORT_MAX = 65_000
EVERYWHERE = ("0.0.0.0", "::")


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `:port` (loopback)."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise InvalidSetting("address", f"{address!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def default_peer_address(address: str) -> str:
    """The default for `peer_listen`: the port after that for clients."""
    host, port = split_address(address)
    return join_address(host, port + 1 if port else 0)


def bind(address: str, argument: str = "listen") -> socket.socket:
    """Binds without listening, so that the address can be advertised before anything is served.

    `argument` is the setting that has the address, for the error.
    """
    host, port = split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise AddressNotLocal(address, argument) from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError as error:
        bound.close()
        raise listen_error(error, address, argument) from None
    bound.setblocking(False)
    return bound


def listen_error(error: OSError, address: str, argument: str) -> RostraError | OSError:
    """What a refused `bind` or `listen` means to the operator."""
    host, port = split_address(address)
    match error.errno:
        case errno.EADDRINUSE:
            return AddressInUse(address, argument, join_address(host, port + PORT_STEP if port < PORT_MAX else 0))
        case errno.EADDRNOTAVAIL:
            return AddressNotLocal(address, argument)
        case errno.EACCES:
            return PortNotPermitted(port, argument)
        case _:
            return OSError(error.errno, error.strerror, address)


def listen(bound: socket.socket, backlog: int, argument: str = "listen") -> None:
    """Listens before an event loop gets the socket. Two processes may bind the same port until one of them listens, and
    uvloop does not report that error: the other process would wait for connections that never come.
    """
    try:
        bound.listen(backlog)
    except OSError as error:
        raise listen_error(error, bound_address(bound), argument) from None


def bind_unix(path: str) -> socket.socket:
    """Binds a Unix socket; removes a socket file that a killed node has left."""
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
    """Whether the path is a socket without a listener."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(path) == errno.ECONNREFUSED


def close_unix(bound: socket.socket, path: str) -> None:
    """Closes the socket and removes its path, if it still exists."""
    bound.close()
    with suppress(OSError):
        Path(path).unlink()


def bound_address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return join_address(host, port)


def advertised_address(bound: socket.socket, advertised: str) -> str:
    """The address for others: the configured one, else the bound one, with the host name if all interfaces are
    bound."""
    if advertised:
        return advertised
    host, port = bound.getsockname()[:2]
    return join_address(socket.gethostname() if host in EVERYWHERE else host, port)
