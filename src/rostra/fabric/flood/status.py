"""The status of a broker of the ring."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rostra.fabric.flood.messages import RingMember
from rostra.fabric.status import ClusterStatus, MemberStatus
from rostra.model.ids import NodeId


def status_of(
    node: NodeId, boot: int, members: Iterable[RingMember], is_alive: Callable[[NodeId], bool]
) -> ClusterStatus:
    """A ring has no voters; every member counts."""
    found = tuple(
        MemberStatus(member.node, member.address, member.peer_address, is_alive(member.node), True)
        for member in sorted(members, key=lambda member: member.node)
    )
    return ClusterStatus(node, boot, found, ())
