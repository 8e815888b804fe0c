"""What the leader of the catalogue decides: whose copies go where, and which member may leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rostra.errors import QuorumAtRisk, ReplicasUnavailable, RostraError, UnknownMember
from rostra.fabric.raft.consensus.membership import MembershipChange
from rostra.fabric.raft.messages import ReassignmentReport
from rostra.fabric.raft.metadata.metadata_state import (
    REPLICAS,
    NodeLeft,
    ReassignmentDone,
    ReassignmentStarted,
    ReplicaAssignment,
    count,
)
from rostra.model.ids import NodeId, Partition

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

GONE_TIMEOUTS = 30
LOOK_US = 200
"""For each topic: from one look at all of them to the next."""


class ReplicaPlacement:
    """Looks at the catalogue whenever something may have changed, and writes down the next steps, a few at a time."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._seen: tuple[object, ...] = ()
        """Term, catalogue and nodes as they were when there was last nothing to do."""
        self._looks_us = 0
        """Not before then, unless nodes have come or gone."""
        self._nodes: tuple[object, ...] = ()

    def look(self) -> None:
        raft = self._raft
        meta = raft.meta
        if not meta.leads or meta.under_way:
            return
        nodes = (meta.group.term, self._there(), self._gone(), tuple(meta.catalogue.leaving))
        seen = (meta.applied, *nodes)
        if seen == self._seen or (nodes == self._nodes and raft.now.mono_us < self._looks_us):
            return
        begun = [ReassignmentStarted(*move) for move in self._next_moves()]
        self._nodes = nodes
        if not begun and not meta.catalogue.moving:
            # A look at all topics, which whoever makes thousands of them must not pay for with every heartbeat.
            self._looks_us = raft.now.mono_us + LOOK_US * len(meta.catalogue.topics)
        leaving = [node for node in meta.catalogue.leaving if not self._holds_anything(node)]
        for node in leaving:
            self._let_go(node)
        # A change that took a joining node in may have been cut, and that node cannot know.
        outside = [node for node in meta.catalogue.staying if node not in meta.group.config.everyone]
        for node in outside:
            meta.group.change(raft.now, MembershipChange.ADD, node)
        if all(meta.write(entry) for entry in begun) and not leaving and not outside:
            self._seen = seen

    def _there(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self._raft.meta.catalogue.staying if self._raft.peers.is_there(node))

    def _gone(self) -> tuple[NodeId, ...]:
        """Away for so long that nothing that is to come there is waited for."""
        raft = self._raft
        since_us = raft.now.mono_us - GONE_TIMEOUTS * raft.settings.election_us
        return tuple(node for node in raft.meta.catalogue.staying if raft.peers.is_gone(node, since_us))

    # --- copies ---

    def _next_moves(self) -> Iterator[tuple[Partition, tuple[NodeId, ...]]]:
        """As many as may be under way at a time; those that are, and must go elsewhere, count already."""
        moving = self._raft.meta.catalogue.moving
        room = self._raft.settings.moves_max - len(moving)
        for partition, replicas in self._moves():
            if partition not in moving:
                if room <= 0:
                    continue
                room -= 1
            yield partition, replicas

    def _moves(self) -> Iterator[tuple[Partition, tuple[NodeId, ...]]]:
        """Partitions that lack copies which somebody could hold, or have one at a node that is to leave."""
        catalogue = self._raft.meta.catalogue
        there, gone = self._there(), self._gone()
        leads, holds = catalogue.held()
        for partition in catalogue.partitions():
            placed = catalogue.placement(partition)
            wanted = catalogue.topics[partition.topic].wanted or REPLICAS
            kept = tuple(node for node in placed.replicas if node in holds)
            if placed.former:
                kept = tuple(node for node in kept if node in placed.former or node not in gone)
            spare = sorted((node for node in there if node not in kept), key=lambda node: (holds[node], node))
            chosen = tuple(spare[: max(0, wanted - len(kept))])
            if placed.former and kept == placed.replicas and not (chosen and len(kept) < len(placed.former)):
                # Under way. What goes to nodes that stay, and are not away for ever, is left alone, unless copies are
                # given up for which there is room by now.
                continue
            replicas = kept + chosen
            replicas += self._needed(placed, wanted - len(replicas), len(holds) - len(replicas))
            if replicas and set(replicas) != set(placed.replicas):
                count(placed.replicas, leads, holds, by=-1)
                replicas = _led_by_the_least_busy(replicas, placed.replicas[0], leads)
                count(replicas, leads, holds)
                yield partition, replicas

    def _needed(self, placed: ReplicaAssignment, lacking: int, others: int) -> tuple[NodeId, ...]:
        """Those who are to leave and keep their copies for now, because whoever could have them is not there.

        Only where nobody else is a member at all does a partition go on with fewer: two copies need each other, and
        nobody could refill the one or choose a leader if the other were damaged.
        """
        leaving = [node for node in placed.holders if node in self._raft.meta.catalogue.leaving]
        return tuple(leaving[: max(0, min(lacking, others))])

    def arranged(self, message: ReassignmentReport) -> None:
        """A partition's group says that it has the members it should have."""
        meta = self._raft.meta
        placed = meta.catalogue.placed.get(message.partition)
        over = ReassignmentDone(message.partition, message.replicas)
        if meta.leads and placed is not None and placed.former and placed.replicas == message.replicas:
            meta.write(over)

    # --- members ---

    def _holds_anything(self, node: NodeId) -> bool:
        catalogue = self._raft.meta.catalogue
        return any(node in catalogue.placement(partition).holders for partition in catalogue.partitions())

    def _let_go(self, node: NodeId) -> None:
        """Out of the group that decides, then out of the catalogue. A leader that is to go hands over first."""
        raft = self._raft
        group = raft.meta.group
        if node == raft.node:
            heir = raft.leaving.heir_of(group)
            if heir is not None:
                group.transfer(raft.now, heir)
        elif node in group.config.everyone:
            # It was asked long ago: others may have gone since then. And who has just joined may be no voter yet.
            rest = [voter for voter in group.config.voters if voter != node]
            fewest = min(REPLICAS, len(raft.meta.catalogue.staying), len(group.config.voters))
            if len(rest) >= fewest and raft.peers.could_agree(group, node):
                group.change(raft.now, MembershipChange.REMOVE, node)
        elif group.config_end <= group.commit:
            raft.meta.write(NodeLeft(node))

    def no_removal(self, node: NodeId) -> RostraError | None:
        """Why this member cannot go now, if it cannot."""
        catalogue = self._raft.meta.catalogue
        if node not in catalogue.members:
            return UnknownMember(node)
        going = {*catalogue.leaving, node}
        voters = [voter for voter in self._raft.meta.group.config.voters if voter not in going]
        needed = len(voters) // 2 + 1
        there = sum(self._raft.peers.is_there(voter) for voter in voters)
        if there < needed:
            return QuorumAtRisk(node, there, needed)
        for partition in catalogue.partitions():
            replicas = catalogue.placement(partition).replicas
            if node in replicas and not self._can_move(replicas, going):
                name = catalogue.topics[partition.topic].spec.name
                return ReplicasUnavailable(node, name, partition.index)
        return None

    def _can_move(self, replicas: tuple[NodeId, ...], going: set[NodeId]) -> bool:
        """Whether the group can agree on a change now, and will be able to agree on anything after it."""
        is_there = self._raft.peers.is_there
        if 2 * sum(is_there(node) for node in replicas) <= len(replicas):
            return False
        rest = [node for node in replicas if node not in going]
        spare = [node for node in self._there() if node not in replicas and node not in going]
        after = [*rest, *spare[: len(replicas) - len(rest)]]
        return 2 * sum(is_there(node) for node in after) > len(after) > 0


def _led_by_the_least_busy(
    replicas: tuple[NodeId, ...], before: NodeId, leads: dict[NodeId, int]
) -> tuple[NodeId, ...]:
    """The preferred leader first: it stays the same unless it goes, or a node that comes leads fewer."""
    least = min((node for node in replicas if node in leads), key=lambda node: (leads[node], node), default=replicas[0])
    stays = before in replicas and before in leads
    first = before if stays and leads[before] <= leads[least] else least
    return (first, *(node for node in replicas if node != first))
