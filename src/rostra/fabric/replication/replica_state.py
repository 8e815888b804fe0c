"""The state of one copy of a partition: log, owner epoch, commit offset, and whether the copy is complete.

The owner's and the follower's side (`Sender`, `Follower`) work on this state. What differs between consensus and
primary/backup is in the methods under "of the subclass".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rostra.errors import PartitionDamaged, RostraError
from rostra.fabric.api import (
    Blocked,
    Committed,
    FabricEffect,
    LogLine,
    Now,
    Recovered,
    ServedElsewhere,
    Serving,
)
from rostra.fabric.links.deadline_queue import NEVER_US
from rostra.fabric.replication.hard_state_gate import HardStateGate
from rostra.fabric.replication.incoming_entry import IncomingEntry
from rostra.fabric.replication.log_state import LogState
from rostra.fabric.replication.messages import InstallSnapshot
from rostra.fabric.replication.progress import Progress
from rostra.fabric.replication.settings import ReplicationSettings
from rostra.fabric.replication.snapshot_start import SnapshotStart, reconcile
from rostra.model.batch import placement_seed
from rostra.model.ids import NodeId, Partition, text
from rostra.safeguards import Without

COMMIT_REPORT_US = 5_000
"""How often a replica without readers reports its commit offset to the broker."""


class ReplicaState(HardStateGate):
    __slots__ = (
        "address_of",
        "checksum_seed",
        "commit",
        "commit_report_us",
        "complete",
        "complete_at",
        "damaged_at",
        "deadline_us",
        "disk_failed",
        "epoch",
        "has_readers",
        "installing_snapshot",
        "is_owner",
        "log",
        "name",
        "node",
        "now",
        "observer",
        "owner",
        "partition",
        "queued_us",
        "quiescent",
        "removed",
        "segment_bytes",
        "sends_heartbeats",
        "settings",
        "snapshot_start",
        "snapshots",
        "unreported_commit",
        "wants_heartbeat",
        "was_owner",
        "without",
    )

    settings: ReplicationSettings

    def __init__(
        self,
        node: NodeId,
        found: Recovered,
        *,
        key: str,
        epoch: int,
        complete: bool,
        commit: int,
        snapshots: int,
        snapshot_start: SnapshotStart | None,
        settings: ReplicationSettings,
        address_of: Callable[[NodeId], str],
        segment_bytes: int,
        without: Without,
    ) -> None:
        super().__init__(key, settings.deferred_inputs_max, without)
        self.node = node
        self.partition: Partition = found.partition
        self.checksum_seed = placement_seed(found.partition.topic, found.partition.index)
        """Seeds the checksum that covers a batch's partition."""
        self.settings = settings
        self.without = without
        self.segment_bytes = segment_bytes
        self.address_of = address_of
        self.name = text(found.partition.topic)
        self.now = Now(0, 0)
        self.complete, epochs = reconcile(snapshot_start, complete, found)
        """False: the copy lacks entries that this node once acknowledged, or may lack them."""
        self.epoch = max(epoch, epochs[-1].epoch) if epochs else epoch
        """The owner epoch. The log may hold entries of one that was not persisted before the crash."""
        self.log = LogState(found.first, found.end, epochs, without)
        self.commit = min(max(found.first, commit), found.end)
        self.snapshots = snapshots
        """How many snapshots were installed: replies from before the last one are stale."""
        self.snapshot_start = snapshot_start
        self.damaged_at = found.damaged_at
        self.installing_snapshot = False
        """The copy is incomplete and its log restarted at an owner's log start."""
        self.complete_at: int | None = None
        self.owner: NodeId | None = None
        """The node that owns the partition in this epoch, as far as known."""
        self.is_owner = False
        self.quiescent = False
        """Nothing is to be replicated: the heartbeat between the two nodes stands in for the partition's own."""
        self.wants_heartbeat = False
        """Something waits for a heartbeat round: send it now, not at the next period."""
        self.has_readers = False
        """Whether subscribers read this copy and wait for commit offsets."""
        self.commit_report_us = 0
        self.unreported_commit = 0
        """Commit offset not yet reported to the broker; reports are throttled while the copy has no readers."""
        self.disk_failed = False
        self.deadline_us: int | None = None
        """When `deadline_passed` is to be called."""
        self.queued_us = NEVER_US
        """When the deadline queue next returns this replica; not later than `deadline_us`."""
        self.was_owner = False
        self.sends_heartbeats = False
        """Whether the node's heartbeats include this partition: it is owned here and has followers that are awake."""
        self.observer: Callable[[list[FabricEffect]], list[FabricEffect]] | None = None
        """Sees this replica's effects before the node does, and returns those that the node is to have."""
        self.removed = False
        """The node was removed from the cluster: it owns nothing and acknowledges nothing."""

    # --- of the subclass: who owns, who is fed, what is committed ---

    @property
    def is_only_copy(self) -> bool:
        """Whether no other node has a copy that counts: damage to this one cannot be mended."""
        raise NotImplementedError

    def followers(self) -> tuple[NodeId, ...]:
        """The nodes that this owner feeds."""
        raise NotImplementedError

    def agreed_offset(self) -> int:
        """Up to where the acknowledgements so far commit the log (not below `commit`, not above its end)."""
        raise NotImplementedError

    def receive(self, now: Now, peer: NodeId, message: Any, payload: bytearray | None = None) -> None:
        """A message about this partition arrived."""
        raise NotImplementedError

    def deadline_passed(self, now: Now) -> None:
        """`deadline_us` has come."""
        raise NotImplementedError

    def peer_lost(self, now: Now, peer: NodeId) -> None:
        """The peer's node heartbeat, which stands in for that of a quiescent partition, is lost, or it restarted."""
        raise NotImplementedError

    def accept_owner(self, peer: NodeId) -> None:
        """A message of this epoch's owner arrived; raises `PeerViolation` if that cannot be."""
        raise NotImplementedError

    def newer_epoch(self, epoch: int) -> None:
        """A heartbeat, or the reply to one, is of a newer owner epoch than this copy's."""
        raise NotImplementedError

    def refusal(self) -> RostraError | None:
        """Returns why this node accepts no proposals now, or None."""
        raise NotImplementedError

    def snapshot_message(self, first: int) -> InstallSnapshot:
        """The message that restarts a follower's log at `first`, this log's start."""
        return InstallSnapshot(self.partition, self.epoch, first, self.log.epochs_before(first))

    def control_batches_arrived(self, entries: list[IncomingEntry]) -> bool:
        """Control batches are about to be appended. True: not before the hard state that was changed now is durable."""
        return False

    def entries_appended(self) -> None:
        """Entries of the owner were appended."""

    def log_changed(self) -> None:
        """The log was truncated or restarted."""

    def snapshot_began(self, message: InstallSnapshot) -> None:
        """The log will restart as this message says, once the hard state is durable."""

    def completeness_changed(self) -> None:
        """The copy became complete or incomplete."""

    def acknowledged(self, peer: NodeId, progress: Progress) -> None:
        """A follower has acknowledged entries or answered a heartbeat; commit and sending are done."""

    def commit_advanced(self) -> None:
        """The commit offset advanced, and was reported."""

    def round_answered(self) -> None:
        """A follower has answered a heartbeat round."""

    def fell_silent(self) -> None:
        """Quiescence began."""

    def woken(self) -> None:
        """Quiescence ended."""

    def has_work(self) -> bool:
        """Whether something other than records keeps this owner from falling silent."""
        return False

    def first_heard_us(self) -> int:
        """The time at which a new follower counts as heard, though it has sent nothing yet."""
        return self.now.mono_us

    # --- for the broker ---

    @property
    def only_copy_damaged(self) -> bool:
        """The copy is damaged and the only one: it serves what can be read and accepts no proposals."""
        return not self.complete and self.is_only_copy

    @property
    def damage_error(self) -> RostraError:
        at = self.log.end if self.damaged_at is None else self.damaged_at
        return PartitionDamaged(self.name, self.partition.index, at)

    def announce(self) -> None:
        """Reports to the broker which node serves the partition; an incomplete copy counts as none."""
        self.report_commit()
        address = self.address_of(self.owner) if self.owner is not None and self.owner != self.node else ""
        if self.removed or (not self.complete and not self.only_copy_damaged):
            self.out.append(ServedElsewhere(self.partition, self.epoch, address))
            return
        log = self.log
        owner = self.is_owner or self.only_copy_damaged
        self.out.append(Serving(self.partition, self.epoch, owner, log.first, log.end, self.commit, address))
        if self.only_copy_damaged:
            self.out.append(Blocked(self.partition, self.damage_error))

    def add_log_line(self, level: str, event: str, about: dict[str, int | str]) -> None:
        place = f"{self.name}/{self.partition.index}"
        self.out.append(LogLine(level, event, {"partition": place, "node": self.node, **about}))

    # --- completeness ---

    def mark_incomplete(self) -> None:
        """Marks the copy incomplete at start, because its log cannot be read."""
        self.complete = False

    def set_complete(self, complete: bool) -> None:
        self.complete = complete
        self.hard_state_changed()
        self.installing_snapshot = False
        self.complete_at = None
        self.completeness_changed()
        self.announce()

    def begin_snapshot(self, message: InstallSnapshot) -> None:
        self.snapshot_start = SnapshotStart(message.log_start, message.epochs)
        self.snapshots += 1
        self.hard_state_changed()
        self.complete_at = None
        self.snapshot_began(message)

    # --- commit ---

    def report_commit(self) -> None:
        """Reports a pending commit offset to the broker, once the log (which a full disk may have cut) reaches it."""
        if self.unreported_commit and self.unreported_commit <= self.log.end:
            self.out.append(Committed(self.partition, self.unreported_commit))
            self.unreported_commit = 0

    def advance_commit(self, offset: int) -> None:
        self.commit = offset
        now_us = self.now.mono_us
        if self.has_readers or self.is_owner or now_us >= self.commit_report_us:
            self.commit_report_us = now_us + COMMIT_REPORT_US
            if offset <= self.log.end:
                self.unreported_commit = 0
                self.out.append(Committed(self.partition, offset))
            else:
                self.unreported_commit = offset
        else:
            self.unreported_commit = offset
        self.commit_advanced()
