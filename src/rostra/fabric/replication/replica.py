"""One copy of a partition, with both sides of replication: the shared core of consensus and primary/backup.

Pure: inputs and time in, effects out (`out`). The owner sends an entry to its followers before its own fsync; what is
committed then is the subclass's rule (`agreed_offset`). While hard state is being written, inputs are deferred in
order, so every message that leaves depends only on durable state. A partition whose followers are up to date becomes
quiescent: it sends nothing, and the heartbeat between the two nodes stands in for its own until that is lost or there
is work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rostra.errors import RostraError
from rostra.fabric.api import BatchOffsets, Now, Recovered, Trim
from rostra.fabric.links.messages import PartitionHeartbeat, PartitionHeartbeatReply
from rostra.fabric.replication.follower import Follower
from rostra.fabric.replication.messages import (
    AppendEntries,
    AppendEntriesRefused,
    AppendEntriesReply,
    InstallSnapshot,
    ReplicationMessage,
)
from rostra.fabric.replication.replica_state import ReplicaState
from rostra.fabric.replication.sender import Sender
from rostra.fabric.replication.settings import ReplicationSettings
from rostra.fabric.replication.snapshot_start import SnapshotStart
from rostra.model.ids import NodeId
from rostra.safeguards import Without


class Replica(ReplicaState):
    """A subclass implements the methods that `ReplicaState` lists as its own, and `fence`."""

    __slots__ = ("follower", "sender")

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
        next_token: Callable[[], int],
        address_of: Callable[[NodeId], str],
        segment_bytes: int,
        without: Without,
    ) -> None:
        super().__init__(
            node,
            found,
            key=key,
            epoch=epoch,
            complete=complete,
            commit=commit,
            snapshots=snapshots,
            snapshot_start=snapshot_start,
            settings=settings,
            address_of=address_of,
            segment_bytes=segment_bytes,
            without=without,
        )
        self.follower = Follower(self)
        self.sender = Sender(self, next_token)

    # --- of the subclass ---

    def fence(self, peer: NodeId, message: Any, payload: bytearray | None) -> bool:
        """Whether to process a message of another owner epoch now. The default ignores it, and tells a former owner."""
        if message.epoch < self.epoch:
            self.refuse_former_owner(peer, message)
        return False

    def other_message(self, peer: NodeId, message: Any) -> None:
        """A message that is none of replication's."""
        raise NotImplementedError

    def write_refused(self) -> None:
        """The disk refused the last appends; the log no longer has them."""

    # --- messages ---

    def receive(self, now: Now, peer: NodeId, message: Any, payload: bytearray | None = None) -> None:
        self.now = now
        if self.persisting:
            self.defer(lambda: self.receive(self.now, peer, message, payload), sent=True)
            return
        if self.quiescent:
            self.wake(now)
        if message.epoch == self.epoch or self.fence(peer, message, payload):
            kind = type(message)
            if kind is AppendEntries:
                self.accept_owner(peer)
                self.follower.append_entries(peer, message, payload)
            elif kind is AppendEntriesReply:
                if self.is_owner:
                    self.sender.append_acknowledged(peer, message)
            elif kind is AppendEntriesRefused:
                if self.is_owner:
                    self.sender.append_refused(peer, message)
            elif isinstance(message, InstallSnapshot):
                self.accept_owner(peer)
                self.follower.install_snapshot(peer, message)
            else:
                self.other_message(peer, message)
        self.flush()

    def refuse_former_owner(self, peer: NodeId, message: ReplicationMessage) -> None:
        """Tells a node that still believes to own the partition which epoch has begun."""
        if isinstance(message, AppendEntries | InstallSnapshot):
            self.send(peer, AppendEntriesRefused(self.partition, self.epoch, 0, 0, 0))

    # --- proposals ---

    def propose(self, now: Now, batch: bytearray, owner_flags: int = 0) -> BatchOffsets | RostraError:
        """Appends a batch as the owner; returns its offsets, or why this node accepts none."""
        self.now = now
        error = self.refusal()
        if error is not None:
            return error
        if self.quiescent:
            self.wake(now)
        offsets = self.sender.append(batch, owner_flags)
        self.flush()
        return offsets

    def advance_log_start(self, now: Now, first: int) -> None:
        """Advances the log start for retention; AppendEntries carries it to the followers."""
        self.now = now
        if self.is_owner and self.log.first < first <= self.commit:
            self.log.trim(first)
            self.out.append(Trim(self.partition, first))

    def set_readers(self, now: Now, present: bool) -> None:
        """Local readers appeared or left; notifies the owner."""
        self.now = now
        self.has_readers = present
        self.report_commit()
        if present and not self.is_owner and self.owner is not None and not self.persisting and not self.quiescent:
            self.follower.acknowledge(self.owner)
            self.flush()

    # --- the disk ---

    def synced(self, now: Now, generation: int, offset: int) -> None:
        self.now = now
        if self.persisting:
            self.defer(lambda: self.synced(self.now, generation, offset))
            return
        if self.log.mark_synced(generation, offset):
            if self.complete_at is not None:
                self.follower.finish_snapshot()
            if self.is_owner:
                self.sender.own_log_synced()
            elif self.owner is not None:
                self.follower.acknowledge(self.owner)
        self.flush()

    def persisted(self, now: Now, number: int) -> None:
        self.now = now
        self.continue_after_persist(number)

    def write_failed(self, now: Now, offset: int, generation: int) -> None:
        """The disk refused the last appends. An owner whose followers have them must not reuse their offsets."""
        self.now = now
        self.log.drop_tail(offset, generation)
        self.follower.agreed = min(self.follower.agreed, offset)
        self.log_changed()
        self.write_refused()
        self.flush()

    def read_done(self, now: Now, token: int, batches: bytes) -> None:
        self.now = now
        if not self.sender.awaits_read(token):
            return
        if self.persisting:
            self.defer(lambda: self.sender.read_failed(token))
        else:
            self.sender.read_done(token, batches)
            self.flush()

    def read_failed(self, now: Now, token: int, damaged: bool) -> None:
        """A read for a follower or a client failed. A damaged copy steps aside if there are others."""
        self.now = now
        self.sender.read_failed(token)
        if damaged and not self.persisting and self.complete and not self.is_only_copy:
            self.set_complete(False)
        self.flush()

    # --- heartbeats, which the node combines for all partitions ---

    def heartbeats(self, now: Now) -> list[tuple[NodeId, PartitionHeartbeat]]:
        self.now = now
        self.wants_heartbeat = False
        if not self.is_owner or self.quiescent or self.persisting:
            return []
        heartbeats = self.sender.heartbeats()
        self.flush()
        return heartbeats

    def heartbeat_received(
        self, now: Now, peer: NodeId, heartbeat: PartitionHeartbeat
    ) -> PartitionHeartbeatReply | None:
        self.now = now
        if self.persisting:
            return None
        if heartbeat.epoch < self.epoch:
            return PartitionHeartbeatReply(self.partition, self.epoch, heartbeat.round, 0, 0, 0)
        if heartbeat.epoch > self.epoch:
            self.newer_epoch(heartbeat.epoch)
            self.flush()
            return None
        self.accept_owner(peer)
        reply = self.follower.heartbeat(peer, heartbeat)
        if self.quiescent:
            self.fell_silent()
        self.flush()
        return reply if not self.persisting else None

    def heartbeat_answered(self, now: Now, peer: NodeId, reply: PartitionHeartbeatReply) -> None:
        self.now = now
        if self.persisting:
            return
        if reply.epoch > self.epoch:
            self.newer_epoch(reply.epoch)
        elif self.is_owner and reply.epoch == self.epoch:
            if self.sender.heartbeat_answered(peer, reply):
                self.round_answered()
            if self.is_owner and self.sender.may_quiesce() and self.sender.all_quiescent():
                self.quiescent = True
                self.fell_silent()
        self.flush()

    def wake(self, now: Now) -> None:
        """Ends quiescence: there is work, or the node heartbeat that stood in for the partition's own is lost."""
        self.now = now
        if not self.quiescent:
            return
        self.quiescent = False
        if self.is_owner:
            for progress in self.sender.progress.values():
                progress.heard_us = self.first_heard_us()
                progress.quiescent = False
        self.woken()
