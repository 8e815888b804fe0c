"""How a node process is set up."""

from __future__ import annotations

from typing import Literal

import msgspec

from rostra.broker.settings import BrokerSettings
from rostra.fabric.registry import DEFAULT


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    directory: str = "rostra-data"
    listen: str = "127.0.0.1:7400"
    """For clients; port 0 chooses a free one."""
    listen_unix: str = ""
    """The path of a socket for clients on the same machine, besides `listen`; empty for none."""
    peer_listen: str = ""
    """For other nodes; empty: the host of `listen`, and the port after its port (a free one, if that is free)."""
    advertise: str = ""
    """Where clients find this node, if that is not what it listens on."""
    advertise_peers: str = ""
    """Where other nodes find it."""
    join: tuple[str, ...] = ()
    """Peer addresses of members, through any of which a new node enters the cluster; empty founds one."""
    fabric: str = DEFAULT
    both_ways: bool = False
    """Where nodes form a ring: whether records go to both neighbours."""
    fsync: Literal["commit", "never"] = "commit"
    """`commit`: nothing is acknowledged before it is on stable storage. `never`: the operating system writes when it
    likes, and a power cut may lose acknowledged records."""
    metrics: str = ""
    """Address for Prometheus; empty for none."""
    trace: str = ""
    """Directory for the node's trace; empty for none."""
    stop_deadline_ms: int = 10_000
    busy_poll_ms: int = 0
    """How long the node looks for more without sleeping after bytes came in: a shorter delay for a core's time."""
    broker: BrokerSettings = BrokerSettings()
