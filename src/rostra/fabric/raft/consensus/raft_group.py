"""One member of one Raft group, over one partition whose log is the Raft log.

Pure: inputs and time in, effects out. An input (a peer's message, a proposal, `Synced`, a passed deadline) goes to the
part that it concerns: `Election`, `Replication` on the leader, `Follower` otherwise, `GroupMembership`,
`ReadIndex`. Each changes the shared `RaftGroupState` and queues messages; `flush` ends the step. While hard state is
being written, inputs are deferred in order, so every message that leaves depends only on durable state. The leader
sends an entry to its followers before its own fsync; an entry of its term is committed once a majority, the leader's
own disk included, has synced it. A group whose followers are up to date becomes quiescent: it sends nothing, and the
heartbeat between the two nodes stands in for its own until that is lost or the group has work.
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
    """Dispatches inputs to election, replication, follower, membership and read index."""

    __slots__ = ("membership",)

    def __init__(
        self,
        node: NodeId,
        found: Recovered,
        hard_state: HardState,
        *,
        settings: RaftSettings,
        random: Random,
        next_token: Callable[[], int],
        address_of: Callable[[NodeId], str] = str,
        segment_bytes: int = 1 << 26,
        without: Without = ALL_ON,
    ) -> None:
        super().__init__(
            node,
            found,
            hard_state,
            settings=settings,
            random=random,
            address_of=address_of,
            segment_bytes=segment_bytes,
            without=without,
        )
        self.election = Election(self)
        self.follower = Follower(self)
        self.replication = Replication(self, next_token)
        self.membership = GroupMembership(self)
        self.read_index = ReadIndex(self)

    # --- inputs ---

    def start(self, now: Now) -> None:
        self.now = now
        self.follower.begin_term()
        self.update_config()
        if self.only_copy_damaged:
            # Whatever is left was on the stable storage of the only voter, so it is committed.
            self.commit = self.log.end
        self.announce()
        self.flush()

    def receive(self, now: Now, peer: NodeId, message: GroupMessage, payload: bytearray | None = None) -> None:
        self.now = now
        if self.persisting:
            self.defer(lambda: self.receive(self.now, peer, message, payload), sent=True)
            return
        if self.quiescent:
            self.wake(now)
        if message.term == self.term or self._check_term(peer, message, payload):
            self._dispatch(peer, message, payload)
        self.flush()

    def synced(self, now: Now, generation: int, offset: int) -> None:
        self.now = now
        if self.persisting:
            self.defer(lambda: self.synced(self.now, generation, offset))
            return
        if self.log.mark_synced(generation, offset):
            if self.complete_at is not None:
                self.follower.finish_snapshot()
            if self.role is Role.LEADER:
                self.replication.own_log_synced()
            elif self.leader is not None:
                self.follower.acknowledge(self.leader)
        self.flush()

    def set_readers(self, now: Now, present: bool) -> None:
        """Local readers appeared or left; notifies the leader."""
        self.now = now
        self.has_readers = present
        self.report_commit()
        if (
            present
            and self.role is not Role.LEADER
            and self.leader is not None
            and not self.persisting
            and not self.quiescent
        ):
            self.follower.acknowledge(self.leader)
            self.flush()

    def deadline_passed(self, now: Now) -> None:
        """Checks the quorum as leader, or starts an election."""
        self.now = now
        if self.persisting:
            self.deadline_us = now.mono_us + self.settings.heartbeat_us
            return
        if self.role is Role.LEADER:
            self._check_quorum()
        else:
            self.election.timed_out()
        self.flush()

    def persisted(self, now: Now, number: int) -> None:
        """The hard state is durable: runs the actions and inputs that waited for it."""
        self.now = now
        if not self.persisting or number != self.persist_number:
            return
        self.persisting = False
        self.election.vote_persisted()
        retries, self.after_persist = self.after_persist, []
        for retry in retries:
            retry()
        self.flush()
        while self.deferred and not self.persisting:
            self.deferred.popleft()()

    def write_failed(self, now: Now, offset: int, generation: int) -> None:
        """The disk refused the last appends. A leader whose followers have them must not reuse their offsets."""
        self.now = now
        self.log.drop_tail(offset, generation)
        self.follower.agreed = min(self.follower.agreed, offset)
        self.update_config()
        if self.role is Role.LEADER and self.config.members != (self.node,):
            self.step_down("the disk refuses writes")
        elif self.role is Role.LEADER and self.log.last_term < self.term and not self.skipped_noop:
            # The no-op of this term is gone, and nothing commits without an entry of this term: append it again.
            self.deadline_us = now.mono_us + self.settings.election_min_us
        self.flush()

    def read_done(self, now: Now, token: int, batches: bytes) -> None:
        self.now = now
        peer = self.peer_reads.pop(token, None)
        if peer is not None and not self.persisting:
            self.replication.read_done(token, peer, batches)
            self.flush()
        elif peer is not None:
            self.defer(lambda: self._forget_read(peer, token))

    def _forget_read(self, peer: NodeId, token: int) -> None:
        progress = self.replication.progress.get(peer)
        if progress is not None and progress.read_token == token:
            progress.read_token = 0

    def read_failed(self, now: Now, token: int, damaged: bool) -> None:
        """A read for a follower or a client failed. A damaged replica steps aside if there are others."""
        self.now = now
        peer = self.peer_reads.pop(token, None)
        if peer is not None:
            self._forget_read(peer, token)
        if damaged and not self.persisting and self.complete and self.config.voters != (self.node,):
            self.set_complete(False)
        self.flush()

    def fail_disk(self, now: Now) -> None:
        """An fsync failed: nothing written here will be durable."""
        self.now = now
        self.disk_failed = True
        # The only voter stays leader: no other node could lead, and what was committed can still be read.
        if self.role is Role.LEADER and not self.persisting and self.config.voters != (self.node,):
            best = max(self.replication.progress.items(), key=lambda item: item[1].match, default=None)
            if best is not None and best[0] in self.config.voters:
                self.send(best[0], TimeoutNow(self.partition, self.term))
            self.step_down("its disk cannot sync")
        self.flush()

    # --- the fast path ---

    def update_fast_path(self) -> None:
        """Decides which fast path may be taken: nothing but records is pending in the group.

        `fast_single`: this node is the whole group and waits only for its own disk.
        """
        steady = (
            not (self.persisting or self.disk_failed or self.removed or self.without or self.persists_commit)
            and self.complete
            and len(self.hard_state.configs) <= 1
            and self.config_end <= self.commit
            and self.node in self.config.voters
        )
        leads = steady and self.role is Role.LEADER and self.transfer_to is None and self.committed_in_term
        peers = self.replication.progress
        self.fast_single = leads and not peers
        self.fast_leader = leads and bool(peers) and not self.quiescent and not self.config.learners
        if self.fast_leader:
            self.replication.has_follower_readers = any(progress.has_readers for progress in peers.values())
        self.fast_follower = (
            steady
            and self.role is Role.FOLLOWER
            and self.leader is not None
            and self.election.timeout_us > 0
            and self.deadline_us is not None
            and not self.quiescent
        )

    def propose_single(self, given: Propose) -> list[FabricEffect]:
        """Like `propose`, without followers."""
        partition, log, batch = self.partition, self.log, given.batch
        base = log.end
        term = self.term
        last = stamp(batch, partition=partition, base_offset=base, owner_epoch=term, owner_flags=given.owner_flags)
        log.end = last + 1
        return [Append(partition, batch, True), Accepted(given.token, partition, base, last)]

    def synced_single(self, given: Synced) -> list[FabricEffect]:
        """Like `synced`, without followers: what is on this disk is committed."""
        log = self.log
        if given.generation != log.generation or given.offset <= log.synced:
            return []
        log.synced = self.commit = min(given.offset, log.end)
        return [Committed(self.partition, self.commit)]

    # --- proposals ---

    def propose(self, now: Now, token: int, batch: bytearray, owner_flags: int = 0) -> None:
        self.now = now
        error = self.refusal()
        if error is not None:
            self.out.append(Refused(token, error))
            return
        if self.quiescent:
            self.wake(now)
        base, last = self.replication.append(batch, owner_flags)
        self.out.append(Accepted(token, self.partition, base, last))
        self.flush()

    def write(self, now: Now, batch: bytearray, owner_flags: int = 0) -> RostraError | None:
        """Appends a batch of the fabric itself, without a token to answer."""
        self.now = now
        error = self.refusal()
        if error is None:
            if self.quiescent:
                self.wake(now)
            self.replication.append(batch, owner_flags)
            self.flush()
        return error

    def refusal(self) -> RostraError | None:
        """Returns why this node accepts no proposals now, or None."""
        if self.role is Role.LEADER and not self.persisting and self.transfer_to is None and not self.disk_failed:
            return None
        if self.only_copy_damaged:
            return self.damage_error
        if self.leader is not None and self.leader != self.node:
            return Moved(self.address_of(self.leader), self.term)
        return Unavailable(self.name, self.partition.index, "it has no leader yet, or the leader is changing")

    def advance_log_start(self, now: Now, first: int) -> None:
        """Advances the log start for retention; AppendEntries carries it to the followers."""
        self.now = now
        if self.role is Role.LEADER and self.log.first < first <= self.commit:
            self.log.trim(first)
            self.out.append(Trim(self.partition, first))

    def change_membership(self, now: Now, change: MembershipChange, node: NodeId) -> RostraError | None:
        self.now = now
        if self.persisting:
            return self._not_transferable()
        if self.quiescent:
            self.wake(now)
        error = self.membership.change(change, node)
        self.flush()
        return error

    def transfer_leadership(self, now: Now, target: NodeId) -> RostraError | None:
        """Transfers leadership to a voter: refuses proposals until it has caught up, then sends it TimeoutNow."""
        self.now = now
        if self.persisting or self.role is not Role.LEADER or self.transfer_to is not None:
            return self._not_transferable()
        if target == self.node or target not in self.config.voters:
            return self._not_transferable()
        if self.quiescent:
            self.wake(now)
        self.transfer_to = target
        self.transfer_until_us = now.mono_us + self.settings.election_min_us
        self.deadline_us = min(self.transfer_until_us, self.deadline_us or self.transfer_until_us)
        self.try_transfer()
        self.flush()
        return None

    def try_transfer(self) -> None:
        target = self.transfer_to
        progress = self.replication.progress.get(target) if target is not None else None
        if target is not None and progress is not None and progress.match == self.log.end:
            self.send(target, TimeoutNow(self.partition, self.term))

    def _not_transferable(self) -> RostraError:
        return Unavailable(self.name, self.partition.index, "this node does not lead it, or leadership is changing")

    def request_read_index(self, now: Now, token: int) -> None:
        self.now = now
        if self.persisting:
            self.defer(lambda: self.request_read_index(self.now, token))
            return
        if self.quiescent and self.role is Role.LEADER:
            self.wake(now)
        self.read_index.request(token)
        self.flush()

    # --- heartbeats, which the node combines for all groups ---

    def heartbeats(self, now: Now) -> list[tuple[NodeId, GroupHeartbeat]]:
        self.now = now
        self.wants_heartbeat = False
        if self.role is not Role.LEADER or self.quiescent or self.persisting:
            return []
        heartbeats = self.replication.heartbeats()
        self.flush()
        return heartbeats

    def heartbeat_received(self, now: Now, peer: NodeId, heartbeat: GroupHeartbeat) -> GroupHeartbeatReply | None:
        self.now = now
        if self.persisting:
            return None
        if heartbeat.term < self.term:
            return GroupHeartbeatReply(self.partition, self.term, heartbeat.round, 0, 0, 0)
        if heartbeat.term > self.term:
            self.adopt_term(heartbeat.term)
            self.flush()
            return None
        self.accept_leader(peer)
        reply = self.follower.heartbeat(peer, heartbeat)
        if self.quiescent:
            self.deadline_us = None
        self.flush()
        return reply if not self.persisting else None

    def heartbeat_answered(self, now: Now, peer: NodeId, reply: GroupHeartbeatReply) -> None:
        self.now = now
        if self.persisting:
            return
        if reply.term > self.term:
            self.adopt_term(reply.term)
        elif self.role is Role.LEADER and reply.term == self.term:
            self.replication.heartbeat_answered(peer, reply)
            if self.role is Role.LEADER and self.may_quiesce() and self.replication.all_quiescent():
                self.quiescent = True
                self.deadline_us = None
        self.flush()

    def may_quiesce(self) -> bool:
        if self.commit != self.log.end or self.log.synced != self.log.end or self.transfer_to is not None:
            return False
        to_promote = self.config.learners and self.promotes_learners and len(self.config.voters) < self.voters_max
        return not self.read_index.has_pending and not to_promote and self.replication.all_up_to_date()

    def wake(self, now: Now) -> None:
        """Ends quiescence: the group has work, or the node heartbeat that stood in for its own is lost."""
        self.now = now
        if not self.quiescent:
            return
        self.quiescent = False
        if self.role is Role.LEADER:
            for progress in self.replication.progress.values():
                progress.heard_us = self.replication.initial_heard_us()
                progress.quiescent = False
            self.deadline_us = self.replication.quorum_deadline_us()
        else:
            self.election.reset_timeout()

    def peer_lost(self, now: Now, peer: NodeId) -> None:
        """The peer's node heartbeat, which stands in for that of a quiescent group, is lost, or the peer restarted."""
        self.now = now
        if self.role is Role.LEADER:
            self.wake(now)
            progress = self.replication.progress.get(peer)
            if progress is not None:
                # It has been silent already, so it gets no extra time for its first answer.
                progress.heard_us = min(progress.heard_us, now.mono_us)
                deadline_us = self.replication.quorum_deadline_us()
                if deadline_us is not None:
                    self.deadline_us = min(deadline_us, self.deadline_us or deadline_us)
        elif self.leader == peer:
            self.wake(now)

    # --- messages ---

    def _check_term(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> bool:
        """Whether to process a message of another term: adopts a higher term first, refuses a lower one."""
        term = message.term
        if isinstance(message, RequestVote) and (message.pre_vote or term < self.term):
            # A pre-vote starts no term; a request of an old term is answered with the current one.
            return True
        if isinstance(message, RequestVoteReply) and message.pre_vote and message.granted:
            return True
        if term < self.term:
            if isinstance(message, AppendEntries | InstallSnapshot):
                self.send(peer, AppendEntriesRefused(self.partition, self.term, 0, 0, 0))
            return False
        if isinstance(message, RequestVote):
            if not message.transfer and self.election.leader_is_alive():
                return False
            self.adopt_term(term)
            return True
        self.adopt_term(term)
        self.run_after_persist(lambda: self.receive(self.now, peer, message, payload))
        return False

    def _dispatch(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> None:
        match message:
            case AppendEntries():
                self.accept_leader(peer)
                self.follower.append_entries(peer, message, payload)
            case AppendEntriesReply():
                if self.role is Role.LEADER:
                    self.replication.append_acknowledged(peer, message)
            case AppendEntriesRefused():
                if self.role is Role.LEADER:
                    self.replication.append_refused(peer, message)
            case RequestVote():
                self.election.vote_requested(peer, message)
            case RequestVoteReply():
                self.election.vote_replied(peer, message)
            case InstallSnapshot():
                self.accept_leader(peer)
                self.follower.install_snapshot(peer, message)
            case TimeoutNow():
                self.election.timeout_now(message)
            case ReadIndexRequest():
                self.read_index.request_received(peer, message)
            case ReadIndexReply():
                self.read_index.reply_received(message)
            case _:
                assert_never(message)

    def _check_quorum(self) -> None:
        now_us = self.now.mono_us
        if self.log.last_term < self.term and not self.skipped_noop:
            self.replication.append(group_batch(NoOp(), self.now.wall_us))
        if self.transfer_to is not None and now_us >= self.transfer_until_us:
            self.transfer_to = None
            self.add_log_line("warning", "leadership transfer failed", {"term": self.term})
        deadline_us = self.replication.quorum_deadline_us()
        if deadline_us is not None and now_us >= deadline_us:
            self.step_down("it hears no majority")
            return
        self.deadline_us = deadline_us
        if self.transfer_to is not None:
            self.deadline_us = min(self.transfer_until_us, deadline_us or self.transfer_until_us)
