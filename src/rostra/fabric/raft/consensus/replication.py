"""The leader's side of replication: sends entries to followers and advances the commit offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rostra.fabric.api import Append, Committed, Read
from rostra.fabric.raft.consensus.progress import Progress, ProgressState
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import (
    AppendEntries,
    AppendEntriesRefused,
    AppendEntriesReply,
    GroupHeartbeat,
    GroupHeartbeatReply,
    InstallSnapshot,
)
from rostra.model.batch import Buffer, base_offset, last_offset, stamp
from rostra.model.ids import NodeId
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.raft.consensus.raft_group import RaftGroup


class Replication:
    def __init__(self, group: RaftGroup, next_token: Callable[[], int]) -> None:
        self._group = group
        self._next_token = next_token
        self.progress: dict[NodeId, Progress] = {}
        self.voter_progress: list[Progress] = []
        """Progress of the voters other than this node, which count for a commit."""
        self._counts_itself = False
        self.has_follower_readers = True
        """Whether any follower may have readers; updated by `update_fast_path`."""
        self.heartbeat_round = 0
        """The number of the last heartbeat round; replies carry it back."""
        self._commits_at_heartbeats = (0, 0)
        """The commit offsets at the last two heartbeats."""
        self._own_term_only = Safeguard.OWN_TERM_COMMIT not in group.without
        self._counts_voters_only = Safeguard.LEARNER_NOT_COUNTED not in group.without
        self._shows_committed_only = Safeguard.COMMIT_VISIBILITY not in group.without
        self._syncs_first = Safeguard.SYNC_BEFORE_ACK not in group.without
        self._checks_quorum = Safeguard.CHECK_QUORUM not in group.without

    def reset(self) -> None:
        """Starts leadership: nothing is known of the followers' logs."""
        group = self._group
        self.progress = {}
        self._commits_at_heartbeats = (group.log.end, group.log.end)
        self.update_peers()
        for progress in self.progress.values():
            progress.next = group.log.end

    def update_peers(self) -> None:
        """Creates a progress record for every other member, and drops those of former members."""
        group = self._group
        config = group.config
        former, self.progress = self.progress, {}
        for peer in config.members:
            if peer != group.node:
                self.progress[peer] = former.get(peer) or Progress(group.log.end, self.initial_heard_us())
        counted = config.voters if self._counts_voters_only else config.members
        self.voter_progress = [self.progress[peer] for peer in counted if peer != group.node]
        self._counts_itself = group.node in counted

    def held_by_all(self) -> int:
        """Up to which offset every member has the log on stable storage."""
        return min((progress.match for progress in self.progress.values()), default=self._group.log.synced)

    def has_caught_up(self, member: NodeId) -> bool:
        """Whether its replica is complete and has what was committed a heartbeat ago; under load it lags a little."""
        if member == self._group.node:
            return self._group.complete
        progress = self.progress.get(member)
        return progress is not None and progress.match >= max(self._commits_at_heartbeats[0], 1)

    # --- sending ---

    def append(self, batch: bytearray, owner_flags: int = 0) -> tuple[int, int]:
        """Appends a batch to the own log and sends it to every follower that keeps up, before any fsync."""
        group = self._group
        partition, term, log = group.partition, group.term, group.log
        base = log.end
        last = stamp(batch, partition=partition, base_offset=base, owner_epoch=term, owner_flags=owner_flags)
        end = last + 1
        # One message for all followers, so that the driver encodes it once.
        message = AppendEntries(partition, term, base, log.last_term, group.commit, log.first)
        log.append(base, end, term)
        group.out.append(Append(partition, batch, True))
        for peer, progress in self.progress.items():
            progress.quiescent = False
            if progress.state is ProgressState.REPLICATE and progress.next == base and self._window_open(progress):
                group.send(peer, message, (batch,))
                progress.sent_round = self.heartbeat_round
                progress.sent_commit = group.commit
                progress.record_sent(end, len(batch))
            else:
                self.send_next(peer, progress)
        if not self._syncs_first:
            group.log.synced = end
            self.own_log_synced()
        return base, end - 1

    def _window_open(self, progress: Progress) -> bool:
        settings = self._group.settings
        return progress.in_flight_bytes < settings.window_bytes and len(progress.in_flight) < settings.window_messages

    def _send(
        self,
        peer: NodeId,
        progress: Progress,
        prev_end: int,
        prev_term: int,
        payload: tuple[Buffer, ...],
        end: int,
        size: int,
        *,
        commit_only: bool = False,
    ) -> None:
        group = self._group
        message = AppendEntries(
            group.partition,
            group.term,
            prev_end,
            prev_term,
            group.commit,
            group.log.first,
            progress.at_boundary,
            commit_only,
        )
        group.send(peer, message, payload)
        progress.sent_round = self.heartbeat_round
        progress.sent_commit = group.commit
        if payload:
            progress.record_sent(end, size)

    def send_next(self, peer: NodeId, progress: Progress) -> None:
        """Sends what this follower needs next (entries, a probe or a snapshot), unless a reply is awaited."""
        group = self._group
        if progress.read_token:
            return
        if progress.next < group.log.first:
            progress.rewind(group.log.first, ProgressState.SNAPSHOT, at_boundary=True)
        if progress.state is ProgressState.REPLICATE:
            if progress.next < group.log.end and self._window_open(progress):
                self._read_log(peer, progress)
        elif progress.probe_round < self.heartbeat_round:
            # One probe per round: a lost one is repeated with the next heartbeat.
            progress.probe_round = self.heartbeat_round
            if progress.state is ProgressState.PROBE:
                at_boundary = progress.at_boundary or progress.next == group.log.end
                progress.at_boundary = at_boundary
                self._send(peer, progress, progress.next, group.log.term_at(progress.next), (), 0, 0)
            else:
                self._send_snapshot(peer, progress)

    def _send_snapshot(self, peer: NodeId, progress: Progress) -> None:
        group = self._group
        first = group.log.first
        progress.next = first
        configs = group.configs_before(first)
        message = InstallSnapshot(group.partition, group.term, first, group.log.epochs_before(first), configs)
        group.send(peer, message)
        progress.sent_round = self.heartbeat_round

    def _read_log(self, peer: NodeId, progress: Progress) -> None:
        group = self._group
        progress.read_token = self._next_token()
        group.peer_reads[progress.read_token] = peer
        group.out.append(
            Read(progress.read_token, group.partition, progress.next, group.log.end, group.settings.read_bytes)
        )

    def read_done(self, token: int, peer: NodeId, batches: bytes) -> None:
        group = self._group
        progress = self.progress.get(peer)
        if group.role is not Role.LEADER or progress is None or progress.read_token != token:
            return
        progress.read_token = 0
        if progress.state is not ProgressState.REPLICATE or not batches:
            # Not in the file yet. The next heartbeat tries again.
            return
        base, end = base_offset(batches), _end_of(batches)
        progress.at_boundary = True
        self._send(peer, progress, base, group.log.term_at(base), (batches,), end, len(batches))
        self.send_next(peer, progress)

    # --- replies of followers ---

    def append_acknowledged(self, peer: NodeId, reply: AppendEntriesReply) -> None:
        progress = self._heard_from(peer)
        if progress is None or progress.is_stale(reply.snapshots):
            return
        progress.commit = max(progress.commit, reply.commit)
        progress.has_readers = reply.has_readers
        if progress.state is not ProgressState.REPLICATE and reply.probed >= progress.next:
            progress.state = ProgressState.REPLICATE
        self._acknowledged(peer, progress, reply.agreed, reply.match)

    def _acknowledged(self, peer: NodeId, progress: Progress, agreed: int, match: int) -> None:
        group = self._group
        progress.acknowledged(agreed, match)
        if self.advance_commit():
            self._send_commit()
        if group.role is not Role.LEADER:
            return
        if progress.has_readers:
            # It may be the last to store entries that the others committed without it.
            self._send_commit_to(peer, progress)
        if group.config.learners:
            group.membership.promote_if_caught_up(peer, progress)
        if progress.state is not ProgressState.REPLICATE or progress.next < group.log.end:
            self.send_next(peer, progress)
        if group.transfer_to == peer:
            group.try_transfer()

    def append_refused(self, peer: NodeId, reply: AppendEntriesRefused) -> None:
        group = self._group
        progress = self._heard_from(peer)
        if progress is None:
            return
        if progress.is_stale(reply.snapshots):
            return
        if reply.needs_snapshot:
            if progress.state is not ProgressState.SNAPSHOT:
                progress.rewind(group.log.first, ProgressState.SNAPSHOT, at_boundary=True)
                # Acknowledgements of the lost log may still arrive and must not count.
                progress.snapshots, progress.match = reply.snapshots + 1, 0
            self.send_next(peer, progress)
            return
        if reply.prev_end <= progress.match or progress.state is ProgressState.SNAPSHOT:
            # The refused message was overtaken by a later one.
            return
        hint = group.log.find_conflict_by_term(reply.hint_end, reply.hint_term)
        progress.rewind(max(hint, progress.match), ProgressState.PROBE, at_boundary=hint == group.log.end)
        self.send_next(peer, progress)

    def _heard_from(self, peer: NodeId) -> Progress | None:
        progress = self.progress.get(peer)
        if progress is not None:
            progress.heard_us = self._group.now.mono_us
        return progress

    # --- heartbeats ---

    def heartbeats(self) -> list[tuple[NodeId, GroupHeartbeat]]:
        """Returns one heartbeat per follower, which the node combines into its own heartbeats."""
        group = self._group
        self.heartbeat_round += 1
        self._commits_at_heartbeats = (self._commits_at_heartbeats[1], group.commit)
        quiet = group.may_quiesce()
        heartbeats = [
            (
                peer,
                GroupHeartbeat(
                    group.partition,
                    group.term,
                    group.commit,
                    self.heartbeat_round,
                    quiet and self._is_up_to_date(progress),
                ),
            )
            for peer, progress in self.progress.items()
        ]
        for peer, progress in self.progress.items():
            if progress.state is not ProgressState.REPLICATE or progress.next < group.log.end:
                self.send_next(peer, progress)
        return heartbeats

    def _is_up_to_date(self, progress: Progress) -> bool:
        group = self._group
        return progress.match == group.log.end and progress.commit == group.commit

    def all_up_to_date(self) -> bool:
        return all(self._is_up_to_date(progress) for progress in self.progress.values())

    def all_quiescent(self) -> bool:
        return all(progress.quiescent for progress in self.progress.values())

    def heartbeat_answered(self, peer: NodeId, reply: GroupHeartbeatReply) -> None:
        progress = self._heard_from(peer)
        if progress is None:
            return
        if progress.is_stale(reply.snapshots):
            # The follower does not know yet that it must install a snapshot: send it again.
            self.send_next(peer, progress)
            return
        progress.round = max(progress.round, reply.round)
        progress.commit = max(progress.commit, reply.commit)
        progress.quiescent = reply.quiescent and self._is_up_to_date(progress)
        if (
            progress.state is ProgressState.REPLICATE
            and reply.round > progress.sent_round
            and reply.agreed < progress.next
        ):
            # The heartbeat was sent after the entries and overtook none, so they are lost.
            progress.rewind(max(reply.agreed, progress.match), ProgressState.PROBE, at_boundary=False)
        self._acknowledged(peer, progress, reply.agreed, reply.match)
        self._group.read_index.heartbeat_answered()

    # --- commit ---

    def own_log_synced(self) -> None:
        if self.advance_commit():
            self._send_commit()

    def advance_commit(self) -> bool:
        """Commits what a majority has on stable storage; returns whether the commit offset advanced."""
        group = self._group
        if group.commit == group.log.end and self._shows_committed_only:
            return False
        log = group.log
        matches = [progress.match for progress in self.voter_progress]
        if self._counts_itself:
            matches.append(log.synced)
        matches.sort(reverse=True)
        agreed = min(matches[len(group.config.voters) // 2], log.end)
        if agreed > group.commit and (not self._own_term_only or group.log.term_at(agreed) == group.term):
            group.advance_commit(agreed)
            return True
        if not self._shows_committed_only:
            group.out.append(Committed(group.partition, group.log.end))
        return False

    def _send_commit(self) -> None:
        if self._group.role is Role.LEADER:
            for peer, progress in self.progress.items():
                if progress.has_readers:
                    self._send_commit_to(peer, progress)

    def _send_commit_to(self, peer: NodeId, progress: Progress) -> None:
        """Sends the commit offset to a follower with readers, if no entry in flight carries it.

        Followers without readers learn it from the next entries or heartbeat: a message per commit would cost every
        node more than the records do.
        """
        group = self._group
        if (
            progress.sent_commit < group.commit
            and progress.state is ProgressState.REPLICATE
            and not progress.in_flight
            and progress.next == group.log.end
        ):
            self._send(peer, progress, progress.next, group.log.last_term, (), 0, 0, commit_only=True)

    def initial_heard_us(self) -> int:
        """The time a new follower counts as heard, so that it has the longest election timeout for its first reply."""
        settings = self._group.settings
        return self._group.now.mono_us + settings.election_max_us - settings.election_min_us

    def quorum_deadline_us(self) -> int | None:
        """When this leader steps down unless it hears a majority (CheckQuorum)."""
        group = self._group
        if not self._checks_quorum or group.config.voters == (group.node,):
            return None
        heard = sorted((self._heard_us(voter) for voter in group.config.voters), reverse=True)
        return heard[group.config.majority - 1] + group.settings.election_min_us

    def _heard_us(self, voter: NodeId) -> int:
        progress = self.progress.get(voter)
        return progress.heard_us if progress is not None else self._group.now.mono_us


def _end_of(batches: bytes) -> int:
    """The offset after the last of these batches."""
    at = 0
    end = 0
    view = memoryview(batches)
    while at < len(view):
        end = last_offset(view, at) + 1
        at += int.from_bytes(view[at + 4 : at + 8], "little")
    return end
