"""How a new node joins: it asks the nodes at its seed addresses for the id of their cluster."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from rostra.errors import OtherCluster, WrongPort
from rostra.model.ids import ClusterId, text
from rostra.runtime.network.handshake import NO_CLUSTER, NodeIdentity
from rostra.runtime.network.peer_links import DIAL_ERRORS, PeerLink

ASK_AGAIN_S_MIN = 0.05
ASK_AGAIN_S_MAX = 1.0


async def find_cluster(own: NodeIdentity, addresses: tuple[str, ...], log: Any) -> ClusterId:
    """Asks until a node knows its cluster. Others may not be up yet, or may still be joining themselves."""
    source = random.SystemRandom()
    pause_s = ASK_AGAIN_S_MIN
    reasons: dict[str, str] = {}
    while True:
        for address in addresses:
            cluster, reason = await _ask(own, address)
            if cluster != NO_CLUSTER:
                log.info("cluster found", cluster=text(cluster), through=address)
                return cluster
            if reasons.get(address) != reason:
                reasons[address] = reason
                log.warning("not joined yet", through=address, reason=reason)
        await asyncio.sleep(pause_s * source.uniform(0.5, 1.0))
        pause_s = min(pause_s * 2, ASK_AGAIN_S_MAX)


async def check_cluster(own: NodeIdentity, addresses: tuple[str, ...]) -> None:
    """Raises `OtherCluster` if a node at these addresses belongs to another cluster than the data directory.

    Asks each once: the others may be down while this node restarts.
    """
    for address in addresses:
        link = PeerLink(own)
        try:
            await link.dial(address)
        except OtherCluster as other:
            # The other side speaks of itself first.
            raise OtherCluster(text(own.cluster), other.ours) from None
        except WrongPort:
            raise
        except DIAL_ERRORS:
            continue
        finally:
            link.abort()


async def _ask(own: NodeIdentity, address: str) -> tuple[ClusterId, str]:
    link = PeerLink(own)
    try:
        answer = await link.dial(address)
    except DIAL_ERRORS as error:
        return NO_CLUSTER, str(error) or type(error).__name__
    finally:
        link.abort()
    if answer.node == own.node:
        return NO_CLUSTER, "this is the node's own address"
    if not answer.cluster:
        return NO_CLUSTER, "that node has not joined a cluster either; start one node without --join"
    return ClusterId(answer.cluster), ""
