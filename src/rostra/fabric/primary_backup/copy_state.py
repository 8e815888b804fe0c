"""The state of one copy of a partition, whatever its role: configuration, copy number, and what it may do.

It says to replication who is fed, who counts and what a commit needs. `PartitionReplica` adds the inputs.
"""

from __future__ import annotations

from collections.abc import Callable

from rostra.errors import NotEnoughCopies, PeerViolation
from rostra.fabric.api import Blocked, Recovered
from rostra.fabric.primary_backup.configuration import Configuration, Copy, CopyPolicy, minimum_members
from rostra.fabric.primary_backup.configuration_view import ConfigurationView
from rostra.fabric.primary_backup.hard_state import CopyHardState, key_of_copy, pack_copy_state
from rostra.fabric.primary_backup.messages import BeginCopy, ConfigurationRequest
from rostra.fabric.primary_backup.settings import PartitionSettings
from rostra.fabric.replication.messages import InstallSnapshot
from rostra.fabric.replication.progress import Progress
from rostra.fabric.replication.replica import Replica
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard, Without


class CopyState(Replica):
    __slots__ = (
        "_checks_numbers",
        "_fills_below_compaction",
        "begun",
        "compacted_below",
        "fills_begun",
        "spent_epoch",
        "view",
    )

    settings: PartitionSettings

    def __init__(
        self,
        node: NodeId,
        partition: Partition,
        found: Recovered | None,
        hard_state: CopyHardState,
        *,
        policy: CopyPolicy,
        settings: PartitionSettings,
        next_token: Callable[[], int],
        address_of: Callable[[NodeId], str] = str,
        segment_bytes: int = 1 << 26,
        without: Without,
    ) -> None:
        configuration = hard_state.configuration
        super().__init__(
            node,
            found or Recovered(partition, 0, 0, ()),
            key=key_of_copy(partition),
            epoch=configuration.primary_epoch if configuration is not None else 0,
            # A copy that was being begun anew may still have the old log.
            complete=hard_state.complete and not hard_state.begun and found is not None,
            commit=0,
            snapshots=hard_state.number,
            snapshot_start=hard_state.start,
            settings=settings,
            next_token=next_token,
            address_of=address_of,
            segment_bytes=segment_bytes,
            without=without,
        )
        self.view = ConfigurationView(configuration, policy, without)
        self.owner = configuration.primary if configuration is not None else None
        self.begun = False
        """The copy was begun anew, and nothing of it is known to be on stable storage."""
        self.spent_epoch = self.epoch
        """The highest primary epoch in which this node must not order (again): it may have ordered in it, and its log
        may have lost what it ordered. A start and a refused write spend the epoch."""
        self.compacted_below = 0
        """The log may be compacted below this offset; a copy that ends before it is filled from log start."""
        self.fills_begun: dict[NodeId, tuple[int, int]] = {}
        """Copies begun anew in this primary epoch: their number, and `compacted_below` when they began."""
        self._checks_numbers = Safeguard.COPY_NUMBERS not in without
        self._fills_below_compaction = Safeguard.COMPACTION_FILL not in without

    # --- this copy ---

    @property
    def configuration(self) -> Configuration | None:
        return self.view.configuration

    @property
    def own_membership(self) -> Copy | None:
        """The copy of this node that the configuration names."""
        return self.configuration.copy_of(self.node) if self.configuration is not None else None

    @property
    def is_fit(self) -> bool:
        """Whether this node has the copy that the configuration names, whole and on a disk that works."""
        named = self.own_membership
        is_named_copy = named is not None and (named.number == self.snapshots or not self._checks_numbers)
        return is_named_copy and self.complete and not self.disk_failed

    @property
    def is_only_copy(self) -> bool:
        return self.configuration is not None and self.configuration.nodes == (self.node,)

    @property
    def has_copy(self) -> bool:
        return self.snapshots > 0 and (self.complete or self.damaged_at is not None or self.log.end > self.log.first)

    def pack_hard_state(self) -> bytes:
        return pack_copy_state(
            CopyHardState(self.configuration, self.snapshots, self.complete, self.begun, self.snapshot_start)
        )

    # --- what replication asks ---

    def followers(self) -> tuple[NodeId, ...]:
        """Members, nodes that may be members, and nodes that should become members."""
        wanted = (*(copy.node for copy in self.view.counted()), *self.view.assigned)
        return tuple(peer for peer in dict.fromkeys(wanted) if peer != self.node)

    def agreed_offset(self) -> int:
        """What every copy that counts has acknowledged in this primary epoch, if there are enough copies."""
        agreed = self.log.end
        if not self.view.has_minimum():
            return self.commit
        for copy in self.view.counted():
            agreed = min(agreed, self.match_of(copy))
        return max(agreed, self.commit)

    def match_of(self, copy: Copy) -> int:
        """Up to where a copy is known to have this log on stable storage; another number is another copy."""
        if copy.node == self.node:
            return self.log.synced if copy.number == self.snapshots or not self._checks_numbers else 0
        progress = self.sender.progress.get(copy.node)
        if progress is None or (progress.snapshots != copy.number and self._checks_numbers):
            return 0
        return progress.match

    def held_by_members(self) -> int:
        """Up to where every member and every copy that is being filled has the log: it may be compacted below."""
        counted = {copy.node for copy in self.view.counted()}
        matches = [self.match_of(copy) for copy in self.view.counted()]
        for peer, (number, _) in self.fills_begun.items():
            progress = self.sender.progress.get(peer)
            if peer not in counted and progress is not None and progress.snapshots == number:
                matches.append(progress.match)
        return min(matches, default=self.log.synced)

    def must_restart(self, peer: NodeId, progress: Progress) -> bool:
        """Whether a follower cannot be continued where its copy ends. Below the last compaction this log lacks
        records that hide what an old copy still has."""
        from_offset = self.log.first
        is_own_fill = self.fills_begun.get(peer) == (progress.snapshots, self.compacted_below)
        if self._fills_below_compaction and self.view.is_outside(peer) and not is_own_fill:
            from_offset = max(from_offset, self.compacted_below)
        return progress.next < from_offset

    def restart_due(self, peer: NodeId, progress: Progress) -> None:
        """The copy is begun anew: what its predecessor acknowledged counts no longer."""
        progress.snapshots += 1
        progress.match = 0

    def restart_message(self, peer: NodeId, progress: Progress) -> BeginCopy | None:
        """None for a member: copies are begun anew only outside the set, where nobody relies on them."""
        if self._checks_numbers and not self.view.is_outside(peer):
            return None
        self.fills_begun[peer] = (progress.snapshots, self.compacted_below)
        first = self.log.first
        return BeginCopy(self.partition, self.epoch, first, self.log.epochs_before(first), progress.snapshots)

    def snapshot_began(self, message: InstallSnapshot) -> None:
        assert isinstance(message, BeginCopy)
        self.snapshots = message.number
        self.complete = True
        self.begun = True
        self.damaged_at = None

    def accept_owner(self, peer: NodeId) -> None:
        configuration = self.configuration
        if configuration is None or configuration.primary != peer:
            raise PeerViolation(
                "primary", f"{peer} orders {self.partition} in epoch {self.epoch}, which is not its own"
            )

    def newer_epoch(self, epoch: int) -> None:
        """Epochs begin with a configuration only; `PartitionReplica` asks for it."""

    def request_configuration(self, peer: NodeId) -> None:
        version = self.configuration.version if self.configuration is not None else 0
        self.send(peer, ConfigurationRequest(self.partition, version))

    def has_work(self) -> bool:
        """Whether something other than records is to be done; the partition falls silent only without it."""
        return bool(self.view.open) or set(self.view.assigned) != set(
            self.configuration.nodes if self.configuration else ()
        )

    # --- for the broker ---

    def not_enough_copies(self) -> NotEnoughCopies | None:
        configuration = self.configuration
        if configuration is None or self.view.has_minimum():
            return None
        needed = minimum_members(configuration.width, self.view.policy)
        present = len(set(configuration.nodes) - self.view.missing)
        return NotEnoughCopies(self.name, self.partition.index, present, needed)

    def announce(self) -> None:
        super().announce()
        error = self.not_enough_copies()
        if self.is_owner and error is not None:
            self.out.append(Blocked(self.partition, error))
