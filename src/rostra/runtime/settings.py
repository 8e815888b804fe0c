"""How a node process is set up."""

from __future__ import annotations

from typing import Literal

import msgspec

from rostra.broker.settings import BrokerSettings
from rostra.errors import InvalidSetting


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    directory: str = "rostra-data"
    listen: str = "127.0.0.1:7400"
    fsync: Literal["commit", "never"] = "commit"
    """`commit`: nothing is acknowledged before it is on stable storage. `never`: the operating system writes when it
    likes, and a power cut may lose acknowledged records."""
    metrics: str = ""
    """Address for Prometheus; empty for none."""
    stop_deadline_ms: int = 10_000
    busy_poll_ms: int = 0
    """How long the node looks for more without sleeping after bytes came in: a shorter delay for a core's time."""
    broker: BrokerSettings = BrokerSettings()


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `:port` (loopback)."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise InvalidSetting("address", f"{address!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
