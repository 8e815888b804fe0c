"""The status of a broker of the ring: its members, and why it cannot serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.status import REMOVED, ClusterStatus, MemberStatus

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood


def status_of(flood: Flood) -> ClusterStatus:
    """A ring has no voters; every member counts."""
    ring = flood.ring
    members = tuple(
        MemberStatus(member.node, member.address, member.peer_address, ring.is_alive(member.node), True)
        for _, member in sorted(ring.members.items())
    )
    return ClusterStatus(flood.node, flood.boot, members, ())


def problem_of(flood: Flood) -> str:
    """Why the node cannot serve with its cluster at the moment; empty if it can."""
    if flood.ring.is_removed:
        return REMOVED
    return "" if flood.ready else "the node has not joined the ring yet"
