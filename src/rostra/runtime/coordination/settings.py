"""How a node reaches its coordination service."""

from __future__ import annotations

import msgspec


class CoordinationTls(msgspec.Struct, frozen=True):
    """Files in PEM format. Without `certificate` the node does not identify itself."""

    ca: str
    certificate: str | None = None
    key: str | None = None
    check_hostname: bool = True


class CoordinationSettings(msgspec.Struct, frozen=True):
    hosts: str
    """Addresses with commas between them; a path after the last one is prefixed to all paths."""
    session_timeout_ms: int = 6_000
    user: str | None = None
    """With `password`: digest credentials. Znodes that the node creates are then writable for this user alone."""
    password: str | None = None
    tls: CoordinationTls | None = None
    outstanding_max: int = 1_024
    """Requests without an answer; another one is refused with `FailureReason.TOO_MANY`."""
    request_bytes_max: int = 1_000_000
    """The service closes the connection on a larger packet, and would do so again after each retry."""
    reconnect_delay_ms_max: int = 1_000
