"""One member of one Raft group, over one partition whose log is the Raft log.

`Replica` replicates the log; a group adds who leads (`Election`), what is committed (a majority, the leader's own disk
included, has synced an entry of its term), who the members are (`GroupMembership`), linearizable reads (`ReadIndex`)
and leadership transfer. The owner of a `Replica` is the group's leader, its owner epoch the term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, assert_never

import msgspec

from rostra.errors import Moved, PeerViolation, RostraError, Unavailable
from rostra.fabric.api import METADATA, LogLine, Now, Recovered
from rostra.fabric.consensus.election import Election
from rostra.fabric.consensus.hard_state import GroupConfig, GroupConfigAt, HardState, key_of, pack_hard_state
from rostra.fabric.consensus.membership import GroupMembership, MembershipChange, NoOp, group_batch, read_config
from rostra.fabric.consensus.messages import (
    InstallGroupSnapshot,
    ReadIndexReply,
    ReadIndexRequest,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from rostra.fabric.consensus.read_index import ReadIndex
from rostra.fabric.consensus.roles import TRANSITIONS, Role
from rostra.fabric.consensus.settings import ConsensusSettings
from rostra.fabric.replication.incoming_entry import IncomingEntry
from rostra.fabric.replication.messages import InstallSnapshot
from rostra.fabric.replication.progress import Progress
from rostra.fabric.replication.replica import Replica
from rostra.model.ids import NodeId
from rostra.safeguards import ALL_ON, Safeguard, Without

NO_MEMBERS = GroupConfig(())
CANDIDATE_ROLES = (Role.CANDIDATE, Role.PRECANDIDATE)
OtherMessage = RequestVote | RequestVoteReply | TimeoutNow | ReadIndexRequest | ReadIndexReply


class RaftGroup(Replica):
    __slots__ = (
        "_checks_quorum",
        "_counted",
        "_counts_itself",
        "_counts_voters_only",
        "_own_term_only",
        "_persisted_commit",
        "_persists_vote",
        "config",
        "config_end",
        "configs",
        "election",
        "membership",
        "persists_commit",
        "previous_config",
        "promotes_learners",
        "random",
        "read_index",
        "role",
        "skipped_noop",
        "transfer_to",
        "transfer_until_us",
        "vote",
        "voters_max",
    )

    settings: ConsensusSettings

    def __init__(
        self,
        node: NodeId,
        found: Recovered,
        hard_state: HardState,
        *,
        settings: ConsensusSettings,
        random: Random,
        next_token: Callable[[], int],
        address_of: Callable[[NodeId], str] = str,
        segment_bytes: int = 1 << 26,
        without: Without = ALL_ON,
    ) -> None:
        super().__init__(
            node,
            found,
            key=key_of(found.partition),
            epoch=hard_state.term,
            complete=hard_state.complete,
            commit=hard_state.commit,
            snapshots=hard_state.snapshots,
            snapshot_start=hard_state.snapshot_start,
            settings=settings,
            next_token=next_token,
            address_of=address_of,
            segment_bytes=segment_bytes,
            without=without,
        )
        self.random = random
        self.vote = hard_state.vote if self.epoch == hard_state.term else 0
        """The node voted for in this term; 0 is no node."""
        self.configs = hard_state.configs
        """The last committed configuration, and later ones that may still be truncated."""
        self._persisted_commit = hard_state.commit
        self.persists_commit = False
        """Whether the commit offset is persisted, so that a restarted node serves before it hears a leader."""
        self.promotes_learners = True
        """Whether the leader promotes a learner that has caught up to voter."""
        self.voters_max = 63
        self.role = Role.LEARNER
        self.transfer_to: NodeId | None = None
        self.transfer_until_us = 0
        self.skipped_noop = False
        """This leader began its term without a no-op, because its whole log was committed (`_can_skip_noop`)."""
        self.config = NO_MEMBERS
        self.config_end = 0
        self.previous_config = NO_MEMBERS
        """The configuration before `config`; in force again if the entry of `config` is truncated."""
        self._counted: tuple[NodeId, ...] = ()
        """The other members whose acknowledgements count for a commit: the voters."""
        self._counts_itself = False
        self._own_term_only = Safeguard.OWN_TERM_COMMIT not in without
        self._counts_voters_only = Safeguard.LEARNER_NOT_COUNTED not in without
        self._persists_vote = Safeguard.PERSIST_VOTE not in without
        self._checks_quorum = Safeguard.CHECK_QUORUM not in without
        self.election = Election(self)
        self.membership = GroupMembership(self)
        self.read_index = ReadIndex(self)

    # --- Raft's words for what a replica has ---

    @property
    def term(self) -> int:
        return self.epoch

    @property
    def leader(self) -> NodeId | None:
        return self.owner

    @property
    def hard_state(self) -> HardState:
        return HardState(
            self.epoch,
            self.vote,
            self.complete,
            self.configs,
            self.snapshots,
            self.snapshot_start,
            self._persisted_commit,
        )

    def pack_hard_state(self) -> bytes:
        hard_state = self.hard_state
        if not self._persists_vote:
            hard_state = msgspec.structs.replace(hard_state, vote=0)
        return pack_hard_state(hard_state)

    # --- what this member may do ---

    @property
    def is_voter(self) -> bool:
        """Also true while its removal is in the log but not committed: its vote may be needed to commit it."""
        leaving = self.config_end > self.commit and self.node in self.previous_config.voters
        return (self.node in self.config.voters or leaving) and self.complete and not self.removed

    @property
    def is_only_copy(self) -> bool:
        return self.config.voters == (self.node,)

    @property
    def may_lead(self) -> bool:
        return self.is_voter and not self.disk_failed

    @property
    def knows_commit(self) -> bool:
        """Whether an entry of the current term is committed, so that the commit offset covers all earlier terms."""
        return self._committed_in_term() or (self.skipped_noop and self.is_owner)

    def _committed_in_term(self) -> bool:
        return self.epoch > 0 and self.log.epoch_at(self.commit) == self.epoch

    def _can_skip_noop(self) -> bool:
        """Whether a new leader may commit its whole log without a no-op, because no other node can have later entries.

        A no-op is needed where another leader may have been elected in between, whose entries could replace older ones
        that a majority holds. Here the configuration is this node alone, and it is committed (an uncommitted one has
        its predecessor beside it in `configs`). Every leader since has that configuration in its log and was elected
        under it or under a later one, which only this node could have started, and its log has none. So no entry of a
        later term exists anywhere, and a candidate that asks for this node's vote later must hold all of this log. The
        term is new all the same: entries of the last term that a crash took from this disk may exist at a former
        member, and an offset must not get two different entries of one term.
        """
        log = self.log
        return (
            self.config.members == (self.node,)
            and len(self.configs) == 1
            and log.first < log.end == log.synced
            and self.complete
            and not (self.disk_failed or self.without or self.persists_commit)
        )

    def refusal(self) -> RostraError | None:
        """Returns why this node accepts no proposals now, or None."""
        if self.is_owner and not self.persisting and self.transfer_to is None and not self.disk_failed:
            return None
        if self.only_copy_damaged:
            return self.damage_error
        if self.owner is not None and self.owner != self.node:
            return Moved(self.address_of(self.owner), self.epoch)
        return Unavailable(self.name, self.partition.index, "it has no leader yet, or the leader is changing")

    # --- roles ---

    def start(self, now: Now) -> None:
        self.now = now
        self.follower.begin_epoch()
        self.update_config()
        if self.only_copy_damaged:
            # Whatever is left was on the stable storage of the only voter, so it is committed.
            self.commit = self.log.end
        self.announce()
        self.flush()

    def become(self, role: Role) -> None:
        assert (self.role, role) in TRANSITIONS, f"{self.role} does not become {role}"
        former, self.role = self.role, role
        self.is_owner = role is Role.LEADER
        self.add_log_line("debug", "role changed", {"former": str(former), "because": TRANSITIONS[former, role]})

    def become_leader(self) -> None:
        self.become(Role.LEADER)
        self.owner = self.node
        self.quiescent = False
        self.sender.start()
        self.add_log_line("info", "leads", {"term": self.epoch, "end": self.log.end})
        self.skipped_noop = self._can_skip_noop()
        if not self.skipped_noop:
            self.sender.append(group_batch(NoOp(), self.now.wall_us))
        self.deadline_us = self.quorum_deadline_us()
        self.wants_heartbeat = True
        self.announce()
        if self.skipped_noop and self.commit < self.log.end:
            # Writes nothing: a node with thousands of topics starts without touching their logs.
            self.advance_commit(self.log.end)

    def step_down(self, reason: str) -> None:
        """Becomes a follower that knows no leader."""
        if self.is_owner:
            self.add_log_line("info", "stepped down", {"term": self.epoch, "reason": reason})
            self.read_index.abort()
            self.sender.stop()
            self.transfer_to = None
        self.owner = None
        self.quiescent = False
        if self.role not in (Role.FOLLOWER, Role.LEARNER):
            self.become(Role.FOLLOWER)
        self.election.reset_timeout()
        self._adjust_role()
        self.announce()

    def accept_owner(self, peer: NodeId) -> None:
        role = self.role
        if role is Role.LEADER:
            raise PeerViolation("leader", f"{peer} claims to lead {self.partition} in our own term {self.epoch}")
        if role in CANDIDATE_ROLES:
            self.become(Role.FOLLOWER)
        self.election.leader_heard()
        if self.owner != peer:
            self.owner = peer
            self.add_log_line("info", "follows", {"leader": peer, "term": self.epoch})
            self.announce()

    def _adjust_role(self) -> None:
        """Becomes learner or follower as voting rights change; a removed leader leads until that is committed."""
        if self.role is Role.LEARNER and self.is_voter:
            self.become(Role.FOLLOWER)
            self.election.reset_timeout()
        elif self.is_owner and not self.complete:
            self.step_down("its replica is damaged")
        elif self.role not in (Role.LEARNER, Role.LEADER) and not self.is_voter:
            self.become(Role.LEARNER)
            self.deadline_us = None

    def completeness_changed(self) -> None:
        self._adjust_role()

    def add_log_line(self, level: str, event: str, about: dict[str, int | str]) -> None:
        place = self.name if self.name == METADATA else f"{self.name}/{self.partition.index}"
        if level == "info" and self.name != METADATA and self.is_only_copy:
            # The only replica always elects itself; with many topics that would hide other lines.
            level = "debug"
        self.out.append(LogLine(level, event, {"partition": place, "node": self.node, "role": str(self.role), **about}))

    # --- terms and votes ---

    def begin_term(self, term: int, *, vote: int) -> None:
        self.epoch = term
        self.vote = vote
        self.hard_state_changed()
        self.owner = None
        self.follower.begin_epoch()

    def adopt_term(self, term: int) -> None:
        self.begin_term(term, vote=0)
        self.step_down(f"term {term} has begun")

    def newer_epoch(self, epoch: int) -> None:
        self.adopt_term(epoch)

    def record_vote(self, candidate: NodeId) -> None:
        if self.vote != candidate:
            self.vote = candidate
            self.hard_state_changed()

    def hard_state_durable(self) -> None:
        self.election.vote_persisted()

    def fence(self, peer: NodeId, message: Any, payload: bytearray | None) -> bool:
        """Adopts a higher term first; refuses a lower one."""
        term = message.epoch
        if isinstance(message, RequestVote) and (message.pre_vote or term < self.epoch):
            # A pre-vote starts no term; a request of an old term is answered with the current one.
            return True
        if isinstance(message, RequestVoteReply) and message.pre_vote and message.granted:
            return True
        if term < self.epoch:
            self.refuse_former_owner(peer, message)
            return False
        if isinstance(message, RequestVote):
            if not message.transfer and self.election.leader_is_alive():
                return False
            self.adopt_term(term)
            return True
        self.adopt_term(term)
        self.run_after_persist(lambda: self.receive(self.now, peer, message, payload))
        return False

    def other_message(self, peer: NodeId, message: OtherMessage) -> None:
        match message:
            case RequestVote():
                self.election.vote_requested(peer, message)
            case RequestVoteReply():
                self.election.vote_replied(peer, message)
            case TimeoutNow():
                self.election.timeout_now(message)
            case ReadIndexRequest():
                self.read_index.request_received(peer, message)
            case ReadIndexReply():
                self.read_index.reply_received(message)
            case _:
                assert_never(message)

    # --- configurations ---

    def add_configs(self, rows: Iterable[GroupConfigAt]) -> None:
        known = [row for row in self.configs if self._is_in_log(row) or row.end > self.log.end]
        self.configs = tuple(sorted((*known, *rows), key=lambda row: (row.end, row.term)))
        self.hard_state_changed()

    def remove_config(self, gone: GroupConfigAt) -> None:
        self.configs = tuple(row for row in self.configs if row != gone)
        self.hard_state_changed()

    def control_batches_arrived(self, entries: list[IncomingEntry]) -> bool:
        """Configurations are persisted before their entries are appended."""
        unknown = []
        for entry in entries:
            config = read_config(entry.batch)
            if config is not None and (row := GroupConfigAt(entry.end, entry.epoch, config)) not in self.configs:
                unknown.append(row)
        if unknown:
            self.add_configs(unknown)
        return bool(unknown)

    def entries_appended(self) -> None:
        if self.configs and self.configs[-1].end > self.config_end:
            self.update_config()

    def log_changed(self) -> None:
        self.update_config()

    def update_config(self) -> None:
        """Recomputes the configuration after the log changed: the last one that the log holds is in force."""
        rows = tuple(row for row in self.configs if self._is_in_log(row))
        kept = tuple(row for row in self.configs if row in rows or row.end > self.log.end)
        if kept != self.configs:
            # Another entry is at that offset now. A log that starts after it could not tell, were the row kept.
            self.configs = kept
            self.hard_state_changed()
        self.config, self.config_end = (rows[-1].config, rows[-1].end) if rows else (NO_MEMBERS, 0)
        self.previous_config = rows[-2].config if len(rows) > 1 else NO_MEMBERS
        counted = self.config.voters if self._counts_voters_only else self.config.members
        self._counted = tuple(node for node in counted if node != self.node)
        self._counts_itself = self.node in counted
        if self.is_owner:
            self.sender.update_followers()
        self._adjust_role()

    def _is_in_log(self, row: GroupConfigAt) -> bool:
        if row.end <= self.log.first:
            return True
        return row.end <= self.log.end and self.log.epoch_at(row.end) == row.term

    def _drop_superseded_configs(self) -> None:
        """Drops all but the last of the configurations that can no longer be truncated."""
        safe = min(self.commit, self.log.end)
        last = max((row.end for row in self.configs if row.end <= safe and self._is_in_log(row)), default=0)
        self.configs = tuple(row for row in self.configs if row.end >= last)

    def snapshot_message(self, first: int) -> InstallGroupSnapshot:
        configs = tuple(row for row in self.configs if row.end <= first)[-1:]
        return InstallGroupSnapshot(self.partition, self.epoch, first, self.log.epochs_before(first), configs)

    def snapshot_began(self, message: InstallSnapshot) -> None:
        if not isinstance(message, InstallGroupSnapshot):
            raise PeerViolation("snapshot", "it has no configuration")
        self.configs = message.configs
        self._adjust_role()

    def followers(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self.config.members if node != self.node)

    # --- commit ---

    def agreed_offset(self) -> int:
        """What a majority has on stable storage, unless its last entry is of an earlier term."""
        log, progress = self.log, self.sender.progress
        matches = [progress[peer].match for peer in self._counted]
        if self._counts_itself:
            matches.append(log.synced)
        matches.sort(reverse=True)
        agreed = min(matches[len(self.config.voters) // 2], log.end)
        if self._own_term_only and log.epoch_at(agreed) != self.epoch:
            return self.commit
        return agreed

    def commit_advanced(self) -> None:
        if len(self.configs) > 1:
            self._drop_superseded_configs()
        if self.persists_commit:
            self._persisted_commit = self.commit
            self.out.append(self.persist())
        if self.config_end <= self.commit and self.node not in self.config.voters:
            if self.is_owner:
                self.step_down("it was removed")
            else:
                self._adjust_role()

    def acknowledged(self, peer: NodeId, progress: Progress) -> None:
        if self.config.learners:
            self.membership.promote_if_caught_up(peer)
        if self.transfer_to == peer:
            self._try_transfer()

    # --- time ---

    def deadline_passed(self, now: Now) -> None:
        """Checks the quorum as leader, or starts an election."""
        self.now = now
        if self.persisting:
            self.deadline_us = now.mono_us + self.settings.heartbeat_us
            return
        if self.is_owner:
            self._check_quorum()
        else:
            self.election.timed_out()
        self.flush()

    def _check_quorum(self) -> None:
        now_us = self.now.mono_us
        if self.log.last_epoch < self.epoch and not self.skipped_noop:
            self.sender.append(group_batch(NoOp(), self.now.wall_us))
        if self.transfer_to is not None and now_us >= self.transfer_until_us:
            self.transfer_to = None
            self.add_log_line("warning", "leadership transfer failed", {"term": self.epoch})
        deadline_us = self.quorum_deadline_us()
        if deadline_us is not None and now_us >= deadline_us:
            self.step_down("it hears no majority")
            return
        self.deadline_us = deadline_us
        if self.transfer_to is not None:
            self.deadline_us = min(self.transfer_until_us, deadline_us or self.transfer_until_us)

    def quorum_deadline_us(self) -> int | None:
        """When this leader steps down unless it hears a majority (CheckQuorum)."""
        if not self._checks_quorum or self.is_only_copy:
            return None
        progress, now_us = self.sender.progress, self.now.mono_us
        heard = sorted(
            (progress[voter].heard_us if voter in progress else now_us for voter in self.config.voters), reverse=True
        )
        return heard[self.config.majority - 1] + self.settings.election_min_us

    def first_heard_us(self) -> int:
        """A new follower has the longest election timeout for its first reply."""
        return self.now.mono_us + self.settings.election_max_us - self.settings.election_min_us

    def has_work(self) -> bool:
        if self.transfer_to is not None or self.read_index.has_pending:
            return True
        return bool(self.config.learners) and self.promotes_learners and len(self.config.voters) < self.voters_max

    def fell_silent(self) -> None:
        self.deadline_us = None

    def woken(self) -> None:
        if self.is_owner:
            self.deadline_us = self.quorum_deadline_us()
        else:
            self.election.reset_timeout()

    def round_answered(self) -> None:
        self.read_index.round_answered()

    def peer_lost(self, now: Now, peer: NodeId) -> None:
        """The peer's node heartbeat, which stands in for that of a quiescent group, is lost, or the peer restarted."""
        self.now = now
        if self.is_owner:
            self.wake(now)
            progress = self.sender.progress.get(peer)
            if progress is not None:
                # It has been silent already, so it gets no extra time for its first answer.
                progress.heard_us = min(progress.heard_us, now.mono_us)
                deadline_us = self.quorum_deadline_us()
                if deadline_us is not None:
                    self.deadline_us = min(deadline_us, self.deadline_us or deadline_us)
        elif self.owner == peer:
            self.wake(now)

    # --- the disk ---

    def write_refused(self) -> None:
        if self.is_owner and self.config.members != (self.node,):
            self.step_down("the disk refuses writes")
        elif self.is_owner and self.log.last_epoch < self.epoch and not self.skipped_noop:
            # The no-op of this term is gone, and nothing commits without an entry of this term: append it again.
            self.deadline_us = self.now.mono_us + self.settings.election_min_us

    def fail_disk(self, now: Now) -> None:
        """An fsync failed: nothing written here will be durable."""
        self.now = now
        self.disk_failed = True
        # The only voter stays leader: no other node could lead, and what was committed can still be read.
        if self.is_owner and not self.persisting and not self.is_only_copy:
            best = max(self.sender.progress.items(), key=lambda item: item[1].match, default=None)
            if best is not None and best[0] in self.config.voters:
                self.send(best[0], TimeoutNow(self.partition, self.epoch))
            self.step_down("its disk cannot sync")
        self.flush()

    # --- members, transfer, reads ---

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
        if self.persisting or not self.is_owner or self.transfer_to is not None:
            return self._not_transferable()
        if target == self.node or target not in self.config.voters:
            return self._not_transferable()
        if self.quiescent:
            self.wake(now)
        self.transfer_to = target
        self.transfer_until_us = now.mono_us + self.settings.election_min_us
        self.deadline_us = min(self.transfer_until_us, self.deadline_us or self.transfer_until_us)
        self._try_transfer()
        self.flush()
        return None

    def _try_transfer(self) -> None:
        target = self.transfer_to
        progress = self.sender.progress.get(target) if target is not None else None
        if target is not None and progress is not None and progress.match == self.log.end:
            self.send(target, TimeoutNow(self.partition, self.epoch))

    def _not_transferable(self) -> RostraError:
        return Unavailable(self.name, self.partition.index, "this node does not lead it, or leadership is changing")

    def request_read_index(self, now: Now, token: int) -> None:
        self.now = now
        if self.persisting:
            self.defer(lambda: self.request_read_index(self.now, token))
            return
        if self.quiescent and self.is_owner:
            self.wake(now)
        self.read_index.request(token)
        self.flush()
