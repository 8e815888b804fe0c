"""The state of a cluster as rows: members, partitions, ring, and a summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rostra.cli.output import Cell
from rostra.model.ids import NodeId, text

if TYPE_CHECKING:
    from rostra.fabric.registry import PartitionColumns
    from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition, RingState

METADATA_NAME = "_metadata"
"""Shown in place of a topic for the metadata partition."""

MEMBER_COLUMNS = ("name", "address", "peer_address", "state", "votes", "owns", "replicas", "id")
RING_COLUMNS = ("broker", "next", "previous", "members", "view", "round_trip_ms", "backlog")
STATUS_COLUMNS = ("commit", "end", "quorum", "node", "as", "match", "lag")


def status_columns(state: ClusterState) -> tuple[str, ...]:
    return ("partition", columns_of(state.fabric).epoch, *STATUS_COLUMNS)


def columns_of(fabric: str) -> PartitionColumns:
    """Of a fabric that this version does not know, what can be said of any."""
    from rostra.fabric.registry import FABRICS, PartitionColumns

    kind = FABRICS.get(fabric)
    return kind.columns if kind is not None else PartitionColumns("epoch", lambda copies: 1)


def member_row(node: NodeState) -> dict[str, Cell]:
    return {
        "id": text(node.node),
        "name": node.name,
        "address": node.address,
        "peer_address": node.peer_address,
        "alive": node.alive,
        "votes": node.votes,
        "leaving": node.leaving,
        "owns": node.owns,
        "replicas": node.copies,
    }


def member_table_row(node: NodeState) -> dict[str, Cell]:
    """With one word for the state, so that the table fits eighty columns."""
    state = "up" if node.alive else "down"
    return {**member_row(node), "state": "leaving" if node.leaving else state}


def ring_row(ring: RingState, state: ClusterState) -> dict[str, Cell]:
    members = Members(state)
    return {
        "id": text(ring.node),
        "broker": members.name_of(ring.node),
        "next": members.name_of(ring.next) if ring.next else "",
        "previous": members.name_of(ring.previous) if ring.previous else "",
        "members": [members.name_of(node) for node in ring.members],
        "view": ring.view,
        "round_trip_ms": round(ring.round_trip_us / 1000, 3),
        "backlog": ring.backlog,
    }


def ring_table_row(ring: RingState, state: ClusterState) -> dict[str, Cell]:
    """With the number of members in place of their list."""
    return {**ring_row(ring, state), "members": f"{len(ring.members)} of {len(state.nodes)}"}


def topic_of(placed: PlacedPartition) -> str:
    return placed.topic or METADATA_NAME


def name_of(placed: PlacedPartition) -> str:
    return f"{placed.topic}/{placed.partition}" if placed.topic else METADATA_NAME


class Quorum:
    """Whether as many of a partition's voters are alive as its fabric needs, as the node that was asked sees them."""

    def __init__(self, placed: PlacedPartition, alive: frozenset[NodeId], columns: PartitionColumns) -> None:
        voters = [copy.node for copy in placed.copies if copy.votes]
        self.voters = len(voters)
        self.alive = sum(voter in alive for voter in voters)
        self.is_met = self.alive >= columns.needed(self.voters)
        self.has_owner = placed.owner in alive
        self.moving = placed.moving

    def __str__(self) -> str:
        count = f"{self.alive}/{self.voters}"
        if not self.is_met:
            return f"{count} lost"
        if not self.has_owner:
            return f"{count} no owner"
        return f"{count} moving" if self.moving else count


class Members:
    """The members of a cluster: which are alive, and their names."""

    def __init__(self, state: ClusterState) -> None:
        self.alive = frozenset(node.node for node in state.nodes if node.alive)
        self.columns = columns_of(state.fabric)
        self._names = {node.node: node.name for node in state.nodes}

    def name_of(self, node: NodeId) -> str:
        return self._names.get(node) or text(node)


def partition_row(placed: PlacedPartition, members: Members) -> dict[str, Cell]:
    """All of a partition's state, for JSON."""
    alive = members.alive
    quorum = Quorum(placed, alive, members.columns)
    replicas: list[Cell] = [
        {
            "node": text(copy.node),
            "name": members.name_of(copy.node),
            "alive": copy.node in alive,
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
        "owner_name": members.name_of(placed.owner) if placed.owner else None,
        "epoch": placed.epoch,
        "first": placed.first,
        "commit": placed.commit,
        "end": placed.end,
        "quorum": quorum.is_met,
        "voters": quorum.voters,
        "voters_alive": quorum.alive,
        "moving": placed.moving,
        "replicas": replicas,
    }


def lag_of(placed: PlacedPartition, copy: CopyState) -> int | None:
    return max(placed.end - copy.match, 0) if copy.match >= 0 else None


def partition_table_rows(placed: PlacedPartition, members: Members) -> list[dict[str, Cell]]:
    """One row for the partition and its owner, and one for each other replica."""
    ordered = sorted(placed.copies, key=lambda copy: (copy.node != placed.owner, copy.node))
    rows = [_replica_cells(placed, copy, members) for copy in ordered] or [{}]
    rows[0] = {
        "partition": name_of(placed),
        members.columns.epoch: placed.epoch,
        "commit": placed.commit,
        "end": placed.end,
        "quorum": str(Quorum(placed, members.alive, members.columns)),
        **rows[0],
    }
    return rows


def _replica_cells(placed: PlacedPartition, copy: CopyState, members: Members) -> dict[str, Cell]:
    if copy.node not in members.alive:
        role = "down"
    elif copy.node == placed.owner:
        role = "owner"
    else:
        role = "replica" if copy.votes else "learner"
    return {
        "node": members.name_of(copy.node),
        "as": role,
        "match": copy.match if copy.match >= 0 else None,
        "lag": lag_of(placed, copy),
    }


def summary(state: ClusterState) -> list[str]:
    members = Members(state)
    alive = members.alive
    down = [members.name_of(node.node) for node in state.nodes if not node.alive]
    owned = Counter(placed.owner for placed in state.partitions if placed.owner in alive)
    quorums = [Quorum(placed, alive, members.columns) for placed in state.partitions]
    lost = sum(not quorum.is_met for quorum in quorums)
    ownerless = sum(quorum.is_met and not quorum.has_owner for quorum in quorums)
    count = len(state.nodes)
    parts = [
        f"{state.fabric}, {count} member{'s' if count != 1 else ''}: {len(alive)} up, {len(down)} down"
        + (f" ({', '.join(down)})" if down else ""),
        "owners: " + (", ".join(f"{members.name_of(node)} {owned[node]}" for node in sorted(owned)) or "none"),
        f"{lost} without a quorum" if lost else "every partition has a quorum",
    ]
    parts += [f"{ownerless} without an owner"] if ownerless else []
    return parts
