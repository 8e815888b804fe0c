"""The owner's side of replication: sends entries to followers and advances the commit offset."""

from __future__ import annotations

from collections.abc import Callable

from rostra.fabric.api import UNKNOWN_PEER, Append, BatchOffsets, Committed, Read
from rostra.fabric.links.messages import PartitionHeartbeat, PartitionHeartbeatReply
from rostra.fabric.replication.messages import AppendEntries, AppendEntriesRefused, AppendEntriesReply
from rostra.fabric.replication.progress import Progress, ProgressState
from rostra.fabric.replication.replica_state import ReplicaState
from rostra.model.batch import Buffer, base_offset, last_offset, stamp
from rostra.model.ids import NodeId
from rostra.safeguards import Safeguard

REPLICATE = ProgressState.REPLICATE
"""A global, because looking it up in its enumeration costs as much as all other checks of a follower."""


class Sender:
    def __init__(self, copy: ReplicaState, next_token: Callable[[], int]) -> None:
        self._copy = copy
        self._next_token = next_token
        self.progress: dict[NodeId, Progress] = {}
        self._reads: dict[int, NodeId] = {}
        """Pending log reads by token, and for whom."""
        self.heartbeat_round = 0
        """The number of the last heartbeat round; replies carry it back."""
        self._commits_at_heartbeats = (0, 0)
        """The commit offsets at the last two heartbeats."""
        self._shows_committed_only = Safeguard.COMMIT_VISIBILITY not in copy.without
        self._syncs_first = Safeguard.SYNC_BEFORE_ACK not in copy.without

    def start(self) -> None:
        """Ownership begins: nothing is known of the followers' logs."""
        copy = self._copy
        self.progress = {}
        self._commits_at_heartbeats = (copy.log.end, copy.log.end)
        self.update_followers()
        for progress in self.progress.values():
            progress.next = copy.log.end

    def stop(self) -> None:
        """Ownership ends."""
        self.progress.clear()
        self._reads.clear()

    def update_followers(self) -> None:
        """Creates a progress record for every follower, and drops those of former ones."""
        copy = self._copy
        former, self.progress = self.progress, {}
        for peer in copy.followers():
            self.progress[peer] = former.get(peer) or Progress(copy.log.end, copy.first_heard_us())

    def held_by_all(self) -> int:
        """Up to which offset every follower has the log on stable storage."""
        return min((progress.match for progress in self.progress.values()), default=self._copy.log.synced)

    def has_caught_up(self, member: NodeId) -> bool:
        """Whether its copy is complete and has what was committed a heartbeat ago; under load it lags a little."""
        if member == self._copy.node:
            return self._copy.complete
        progress = self.progress.get(member)
        return progress is not None and progress.match >= max(self._commits_at_heartbeats[0], 1)

    # --- sending ---

    def append(self, batch: bytearray, owner_flags: int = 0) -> BatchOffsets:
        """Appends a batch to the own log and sends it to every follower that keeps up, before any fsync."""
        copy = self._copy
        partition, epoch, log, commit, settings = copy.partition, copy.epoch, copy.log, copy.commit, copy.settings
        base, prev_epoch = log.end, log.last_epoch
        last = stamp(batch, partition=partition, base_offset=base, owner_epoch=epoch, owner_flags=owner_flags)
        end, size = last + 1, len(batch)
        log.append(base, end, epoch)
        copy.out.append(Append(partition, batch, True))
        if self.progress:
            # One message for all followers, so that the driver encodes it once.
            message = AppendEntries(partition, epoch, base, prev_epoch, commit, log.first)
            for peer, progress in self.progress.items():
                progress.quiescent = False
                if (
                    progress.next == base
                    and progress.state is REPLICATE
                    and progress.in_flight_bytes < settings.window_bytes
                    and len(progress.in_flight) < settings.window_messages
                ):
                    copy.send(peer, message, (batch,))
                    progress.sent_round = self.heartbeat_round
                    progress.sent_commit = commit
                    progress.record_sent(end, size)
                else:
                    self.send_next(peer, progress)
        if not self._syncs_first:
            log.synced = end
            self.own_log_synced()
        return base, last

    def _window_open(self, progress: Progress) -> bool:
        settings = self._copy.settings
        return progress.in_flight_bytes < settings.window_bytes and len(progress.in_flight) < settings.window_messages

    def _send(
        self,
        peer: NodeId,
        progress: Progress,
        prev_end: int,
        prev_epoch: int,
        payload: tuple[Buffer, ...],
        end: int,
        size: int,
        *,
        commit_only: bool = False,
    ) -> None:
        copy = self._copy
        message = AppendEntries(
            copy.partition,
            copy.epoch,
            prev_end,
            prev_epoch,
            copy.commit,
            copy.log.first,
            progress.at_boundary,
            commit_only,
        )
        copy.send(peer, message, payload)
        progress.sent_round = self.heartbeat_round
        progress.sent_commit = copy.commit
        if payload:
            progress.record_sent(end, size)

    def send_next(self, peer: NodeId, progress: Progress) -> None:
        """Sends what this follower needs next (entries, a probe or a snapshot), unless a reply is awaited."""
        copy = self._copy
        if progress.read_token:
            return
        if progress.next < copy.log.first:
            progress.rewind(copy.log.first, ProgressState.SNAPSHOT, at_boundary=True)
        if progress.state is REPLICATE:
            if progress.next < copy.log.end and self._window_open(progress):
                self._read_log(peer, progress)
        elif progress.probe_round < self.heartbeat_round:
            # One probe per round: a lost one is repeated with the next heartbeat.
            progress.probe_round = self.heartbeat_round
            if progress.state is ProgressState.PROBE:
                at_boundary = progress.at_boundary or progress.next == copy.log.end
                progress.at_boundary = at_boundary
                self._send(peer, progress, progress.next, copy.log.epoch_at(progress.next), (), 0, 0)
            else:
                self._send_snapshot(peer, progress)

    def _send_snapshot(self, peer: NodeId, progress: Progress) -> None:
        copy = self._copy
        progress.next = copy.log.first
        copy.send(peer, copy.snapshot_message(copy.log.first))
        progress.sent_round = self.heartbeat_round

    def _read_log(self, peer: NodeId, progress: Progress) -> None:
        copy = self._copy
        progress.read_token = self._next_token()
        self._reads[progress.read_token] = peer
        copy.out.append(
            Read(progress.read_token, copy.partition, progress.next, copy.log.end, copy.settings.read_bytes)
        )

    def awaits_read(self, token: int) -> bool:
        return token in self._reads

    def read_done(self, token: int, batches: bytes) -> None:
        copy = self._copy
        peer, progress = self._read_ended(token)
        if progress is None or progress.state is not REPLICATE or not batches:
            # Not in the file yet. The next heartbeat tries again.
            return
        base, end = base_offset(batches), _end_of(batches)
        progress.at_boundary = True
        self._send(peer, progress, base, copy.log.epoch_at(base), (batches,), end, len(batches))
        self.send_next(peer, progress)

    def read_failed(self, token: int) -> None:
        self._read_ended(token)

    def _read_ended(self, token: int) -> tuple[NodeId, Progress | None]:
        """The follower that the read was for; without progress if it no longer waits for this one."""
        peer = self._reads.pop(token, UNKNOWN_PEER)
        progress = self.progress.get(peer)
        if progress is None or progress.read_token != token:
            return peer, None
        progress.read_token = 0
        return peer, progress

    # --- replies of followers ---

    def append_acknowledged(self, peer: NodeId, reply: AppendEntriesReply) -> None:
        progress = self._heard_from(peer)
        if progress is None or (reply.snapshots != progress.snapshots and progress.is_stale(reply.snapshots)):
            return
        if reply.commit > progress.commit:
            progress.commit = reply.commit
        progress.has_readers = reply.has_readers
        if progress.state is not REPLICATE and reply.probed >= progress.next:
            progress.state = REPLICATE
        self._acknowledged(peer, progress, reply.agreed, reply.match)

    def _acknowledged(self, peer: NodeId, progress: Progress, agreed: int, match: int) -> None:
        copy = self._copy
        progress.acknowledged(agreed, match)
        if self.advance_commit():
            self._send_commit()
        if not copy.is_owner:
            return
        if progress.has_readers:
            # It may be the last to store entries that the others committed without it.
            self._send_commit_to(peer, progress)
        if progress.state is not REPLICATE or progress.next < copy.log.end:
            self.send_next(peer, progress)
        copy.acknowledged(peer, progress)

    def append_refused(self, peer: NodeId, reply: AppendEntriesRefused) -> None:
        copy = self._copy
        progress = self._heard_from(peer)
        if progress is None or progress.is_stale(reply.snapshots):
            return
        if reply.needs_snapshot:
            if progress.state is not ProgressState.SNAPSHOT:
                progress.rewind(copy.log.first, ProgressState.SNAPSHOT, at_boundary=True)
                # Acknowledgements of the lost log may still arrive and must not count.
                progress.snapshots, progress.match = reply.snapshots + 1, 0
            self.send_next(peer, progress)
            return
        if reply.prev_end <= progress.match or progress.state is ProgressState.SNAPSHOT:
            # The refused message was overtaken by a later one.
            return
        hint = copy.log.find_conflict(reply.hint_end, reply.hint_epoch)
        progress.rewind(max(hint, progress.match), ProgressState.PROBE, at_boundary=hint == copy.log.end)
        self.send_next(peer, progress)

    def _heard_from(self, peer: NodeId) -> Progress | None:
        progress = self.progress.get(peer)
        if progress is not None:
            progress.heard_us = self._copy.now.mono_us
        return progress

    # --- heartbeats ---

    def heartbeats(self) -> list[tuple[NodeId, PartitionHeartbeat]]:
        """Returns one heartbeat per follower, which the node combines into its own heartbeats."""
        copy = self._copy
        self.heartbeat_round += 1
        self._commits_at_heartbeats = (self._commits_at_heartbeats[1], copy.commit)
        quiet = self.may_quiesce()
        heartbeats = [
            (
                peer,
                PartitionHeartbeat(
                    copy.partition,
                    copy.epoch,
                    copy.commit,
                    self.heartbeat_round,
                    quiet and self._is_up_to_date(progress),
                ),
            )
            for peer, progress in self.progress.items()
        ]
        for peer, progress in self.progress.items():
            if progress.state is not REPLICATE or progress.next < copy.log.end:
                self.send_next(peer, progress)
        return heartbeats

    def _is_up_to_date(self, progress: Progress) -> bool:
        copy = self._copy
        return progress.match == copy.log.end and progress.commit == copy.commit

    def may_quiesce(self) -> bool:
        """Whether nothing is left to replicate."""
        copy = self._copy
        if copy.commit != copy.log.end or copy.log.synced != copy.log.end or copy.has_work():
            return False
        return all(self._is_up_to_date(progress) for progress in self.progress.values())

    def all_quiescent(self) -> bool:
        return all(progress.quiescent for progress in self.progress.values())

    def heartbeat_answered(self, peer: NodeId, reply: PartitionHeartbeatReply) -> bool:
        """Counts the reply; returns False if it is no follower's, or stale."""
        progress = self._heard_from(peer)
        if progress is None:
            return False
        if progress.is_stale(reply.snapshots):
            # The follower does not know yet that it must install a snapshot: send it again.
            self.send_next(peer, progress)
            return False
        progress.round = max(progress.round, reply.round)
        progress.commit = max(progress.commit, reply.commit)
        progress.quiescent = reply.quiescent and self._is_up_to_date(progress)
        if progress.state is REPLICATE and reply.round > progress.sent_round and reply.agreed < progress.next:
            # The heartbeat was sent after the entries and overtook none, so they are lost.
            progress.rewind(max(reply.agreed, progress.match), ProgressState.PROBE, at_boundary=False)
        self._acknowledged(peer, progress, reply.agreed, reply.match)
        return True

    # --- commit ---

    def own_log_synced(self) -> None:
        if self.advance_commit():
            self._send_commit()

    def advance_commit(self) -> bool:
        """Commits what the copy's rule agrees on; returns whether the commit offset advanced."""
        copy = self._copy
        if copy.commit == copy.log.end and self._shows_committed_only:
            return False
        agreed = copy.agreed_offset()
        if agreed > copy.commit:
            copy.advance_commit(agreed)
            return True
        if not self._shows_committed_only:
            copy.out.append(Committed(copy.partition, copy.log.end))
        return False

    def _send_commit(self) -> None:
        if self._copy.is_owner:
            for peer, progress in self.progress.items():
                if progress.has_readers:
                    self._send_commit_to(peer, progress)

    def _send_commit_to(self, peer: NodeId, progress: Progress) -> None:
        """Sends the commit offset to a follower with readers, if no entry in flight carries it.

        Followers without readers learn it from the next entries or heartbeat: a message per commit would cost every
        node more than the records do.
        """
        copy = self._copy
        if (
            progress.sent_commit < copy.commit
            and progress.state is REPLICATE
            and not progress.in_flight
            and progress.next == copy.log.end
        ):
            self._send(peer, progress, progress.next, copy.log.last_epoch, (), 0, 0, commit_only=True)


def _end_of(batches: bytes) -> int:
    """The offset after the last of these batches."""
    at = 0
    end = 0
    view = memoryview(batches)
    while at < len(view):
        end = last_offset(view, at) + 1
        at += int.from_bytes(view[at + 4 : at + 8], "little")
    return end
