"""What a node proposes to the authority, and when: one thing at a time, and an unknown outcome is settled first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rostra.fabric.primary_backup.authority import Authority, Proposal
from rostra.fabric.primary_backup.configuration import (
    AddMember,
    Change,
    ChangePrimary,
    Configuration,
    Copy,
    NewPrimaryEpoch,
    RemovalReason,
    RemoveMember,
    Unchanged,
    minimum_members,
)
from rostra.fabric.replication.progress import Progress
from rostra.model.ids import NodeId
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.primary_backup.partition_replica import PartitionReplica


class Proposer:
    def __init__(self, replica: PartitionReplica, authority: Authority, next_token: Callable[[], int]) -> None:
        self._replica = replica
        self._authority = authority
        self._next_token = next_token
        self._asked_us = 0
        """When the last proposal was sent."""
        self._unacknowledged: dict[NodeId, tuple[int, int]] = {}
        """Of members that lack records: up to where they have acknowledged, and since when no further."""
        self._returns: dict[NodeId, tuple[int, int]] = {}
        """Of members that were removed for silence: when they may return, and the delay."""
        self._disk_delay_us = 0
        self._disk_tried_us = 0
        """After a refused write: when the disk may be tried again."""
        self._adds_after_commit = Safeguard.ADD_AFTER_COMMIT not in replica.without
        self._adds_after_begin = Safeguard.ADD_AFTER_EPOCH_BEGIN not in replica.without

    def epoch_began(self) -> None:
        self._unacknowledged.clear()

    def write_refused(self) -> None:
        settings = self._replica.settings
        delay_us = max(2 * self._disk_delay_us, settings.probe_ms * 1000)
        self._disk_delay_us = min(delay_us, settings.probe_ms_max * 1000)
        self._disk_tried_us = self._replica.now.mono_us + self._disk_delay_us

    def period_passed(self) -> None:
        """Whatever is due by time: unanswered proposals, silent members, a handover that takes too long."""
        replica = self._replica
        now_us = replica.now.mono_us
        if replica.is_owner:
            self._watch_members()
            if replica.hand_over_to is not None and now_us >= replica.hand_over_until_us:
                replica.add_log_line("warning", "handover given up", {"heir": replica.hand_over_to})
                replica.hand_over_to = None
        if replica.is_owner and self._disk_delay_us and replica.log.synced > replica.epoch_began_at:
            self._disk_delay_us = 0
        if replica.view.open and now_us - self._asked_us >= replica.settings.answer_ms * 1000:
            for proposal in replica.view.open:
                replica.view.outcome_unknown(proposal.token)
        self.pursue()

    def pursue(self) -> None:
        """Proposes what is to be changed now, if anything."""
        replica = self._replica
        configuration = replica.configuration
        if configuration is None or replica.persisting:
            return
        if replica.view.open:
            if replica.view.has_unknown and self._may_ask_again():
                # Decided, it raises the version: then none of the open ones can be decided any more.
                self._propose(configuration, self._own_change(configuration) or Unchanged())
            return
        change = self._own_change(configuration)
        if change is None and replica.is_owner:
            change = self._change_as_primary(configuration)
        if change is not None:
            self._propose(configuration, change)

    def _may_ask_again(self) -> bool:
        replica = self._replica
        return replica.now.mono_us - self._asked_us >= replica.settings.answer_ms * 1000

    def _propose(self, configuration: Configuration, change: Change) -> None:
        replica = self._replica
        self._asked_us = replica.now.mono_us
        proposal = Proposal(self._next_token(), replica.partition, configuration.version, change)
        replica.view.proposed(proposal)
        if isinstance(change, AddMember):
            replica.sender.update_followers()
        self._authority.propose(proposal)

    # --- whatever the role ---

    def _own_change(self, configuration: Configuration) -> Change | None:
        """What this node needs for itself: to be removed with a copy that is not fit, or a primary epoch."""
        replica = self._replica
        node = replica.node
        if node not in configuration.nodes:
            return None
        if not replica.is_fit:
            return RemoveMember(node, RemovalReason.UNFIT) if len(configuration.members) > 1 else None
        if configuration.primary != node or replica.may_order:
            return None
        if self._disk_delay_us:
            heir = self._heir(configuration)
            if heir is not None:
                return ChangePrimary(heir)
            if replica.now.mono_us < self._disk_tried_us:
                return None
        return NewPrimaryEpoch(node)

    def _heir(self, configuration: Configuration) -> NodeId | None:
        others = (node for node in configuration.nodes if node != self._replica.node)
        return next((node for node in others if node not in self._replica.view.missing), None)

    # --- as primary ---

    def _change_as_primary(self, configuration: Configuration) -> Change | None:
        replica = self._replica
        if replica.hand_over_to is not None:
            heir = configuration.copy_of(replica.hand_over_to)
            ready = heir is not None and replica.match_of(heir) == replica.log.end
            return ChangePrimary(replica.hand_over_to) if ready else None
        return self._addition(configuration) or self._removal(configuration)

    def _addition(self, configuration: Configuration) -> Change | None:
        """A node that should have a copy and has what may be committed."""
        replica = self._replica
        for peer in replica.view.assigned:
            progress = replica.sender.progress.get(peer)
            if progress is None or peer in configuration.nodes or peer in replica.view.missing:
                continue
            if self._is_delayed(peer) or not self._may_be_added(progress):
                continue
            return AddMember(Copy(peer, progress.snapshots))
        return None

    def _may_be_added(self, progress: Progress) -> bool:
        """It has acknowledged, in this primary epoch, the commit offset and the end that the log had when the epoch
        began. Below that end may lie what a former primary has committed."""
        replica = self._replica
        needed = 1
        if self._adds_after_commit:
            needed = max(needed, replica.commit)
        if self._adds_after_begin:
            needed = max(needed, replica.epoch_began_at)
        return progress.match >= needed

    def _removal(self, configuration: Configuration) -> Change | None:
        replica = self._replica
        if len(configuration.members) <= minimum_members(configuration.width, replica.view.policy):
            return None
        now_us, silence_us = replica.now.mono_us, replica.settings.silence_ms * 1000
        for node in configuration.nodes:
            since_us = self._unacknowledged.get(node, (0, now_us))[1]
            if node != replica.node and now_us - since_us >= silence_us:
                self._delay_return(node)
                return RemoveMember(node, RemovalReason.SILENT)
        assigned = replica.view.assigned
        if assigned and set(assigned) <= set(configuration.nodes):
            surplus = [node for node in configuration.nodes if node not in assigned]
            if surplus == [replica.node] or replica.node in surplus[:1]:
                # A primary does not remove itself: it hands over, and its heir does.
                return self._leave(assigned)
            if surplus:
                return RemoveMember(surplus[0], RemovalReason.SURPLUS)
        return None

    def _leave(self, assigned: tuple[NodeId, ...]) -> Change | None:
        replica = self._replica
        replica.hand_over_to = assigned[0]
        replica.hand_over_until_us = replica.now.mono_us + replica.settings.hand_over_ms * 1000
        return None

    def _watch_members(self) -> None:
        """Notes since when a member has not acknowledged what it was sent."""
        replica = self._replica
        now_us = replica.now.mono_us
        watched: dict[NodeId, tuple[int, int]] = {}
        for copy in replica.view.counted():
            match = replica.match_of(copy)
            if copy.node == replica.node or match >= replica.log.end:
                continue
            before, since_us = self._unacknowledged.get(copy.node, (-1, now_us))
            watched[copy.node] = (match, since_us if match == before else now_us)
        self._unacknowledged = watched

    def _is_delayed(self, peer: NodeId) -> bool:
        return peer in self._returns and self._replica.now.mono_us < self._returns[peer][0]

    def _delay_return(self, node: NodeId) -> None:
        settings = self._replica.settings
        _, delay_us = self._returns.get(node, (0, settings.return_ms * 500))
        delay_us = min(2 * delay_us, settings.return_ms_max * 1000)
        self._returns[node] = (self._replica.now.mono_us + delay_us, delay_us)
