"""One member of one Raft group, over one partition whose log is the Raft log.

Pure: inputs and time in, effects out. While hard state is on its way to the disk nothing else is looked at (inputs wait
in order), so every message that leaves depends only on what is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import assert_never

from rostra.errors import Moved, RostraError, Unavailable
from rostra.fabric.api import (
    Accepted,
    Append,
    Committed,
    FabricEffect,
    Now,
    Propose,
    Recovered,
    Refused,
    Synced,
    Trim,
)
from rostra.fabric.raft.consensus.election import Election
from rostra.fabric.raft.consensus.follower import Follower
from rostra.fabric.raft.consensus.group_state import RaftGroupState
from rostra.fabric.raft.consensus.hard_state import HardState
from rostra.fabric.raft.consensus.membership import GroupMembership, MembershipChange, NoOp, group_batch
from rostra.fabric.raft.consensus.read_index import ReadIndex
from rostra.fabric.raft.consensus.replication import Replication
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import (
    AppendEntries,
    AppendEntriesRefused,
    AppendEntriesReply,
    GroupHeartbeat,
    GroupHeartbeatReply,
    GroupMessage,
    InstallSnapshot,
    ReadIndexReply,
    ReadIndexRequest,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.batch import stamp
from rostra.model.ids import NodeId
from rostra.safeguards import ALL_ON, Without


class RaftGroup(RaftGroupState):
    """The parts (election, replication, following, membership, reading) act through it."""

    __slots__ = ("membership",)

    def __init__(
        self,
        me: NodeId,
        found: Recovered,
        hard: HardState,
        *,
        settings: RaftSettings,
        random: Random,
        next_token: Callable[[], int],
        address_of: Callable[[NodeId], str] = str,
        segment_bytes: int = 1 << 26,
        without: Without = ALL_ON,
    ) -> None:
        super().__init__(
            me,
            found,
            hard,
            settings=settings,
            random=random,
            address_of=address_of,
            segment_bytes=segment_bytes,
            without=without,
        )
        self.election = Election(self)
        self.following = Follower(self)
        self.replication = Replication(self, next_token)
        self.membership = GroupMembership(self)
        self.reading = ReadIndex(self)

    # --- inputs ---

    def start(self, now: Now) -> None:
        self.now = now
        self.following.begin()
        self.configs_moved()
        if self.stranded:
            # All that is left was on stable storage of the only voter.
            self.commit = self.copy.end
        self.announce()
        self.finish()

    def receive(self, now: Now, peer: NodeId, message: GroupMessage, payload: bytearray | None = None) -> None:
        self.now = now
        if self.settling:
            self.keep(lambda: self.receive(self.now, peer, message, payload), sent=True)
            return
        if self.quiet:
            self.wake(now)
        if message.term == self.term or self._fits_term(peer, message, payload):
            self._dispatch(peer, message, payload)
        self.finish()

    def synced(self, now: Now, generation: int, offset: int) -> None:
        self.now = now
        if self.settling:
            self.keep(lambda: self.synced(self.now, generation, offset))
            return
        if self.copy.made_durable(generation, offset):
            if self.whole_at is not None:
                self.following.mend()
            if self.role is Role.LEADER:
                self.replication.own_copy_grew()
            elif self.leader is not None:
                self.following.acknowledge(self.leader)
        self.finish()

    def readers(self, now: Now, some: bool) -> None:
        """They come to this copy, or have all gone. Who leads hears of it with the next word, or now if none is due."""
        self.now = now
        self.has_readers = some
        self.say_commit()
        if some and self.role is not Role.LEADER and self.leader is not None and not self.settling and not self.quiet:
            self.following.acknowledge(self.leader)
            self.finish()

    def fire(self, now: Now) -> None:
        """The deadline has passed."""
        self.now = now
        if self.settling:
            self.deadline_us = now.mono_us + self.settings.heartbeat_us
            return
        if self.role is Role.LEADER:
            self._check_leadership()
        else:
            self.election.timed_out()
        self.finish()

    def echo(self, now: Now, number: int) -> None:
        """The hard state is durable: on with what waited for it."""
        self.now = now
        if not self.settling or number != self.number:
            return
        self.settling = False
        self.election.persisted()
        retries, self.retries = self.retries, []
        for retry in retries:
            retry()
        self.finish()
        while self.kept and not self.settling:
            self.kept.popleft()()

    def write_failed(self, now: Now, offset: int, generation: int) -> None:
        """The disk refused what was appended last. A leader whose followers have it must not order others there."""
        self.now = now
        self.copy.shortened(offset, generation)
        self.following.held = min(self.following.held, offset)
        self.configs_moved()
        if self.role is Role.LEADER and self.config.everyone != (self.me,):
            self.step_down("the disk refuses writes")
        elif self.role is Role.LEADER and self.copy.last_term < self.term and not self.inherits:
            # The entry that begins the term is gone, and nothing before it counts without one.
            self.deadline_us = now.mono_us + self.settings.election_us
        self.finish()

    def read_done(self, now: Now, token: int, batches: bytes) -> None:
        self.now = now
        peer = self.reads.pop(token, None)
        if peer is not None and not self.settling:
            self.replication.read_done(token, peer, batches)
            self.finish()
        elif peer is not None:
            self.keep(lambda: self._read_again(peer, token))

    def _read_again(self, peer: NodeId, token: int) -> None:
        progress = self.replication.peers.get(peer)
        if progress is not None and progress.reading == token:
            progress.reading = 0

    def read_failed(self, now: Now, token: int, damaged: bool) -> None:
        """A follower or a client could not be fed. If this copy is damaged, others shall serve, if there are any."""
        self.now = now
        peer = self.reads.pop(token, None)
        if peer is not None:
            self._read_again(peer, token)
        if damaged and not self.settling and self.complete and self.config.voters != (self.me,):
            self.set_complete(False)
        self.finish()

    def broke(self, now: Now) -> None:
        """An fsync failed: nothing here will be durable any more."""
        self.now = now
        self.broken = True
        # The only voter stays: nobody could lead in its place, and what was committed can still be read.
        if self.role is Role.LEADER and not self.settling and self.config.voters != (self.me,):
            best = max(self.replication.peers.items(), key=lambda item: item[1].match, default=None)
            if best is not None and best[0] in self.config.voters:
                self.send(best[0], TimeoutNow(self.partition, self.term))
            self.step_down("its disk cannot sync")
        self.finish()

    # --- the short way ---

    def find_way(self) -> None:
        """Whether nothing but records is to be expected: then they need not be asked whether they are something else.

        Alone: this node is the whole group, and waits for nothing but its disk.
        """
        steady = (
            not (self.settling or self.broken or self.expelled or self.without or self.keeps_commit)
            and self.complete
            and len(self.hard.configs) <= 1
            and self.config_end <= self.commit
            and self.me in self.config.voters
        )
        leads = steady and self.role is Role.LEADER and self.transfer_to is None and self.has_begun_term
        peers = self.replication.peers
        self.alone = leads and not peers
        self.leads_steadily = leads and bool(peers) and not self.quiet and not self.config.learners
        if self.leads_steadily:
            self.replication.tells = any(progress.readers for progress in peers.values())
        self.follows_steadily = (
            steady
            and self.role is Role.FOLLOWER
            and self.leader is not None
            and self.election.patience_us > 0
            and self.deadline_us is not None
            and not self.quiet
        )

    def propose_alone(self, given: Propose) -> list[FabricEffect]:
        """As `propose` without anybody to tell."""
        partition, copy, batch = self.partition, self.copy, given.batch
        base = copy.end
        term = self.term
        last = stamp(batch, partition=partition, base_offset=base, owner_epoch=term, owner_flags=given.owner_flags)
        copy.end = last + 1
        return [Append(partition, batch, True), Accepted(given.token, partition, base, last)]

    def synced_alone(self, given: Synced) -> list[FabricEffect]:
        """As `synced` without anybody to count: what is on this disk is committed."""
        copy = self.copy
        if given.generation != copy.generation or given.offset <= copy.synced:
            return []
        copy.synced = self.commit = min(given.offset, copy.end)
        return [Committed(self.partition, self.commit)]

    # --- proposals ---

    def propose(self, now: Now, token: int, batch: bytearray, owner_flags: int = 0) -> None:
        self.now = now
        error = self.refusal()
        if error is not None:
            self.out.append(Refused(token, error))
            return
        if self.quiet:
            self.wake(now)
        base, last = self.replication.append(batch, owner_flags)
        self.out.append(Accepted(token, self.partition, base, last))
        self.finish()

    def write(self, now: Now, batch: bytearray, owner_flags: int = 0) -> RostraError | None:
        """A batch of the fabric's own, which nobody awaits by its place."""
        self.now = now
        error = self.refusal()
        if error is None:
            if self.quiet:
                self.wake(now)
            self.replication.append(batch, owner_flags)
            self.finish()
        return error

    def refusal(self) -> RostraError | None:
        """Why this node does not order batches now, if it does not."""
        if self.role is Role.LEADER and not self.settling and self.transfer_to is None and not self.broken:
            return None
        if self.stranded:
            return self.damage
        if self.leader is not None and self.leader != self.me:
            return Moved(self.address_of(self.leader), self.term)
        return Unavailable(self.name, self.partition.index, "it has no leader yet, or is changing it")

    def advance_start(self, now: Now, first: int) -> None:
        """Retention: followers hear of it with the next entries or heartbeats' probes."""
        self.now = now
        if self.role is Role.LEADER and self.copy.first < first <= self.commit:
            self.copy.trimmed(first)
            self.out.append(Trim(self.partition, first))

    def change(self, now: Now, change: MembershipChange, node: NodeId) -> RostraError | None:
        self.now = now
        if self.settling:
            return self._busy()
        if self.quiet:
            self.wake(now)
        error = self.membership.change(change, node)
        self.finish()
        return error

    def transfer(self, now: Now, target: NodeId) -> RostraError | None:
        """Hands leadership to a voter: no proposals until it has everything, then it begins an election."""
        self.now = now
        if self.settling or self.role is not Role.LEADER or self.transfer_to is not None:
            return self._busy()
        if target == self.me or target not in self.config.voters:
            return self._busy()
        if self.quiet:
            self.wake(now)
        self.transfer_to = target
        self.transfer_until_us = now.mono_us + self.settings.election_us
        self.deadline_us = min(self.transfer_until_us, self.deadline_us or self.transfer_until_us)
        self.try_transfer()
        self.finish()
        return None

    def try_transfer(self) -> None:
        target = self.transfer_to
        progress = self.replication.peers.get(target) if target is not None else None
        if target is not None and progress is not None and progress.match == self.copy.end:
            self.send(target, TimeoutNow(self.partition, self.term))

    def _busy(self) -> RostraError:
        return Unavailable(self.name, self.partition.index, "it is not this node's to give, or it is changing")

    def ask_read(self, now: Now, token: int) -> None:
        self.now = now
        if self.settling:
            self.keep(lambda: self.ask_read(self.now, token))
            return
        if self.quiet and self.role is Role.LEADER:
            self.wake(now)
        self.reading.ask(token)
        self.finish()

    # --- heartbeats, which the node puts together for all groups ---

    def beats(self, now: Now) -> list[tuple[NodeId, GroupHeartbeat]]:
        self.now = now
        self.wants_beat = False
        if self.role is not Role.LEADER or self.quiet or self.settling:
            return []
        beats = self.replication.beat()
        self.finish()
        return beats

    def heard(self, now: Now, peer: NodeId, beat: GroupHeartbeat) -> GroupHeartbeatReply | None:
        self.now = now
        if self.settling:
            return None
        if beat.term < self.term:
            return GroupHeartbeatReply(self.partition, self.term, beat.round, 0, 0, 0)
        if beat.term > self.term:
            self.adopt(beat.term)
            self.finish()
            return None
        self.hear_leader(peer)
        reply = self.following.beat(peer, beat)
        if self.quiet:
            self.deadline_us = None
        self.finish()
        return reply if not self.settling else None

    def answered(self, now: Now, peer: NodeId, reply: GroupHeartbeatReply) -> None:
        self.now = now
        if self.settling:
            return
        if reply.term > self.term:
            self.adopt(reply.term)
        elif self.role is Role.LEADER and reply.term == self.term:
            self.replication.beat_answered(peer, reply)
            if self.role is Role.LEADER and self.may_fall_silent() and self.replication.all_quiet():
                self.quiet = True
                self.deadline_us = None
        self.finish()

    def may_fall_silent(self) -> bool:
        if self.commit != self.copy.end or self.copy.synced != self.copy.end or self.transfer_to is not None:
            return False
        to_promote = self.config.learners and self.promotes and len(self.config.voters) < self.voters_max
        return not self.reading.busy and not to_promote and self.replication.all_know_all()

    def wake(self, now: Now) -> None:
        """Something happens again in this group, or the pair's heartbeat that stood in for its own is lost."""
        self.now = now
        if not self.quiet:
            return
        self.quiet = False
        if self.role is Role.LEADER:
            for progress in self.replication.peers.values():
                progress.heard_us = self.replication.as_if_heard_us()
                progress.quiet = False
            self.deadline_us = self.replication.quorum_deadline_us()
        else:
            self.election.wait()

    def peer_lost(self, now: Now, peer: NodeId) -> None:
        """The pair's heartbeat, which stands in for that of a silent group, is lost, or the peer was started anew."""
        self.now = now
        if self.role is Role.LEADER:
            self.wake(now)
            progress = self.replication.peers.get(peer)
            if progress is not None:
                # It was silent for long already: for it the first answer is not waited for any longer than another.
                progress.heard_us = min(progress.heard_us, now.mono_us)
                deadline_us = self.replication.quorum_deadline_us()
                if deadline_us is not None:
                    self.deadline_us = min(deadline_us, self.deadline_us or deadline_us)
        elif self.leader == peer:
            self.wake(now)

    # --- messages ---

    def _fits_term(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> bool:
        """Whether a message of another term counts: a higher one is taken over first, a lower one is set right."""
        term = message.term
        if isinstance(message, RequestVote) and (message.pre or term < self.term):
            # A question about a term raises none; one about an old term is answered with ours.
            return True
        if isinstance(message, RequestVoteReply) and message.pre and message.granted:
            return True
        if term < self.term:
            if isinstance(message, AppendEntries | InstallSnapshot):
                self.send(peer, AppendEntriesRefused(self.partition, self.term, 0, 0, 0))
            return False
        if isinstance(message, RequestVote):
            if not message.forced and self.election.leader_is_alive():
                return False
            self.adopt(term)
            return True
        self.adopt(term)
        self.retry(lambda: self.receive(self.now, peer, message, payload))
        return False

    def _dispatch(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> None:
        match message:
            case AppendEntries():
                self.hear_leader(peer)
                self.following.receive(peer, message, payload)
            case AppendEntriesReply():
                if self.role is Role.LEADER:
                    self.replication.stored(peer, message)
            case AppendEntriesRefused():
                if self.role is Role.LEADER:
                    self.replication.refused(peer, message)
            case RequestVote():
                self.election.asked(peer, message)
            case RequestVoteReply():
                self.election.answered(peer, message)
            case InstallSnapshot():
                self.hear_leader(peer)
                self.following.refill(peer, message)
            case TimeoutNow():
                self.election.told_to_begin(message)
            case ReadIndexRequest():
                self.reading.asked(peer, message)
            case ReadIndexReply():
                self.reading.answered(message)
            case _:
                assert_never(message)

    def _check_leadership(self) -> None:
        now_us = self.now.mono_us
        if self.copy.last_term < self.term and not self.inherits:
            self.replication.append(group_batch(NoOp(), self.now.wall_us))
        if self.transfer_to is not None and now_us >= self.transfer_until_us:
            self.transfer_to = None
            self.note("warning", "handing over failed", {"term": self.term})
        deadline_us = self.replication.quorum_deadline_us()
        if deadline_us is not None and now_us >= deadline_us:
            self.step_down("it hears no majority")
            return
        self.deadline_us = deadline_us
        if self.transfer_to is not None:
            self.deadline_us = min(self.transfer_until_us, deadline_us or self.transfer_until_us)
