"""The leader's side of replication: what each follower is sent, and when entries are committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rostra.fabric.api import Append, Committed, Read
from rostra.fabric.raft.consensus.progress import Progress, ProgressStage
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
        self.peers: dict[NodeId, Progress] = {}
        self.counted: list[Progress] = []
        """Of those whose copies count for a commit, without this node."""
        self._counts_itself = False
        self.tells = True
        """Whether any follower's copy may be read, as it was when the group last did anything but the usual."""
        self.round = 0
        """Counts the heartbeats of this node; a reply carries the number back."""
        self._commits = (0, 0)
        """What was committed with the heartbeat before the last one, and with the last one."""
        self._own_term_only = Safeguard.OWN_TERM_COMMIT not in group.without
        self._counts_voters_only = Safeguard.LEARNER_NOT_COUNTED not in group.without
        self._shows_committed_only = Safeguard.COMMIT_VISIBILITY not in group.without
        self._syncs_first = Safeguard.SYNC_BEFORE_ACK not in group.without
        self._checks_quorum = Safeguard.CHECK_QUORUM not in group.without

    def begin(self) -> None:
        """Leadership begins: nothing is known of anybody's log."""
        group = self._group
        self.peers = {}
        self._commits = (group.copy.end, group.copy.end)
        self.follow_config()
        for progress in self.peers.values():
            progress.next = group.copy.end

    def follow_config(self) -> None:
        """A progress for every other member, and for nobody else."""
        group = self._group
        config = group.config
        known, self.peers = self.peers, {}
        for peer in config.everyone:
            if peer != group.me:
                self.peers[peer] = known.get(peer) or Progress(group.copy.end, self.as_if_heard_us())
        counted = config.voters if self._counts_voters_only else config.everyone
        self.counted = [self.peers[peer] for peer in counted if peer != group.me]
        self._counts_itself = group.me in counted

    def held_by_all(self) -> int:
        """How far every member's copy is known to be on stable storage."""
        return min((progress.match for progress in self.peers.values()), default=self._group.copy.synced)

    def keeps_up(self, member: NodeId) -> bool:
        """Whether its copy is whole, and has what was committed a heartbeat ago: under load it lags a little."""
        if member == self._group.me:
            return self._group.complete
        progress = self.peers.get(member)
        return progress is not None and progress.match >= max(self._commits[0], 1)

    # --- sending ---

    def append(self, batch: bytearray, owner_flags: int = 0) -> tuple[int, int]:
        """Orders a batch: into the own log, and at once to every follower that is in step. Nobody waits for a disk."""
        group = self._group
        partition, term, copy = group.partition, group.term, group.copy
        base = copy.end
        last = stamp(batch, partition=partition, base_offset=base, owner_epoch=term, owner_flags=owner_flags)
        end = last + 1
        # One message for all, which the driver need encode only once.
        message = AppendEntries(partition, term, base, copy.last_term, group.commit, copy.first)
        copy.appended(base, end, term)
        group.out.append(Append(partition, batch, True))
        for peer, progress in self.peers.items():
            progress.quiet = False
            if progress.stage is ProgressStage.REPLICATE and progress.next == base and self._has_room(progress):
                group.send(peer, message, (batch,))
                progress.sent_round = self.round
                progress.told = group.commit
                progress.sent(end, len(batch))
            else:
                self.feed(peer, progress)
        if not self._syncs_first:
            group.copy.synced = end
            self.own_copy_grew()
        return base, end - 1

    def _has_room(self, progress: Progress) -> bool:
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
        news: bool = False,
    ) -> None:
        group = self._group
        message = AppendEntries(
            group.partition, group.term, prev_end, prev_term, group.commit, group.copy.first, progress.whole, news
        )
        group.send(peer, message, payload)
        progress.sent_round = self.round
        progress.told = group.commit
        if payload:
            progress.sent(end, size)

    def feed(self, peer: NodeId, progress: Progress) -> None:
        """Whatever this follower needs next, unless an answer is awaited."""
        group = self._group
        if progress.reading:
            return
        if progress.next < group.copy.first:
            progress.rewind(group.copy.first, ProgressStage.REFILL, whole=True)
        if progress.stage is ProgressStage.REPLICATE:
            if progress.next < group.copy.end and self._has_room(progress):
                self._read(peer, progress)
        elif progress.asked_round < self.round:
            # One question a round: a lost one is asked again with the next heartbeat.
            progress.asked_round = self.round
            if progress.stage is ProgressStage.PROBE:
                whole = progress.whole or progress.next == group.copy.end
                progress.whole = whole
                self._send(peer, progress, progress.next, group.copy.term_at(progress.next), (), 0, 0)
            else:
                self._send_refill(peer, progress)

    def _send_refill(self, peer: NodeId, progress: Progress) -> None:
        group = self._group
        first = group.copy.first
        progress.next = first
        configs = group.configs_before(first)
        message = InstallSnapshot(group.partition, group.term, first, group.copy.epochs_before(first), configs)
        group.send(peer, message)
        progress.sent_round = self.round

    def _read(self, peer: NodeId, progress: Progress) -> None:
        group = self._group
        progress.reading = self._next_token()
        group.reads[progress.reading] = peer
        group.out.append(
            Read(progress.reading, group.partition, progress.next, group.copy.end, group.settings.read_bytes)
        )

    def read_done(self, token: int, peer: NodeId, batches: bytes) -> None:
        group = self._group
        progress = self.peers.get(peer)
        if group.role is not Role.LEADER or progress is None or progress.reading != token:
            return
        progress.reading = 0
        if progress.stage is not ProgressStage.REPLICATE or not batches:
            # Nothing there: it is still on its way to the file. The next heartbeat tries again.
            return
        base, end = base_offset(batches), _end_of(batches)
        progress.whole = True
        self._send(peer, progress, base, group.copy.term_at(base), (batches,), end, len(batches))
        self.feed(peer, progress)

    # --- what followers say ---

    def stored(self, peer: NodeId, reply: AppendEntriesReply) -> None:
        progress = self._hear(peer)
        if progress is None or progress.is_stale(reply.fills):
            return
        progress.commit = max(progress.commit, reply.commit)
        progress.readers = reply.readers
        if progress.stage is not ProgressStage.REPLICATE and reply.agreed >= progress.next:
            progress.stage = ProgressStage.REPLICATE
        self._took(peer, progress, reply.held, reply.match)

    def _took(self, peer: NodeId, progress: Progress, held: int, match: int) -> None:
        group = self._group
        progress.acknowledged(held, match)
        if self.advance():
            self._tell_commit()
        if group.role is not Role.LEADER:
            return
        if progress.readers:
            # It may be the last to store what the others had committed without it.
            self._tell_one(peer, progress)
        if group.config.learners:
            group.membership.look_after(peer, progress)
        if progress.stage is not ProgressStage.REPLICATE or progress.next < group.copy.end:
            self.feed(peer, progress)
        if group.transfer_to == peer:
            group.try_transfer()

    def refused(self, peer: NodeId, reply: AppendEntriesRefused) -> None:
        group = self._group
        progress = self._hear(peer)
        if progress is None:
            return
        if progress.is_stale(reply.fills):
            return
        if reply.empty:
            if progress.stage is not ProgressStage.REFILL:
                progress.rewind(group.copy.first, ProgressStage.REFILL, whole=True)
                # Whatever the lost copy acknowledged may still arrive, and is worth nothing.
                progress.fills, progress.match = reply.fills + 1, 0
            self.feed(peer, progress)
            return
        if reply.prev_end <= progress.match or progress.stage is ProgressStage.REFILL:
            # Of a message that was overtaken by a later one.
            return
        hint = group.copy.before(reply.hint_end, reply.hint_term)
        progress.rewind(max(hint, progress.match), ProgressStage.PROBE, whole=hint == group.copy.end)
        self.feed(peer, progress)

    def _hear(self, peer: NodeId) -> Progress | None:
        progress = self.peers.get(peer)
        if progress is not None:
            progress.heard_us = self._group.now.mono_us
        return progress

    # --- heartbeats ---

    def beat(self) -> list[tuple[NodeId, GroupHeartbeat]]:
        """One word for every follower, which the node puts into the pair's heartbeat."""
        group = self._group
        self.round += 1
        self._commits = (self._commits[1], group.commit)
        quiet = group.may_fall_silent()
        beats = [
            (
                peer,
                GroupHeartbeat(
                    group.partition, group.term, group.commit, self.round, quiet and self._knows_all(progress)
                ),
            )
            for peer, progress in self.peers.items()
        ]
        for peer, progress in self.peers.items():
            if progress.stage is not ProgressStage.REPLICATE or progress.next < group.copy.end:
                self.feed(peer, progress)
        return beats

    def _knows_all(self, progress: Progress) -> bool:
        group = self._group
        return progress.match == group.copy.end and progress.commit == group.commit

    def all_know_all(self) -> bool:
        return all(self._knows_all(progress) for progress in self.peers.values())

    def all_quiet(self) -> bool:
        return all(progress.quiet for progress in self.peers.values())

    def beat_answered(self, peer: NodeId, reply: GroupHeartbeatReply) -> None:
        progress = self._hear(peer)
        if progress is None:
            return
        if progress.is_stale(reply.fills):
            # The follower does not know yet that it must begin anew: tell it.
            self.feed(peer, progress)
            return
        progress.round = max(progress.round, reply.round)
        progress.commit = max(progress.commit, reply.commit)
        progress.quiet = reply.quiet and self._knows_all(progress)
        if (
            progress.stage is ProgressStage.REPLICATE
            and reply.round > progress.sent_round
            and reply.held < progress.next
        ):
            # The heartbeat overtook nothing, so what was sent before it is lost.
            progress.rewind(max(reply.held, progress.match), ProgressStage.PROBE, whole=False)
        self._took(peer, progress, reply.held, reply.match)
        self._group.reading.heard()

    # --- commit ---

    def own_copy_grew(self) -> None:
        if self.advance():
            self._tell_commit()

    def advance(self) -> bool:
        """Whether a majority has more on stable storage than was known to be committed."""
        group = self._group
        if group.commit == group.copy.end and self._shows_committed_only:
            return False
        copy = group.copy
        matches = [progress.match for progress in self.counted]
        if self._counts_itself:
            matches.append(copy.synced)
        matches.sort(reverse=True)
        agreed = min(matches[len(group.config.voters) // 2], copy.end)
        if agreed > group.commit and (not self._own_term_only or group.copy.term_at(agreed) == group.term):
            group.advance_commit(agreed)
            return True
        if not self._shows_committed_only:
            group.out.append(Committed(group.partition, group.copy.end))
        return False

    def _tell_commit(self) -> None:
        if self._group.role is Role.LEADER:
            for peer, progress in self.peers.items():
                if progress.readers:
                    self._tell_one(peer, progress)

    def _tell_one(self, peer: NodeId, progress: Progress) -> None:
        """With nothing on its way that would carry the news, a follower's readers would wait for a heartbeat. Where
        nobody reads nobody waits, and a word for each commit would cost every node more than the records.
        """
        group = self._group
        if (
            progress.told < group.commit
            and progress.stage is ProgressStage.REPLICATE
            and not progress.in_flight
            and progress.next == group.copy.end
        ):
            self._send(peer, progress, progress.next, group.copy.last_term, (), 0, 0, news=True)

    def as_if_heard_us(self) -> int:
        """Of a follower that has not been asked yet: it gets the whole patience to answer the first time."""
        settings = self._group.settings
        return self._group.now.mono_us + settings.patience_us - settings.election_us

    def quorum_deadline_us(self) -> int | None:
        """When this leader must have heard a majority again, or step down."""
        group = self._group
        if not self._checks_quorum or group.config.voters == (group.me,):
            return None
        heard = sorted((self._heard_us(voter) for voter in group.config.voters), reverse=True)
        return heard[group.config.majority - 1] + group.settings.election_us

    def _heard_us(self, voter: NodeId) -> int:
        progress = self.peers.get(voter)
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
