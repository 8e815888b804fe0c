"""The state of a cluster as rows: of its members, of its partitions, and in one line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rostra.cli.output import Cell
from rostra.model.ids import NodeId, text

if TYPE_CHECKING:
    from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition, RingState

CATALOGUE = "_catalogue"
"""Stands for what the cluster keeps about itself, where a topic would stand."""

MEMBER_COLUMNS = ("id", "address", "for_peers", "state", "votes", "owns", "copies")
RING_COLUMNS = ("broker", "next", "previous", "members", "view", "circle_ms", "lacks")
STATUS_COLUMNS = ("partition", "term", "commit", "end", "quorum", "node", "as", "match", "lag")


def member_row(node: NodeState) -> dict[str, Cell]:
    return {
        "id": text(node.node),
        "address": node.address,
        "peer_address": node.peer_address,
        "there": node.there,
        "votes": node.votes,
        "leaving": node.leaving,
        "owns": node.owns,
        "copies": node.copies,
    }


def shown_member(node: NodeState) -> dict[str, Cell]:
    """For people, on eighty columns."""
    there = "there" if node.there else "away"
    return {**member_row(node), "for_peers": node.peer_address, "state": "leaving" if node.leaving else there}


def ring_row(ring: RingState, state: ClusterState) -> dict[str, Cell]:
    addresses = {node.node: node.address for node in state.nodes}
    return {
        "id": text(ring.node),
        "broker": addresses.get(ring.node, text(ring.node)),
        "next": addresses.get(ring.next, ""),
        "previous": addresses.get(ring.previous, ""),
        "members": [addresses.get(node, text(node)) for node in ring.members],
        "view": ring.view,
        "circle_ms": round(ring.circle_us / 1000, 3),
        "lacks": ring.lacks,
    }


def shown_ring(ring: RingState, state: ClusterState) -> dict[str, Cell]:
    """For people: how many the members are says enough."""
    return {**ring_row(ring, state), "members": f"{len(ring.members)} of {len(state.nodes)}"}


def topic_of(placed: PlacedPartition) -> str:
    return placed.topic or CATALOGUE


def name_of(placed: PlacedPartition) -> str:
    return f"{placed.topic}/{placed.partition}" if placed.topic else CATALOGUE


class Quorum:
    """Whether enough of those that count for a partition are there, as the node that was asked sees them."""

    def __init__(self, placed: PlacedPartition, there: frozenset[NodeId]) -> None:
        voters = [copy.node for copy in placed.copies if copy.votes]
        self.voters = len(voters)
        self.there = sum(voter in there for voter in voters)
        self.is_there = self.there >= self.voters // 2 + 1
        self.has_owner = placed.owner in there
        self.moving = placed.moving

    def __str__(self) -> str:
        count = f"{self.there}/{self.voters}"
        if not self.is_there:
            return f"{count} lost"
        if not self.has_owner:
            return f"{count} unled"
        return f"{count} moving" if self.moving else count


def nodes_there(state: ClusterState) -> frozenset[NodeId]:
    return frozenset(node.node for node in state.nodes if node.there)


def partition_row(placed: PlacedPartition, there: frozenset[NodeId]) -> dict[str, Cell]:
    """Whole, for programs."""
    quorum = Quorum(placed, there)
    copies: list[Cell] = [
        {
            "node": text(copy.node),
            "there": copy.node in there,
            "votes": copy.votes,
            "match": copy.match if copy.match >= 0 else None,
            "lag": lag_of(placed, copy),
        }
        for copy in placed.copies
    ]
    return {
        "topic": topic_of(placed),
        "partition": placed.partition,
        "owner": text(placed.owner) if placed.owner else None,
        "term": placed.epoch,
        "first": placed.first,
        "commit": placed.commit,
        "end": placed.end,
        "quorum": quorum.is_there,
        "voters": quorum.voters,
        "voters_there": quorum.there,
        "moving": placed.moving,
        "copies": copies,
    }


def lag_of(placed: PlacedPartition, copy: CopyState) -> int | None:
    return max(placed.end - copy.match, 0) if copy.match >= 0 else None


def shown_rows(placed: PlacedPartition, there: frozenset[NodeId]) -> list[dict[str, Cell]]:
    """For people: a line for the partition and its owner, and one for each other copy."""
    ordered = sorted(placed.copies, key=lambda copy: (copy.node != placed.owner, copy.node))
    rows = [_copy_cells(placed, copy, there) for copy in ordered] or [{}]
    rows[0] = {
        "partition": name_of(placed),
        "term": placed.epoch,
        "commit": placed.commit,
        "end": placed.end,
        "quorum": str(Quorum(placed, there)),
        **rows[0],
    }
    return rows


def _copy_cells(placed: PlacedPartition, copy: CopyState, there: frozenset[NodeId]) -> dict[str, Cell]:
    if copy.node not in there:
        role = "away"
    elif copy.node == placed.owner:
        role = "owner"
    else:
        role = "copy" if copy.votes else "learner"
    return {
        "node": text(copy.node),
        "as": role,
        "match": copy.match if copy.match >= 0 else None,
        "lag": lag_of(placed, copy),
    }


def summary(state: ClusterState) -> list[str]:
    there = nodes_there(state)
    away = [text(node.node) for node in state.nodes if not node.there]
    leads = Counter(placed.owner for placed in state.partitions if placed.owner in there)
    quorums = [Quorum(placed, there) for placed in state.partitions]
    lost = sum(not quorum.is_there for quorum in quorums)
    ownerless = sum(quorum.is_there and not quorum.has_owner for quorum in quorums)
    count = len(state.nodes)
    parts = [
        f"{state.fabric}, {count} member{'s' if count != 1 else ''}: {len(there)} there, {len(away)} away"
        + (f" ({', '.join(away)})" if away else ""),
        "leaders: " + (", ".join(f"{text(node)} {leads[node]}" for node in sorted(leads)) or "none"),
        f"{lost} without a quorum" if lost else "every partition has a quorum",
    ]
    parts += [f"{ownerless} without an owner"] if ownerless else []
    return parts
