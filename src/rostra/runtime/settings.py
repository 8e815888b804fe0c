"""Settings of a node process."""

from __future__ import annotations

from typing import Literal

import msgspec

from rostra.broker.settings import BrokerSettings
from rostra.fabric.registry import DEFAULT


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    directory: str = "rostra-data"
    name: str = ""
    """What the node is called in tables and logs; empty: the address that clients are told."""
    listen: str = "127.0.0.1:7400"
    """For clients; port 0 chooses a free one."""
    listen_unix: str = ""
    """The path of a Unix socket for clients on the same machine, besides `listen`; empty for none."""
    peer_listen: str = ""
    """For other nodes; empty: the host of `listen` with the next port, or any free port if `listen` has port 0."""
    advertise: str = ""
    """Address for clients, if it differs from `listen`."""
    advertise_peers: str = ""
    """Address for other nodes, if it differs from `peer_listen`."""
    join: tuple[str, ...] = ()
    """Peer addresses of members of the cluster to join; empty to found a new cluster."""
    fabric: str = DEFAULT
    fabric_settings: dict[str, int | bool | str] = {}
    """Settings of the fabric, by their names in `FabricKind.settings`."""
    fsync: Literal["commit", "never"] = "commit"
    """`commit`: records are acknowledged when they are on stable storage. `never`: a power cut may lose acknowledged
    records."""
    metrics: str = ""
    """Address for Prometheus; empty for none."""
    trace: str = ""
    """Directory for the node's trace; empty for none."""
    stop_deadline_ms: int = 10_000
    busy_poll_ms: int = 0
    """How long the node polls after it received bytes instead of sleeping: lower latency for the time of a core."""
    broker: BrokerSettings = BrokerSettings()
