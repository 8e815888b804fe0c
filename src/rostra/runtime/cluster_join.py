"""The way of a new node into a cluster: it asks those it was told of which cluster they belong to."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from rostra.model.ids import ClusterId, text
from rostra.runtime.network.handshake import NO_CLUSTER, NodeIdentity
from rostra.runtime.network.peer_links import UNLINKABLE, PeerLink

ASK_AGAIN_S_MIN = 0.05
ASK_AGAIN_S_MAX = 1.0


async def find_cluster(own: NodeIdentity, addresses: tuple[str, ...], log: Any) -> ClusterId:
    """Returns when somebody knows. Those asked may be about to join themselves, or not be there yet."""
    source = random.SystemRandom()
    pause_s = ASK_AGAIN_S_MIN
    troubles: dict[str, str] = {}
    while True:
        for address in addresses:
            cluster, trouble = await _ask(own, address)
            if cluster != NO_CLUSTER:
                log.info("cluster found", cluster=text(cluster), through=address)
                return cluster
            if troubles.get(address) != trouble:
                troubles[address] = trouble
                log.warning("not joined yet", through=address, reason=trouble)
        await asyncio.sleep(pause_s * source.uniform(0.5, 1.0))
        pause_s = min(pause_s * 2, ASK_AGAIN_S_MAX)


async def _ask(own: NodeIdentity, address: str) -> tuple[ClusterId, str]:
    link = PeerLink(own)
    try:
        answer = await link.dial(address)
    except UNLINKABLE as error:
        return NO_CLUSTER, str(error) or type(error).__name__
    finally:
        link.abort()
    if answer.node == own.node:
        return NO_CLUSTER, "this is the node's own address"
    if not answer.cluster:
        return NO_CLUSTER, "the node there is not in a cluster yet either: one node is started without --join"
    return ClusterId(answer.cluster), ""
