"""What every part of a flood broker shares: the node's step, its settings and its logs."""

from __future__ import annotations

from random import Random

from rostra.fabric.flood.origin_partition import OriginLog
from rostra.fabric.flood.settings import FloodSettings
from rostra.fabric.links.node_context import NodeContext
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Without


class FloodContext(NodeContext):
    """`boot` is also the incarnation of origin partitions created by this start."""

    def __init__(
        self,
        node: NodeId,
        address: str,
        peer_address: str,
        name: str,
        random: Random,
        settings: FloodSettings,
        without: Without,
    ) -> None:
        super().__init__(node, address, peer_address)
        self.name = name
        self.random = random
        self.settings = settings
        self.without = without
        self.logs: dict[Partition, OriginLog] = {}
