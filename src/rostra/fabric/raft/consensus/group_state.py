"""The state of one group member: role, term, hard state, configuration and commit offset, and its changes.

Messages leave only when the hard state they depend on is durable: `flush` ends every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from rostra.errors import PartitionDamaged, PeerViolation, RostraError
from rostra.fabric.api import (
    METADATA,
    Blocked,
    Buffer,
    Committed,
    Echo,
    EpochStart,
    FabricEffect,
    LogLine,
    Now,
    Persist,
    Recovered,
    Send,
    ServedElsewhere,
    Serving,
)
from rostra.fabric.raft.consensus.hard_state import (
    GroupConfig,
    GroupConfigAt,
    HardState,
    SnapshotStart,
    key_of,
    pack_hard_state,
)
from rostra.fabric.raft.consensus.log_state import LogState
from rostra.fabric.raft.consensus.membership import NoOp, group_batch
from rostra.fabric.raft.consensus.roles import TRANSITIONS, Role
from rostra.fabric.raft.messages import GroupMessage
from rostra.fabric.raft.peers.deadline_queue import NEVER_US
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.batch import placement_seed
from rostra.model.ids import NodeId, Partition, text
from rostra.safeguards import ALL_ON, Safeguard, Without

if TYPE_CHECKING:
    from rostra.fabric.raft.consensus.election import Election
    from rostra.fabric.raft.consensus.follower import Follower
    from rostra.fabric.raft.consensus.read_index import ReadIndex
    from rostra.fabric.raft.consensus.replication import Replication

NO_MEMBERS = GroupConfig(())
COMMIT_REPORT_US = 5_000
"""How often a replica without readers reports its commit offset to the broker."""
CANDIDATE_ROLES = (Role.CANDIDATE, Role.PRECANDIDATE)


class RaftGroupState:
    """State shared by election, replication, follower, membership and read index of a group."""

    __slots__ = (
        "_dirty",
        "_persists_first",
        "_persists_vote",
        "_sends",
        "address_of",
        "after_persist",
        "checksum_seed",
        "commit",
        "commit_report_us",
        "complete",
        "complete_at",
        "config",
        "config_end",
        "damaged_at",
        "deadline_us",
        "deferred",
        "disk_failed",
        "election",
        "fast_follower",
        "fast_leader",
        "fast_single",
        "follower",
        "hard_state",
        "has_readers",
        "installing_snapshot",
        "leader",
        "log",
        "name",
        "node",
        "now",
        "out",
        "partition",
        "peer_reads",
        "persist_number",
        "persisting",
        "persists_commit",
        "previous_config",
        "promotes_learners",
        "queued_us",
        "quiescent",
        "random",
        "read_index",
        "removed",
        "replication",
        "role",
        "segment_bytes",
        "sends_heartbeats",
        "settings",
        "skipped_noop",
        "term",
        "transfer_to",
        "transfer_until_us",
        "unreported_commit",
        "voters_max",
        "wants_heartbeat",
        "was_leader",
        "without",
    )

    election: Election
    follower: Follower
    replication: Replication
    read_index: ReadIndex

    def __init__(
        self,
        node: NodeId,
        found: Recovered,
        hard_state: HardState,
        *,
        settings: RaftSettings,
        random: Random,
        address_of: Callable[[NodeId], str] = str,
        segment_bytes: int = 1 << 26,
        without: Without = ALL_ON,
    ) -> None:
        self.node = node
        self.partition: Partition = found.partition
        self.checksum_seed = placement_seed(found.partition.topic, found.partition.index)
        """Seeds the checksum that covers a batch's partition."""
        self.settings = settings
        self.random = random
        self.without = without
        self.segment_bytes = segment_bytes
        self.name = text(found.partition.topic)
        self.promotes_learners = True
        """Whether the leader promotes a learner that has caught up to voter."""
        self.voters_max = 63
        self.persists_commit = False
        """Whether the commit offset is persisted, so that a restarted node serves before it hears a leader."""
        self.now = Now(0, 0)
        self.out: list[FabricEffect] = []
        self.hard_state, epochs = _reconciled(hard_state, found)
        # Copied from the hard state because every message needs them.
        self.term = self.hard_state.term
        self.complete = self.hard_state.complete
        self.log = LogState(found.first, found.end, epochs, without)
        self.damaged_at = found.damaged_at
        self.installing_snapshot = False
        """The replica is incomplete and its log restarted at a leader's log start."""
        self.complete_at: int | None = None
        self.commit = min(max(found.first, hard_state.commit), found.end)
        self.role = Role.LEARNER
        self.leader: NodeId | None = None
        self.quiescent = False
        self.has_readers = False
        """Whether subscribers read this replica and wait for commit offsets."""
        self.commit_report_us = 0
        self.unreported_commit = 0
        """Commit offset not yet reported to the broker; reports are throttled while the replica has no readers."""
        self.disk_failed = False
        self.removed = False
        """The node was removed from the cluster: it neither leads nor votes."""
        self.deadline_us: int | None = None
        self.queued_us = NEVER_US
        """When the deadline queue next returns this group; not later than `deadline_us`."""
        self.was_leader = False
        self.sends_heartbeats = False
        """Whether the node's heartbeats include this group: as leader of followers that are not quiescent."""
        self.transfer_to: NodeId | None = None
        self.transfer_until_us = 0
        self.fast_single = False
        self.fast_leader = False
        self.fast_follower = False
        """Which fast path may be taken; set by `update_fast_path` after every full step."""
        self.skipped_noop = False
        """This leader began its term without a no-op, because its whole log was committed (`can_skip_noop`)."""
        self.wants_heartbeat = False
        """A read or change waits for a heartbeat round: send it now, not at the next period."""
        self.config = NO_MEMBERS
        self.config_end = 0
        self.previous_config = NO_MEMBERS
        """The configuration before `config`; in force again if the entry of `config` is truncated."""
        self.peer_reads: dict[int, NodeId] = {}
        self.address_of = address_of
        self._sends: list[FabricEffect] = []
        self._dirty = False
        self.persisting = False
        """The hard state is being written; inputs are deferred until it is durable."""
        self.persist_number = 0
        self.after_persist: list[Callable[[], None]] = []
        self.deferred: deque[Callable[[], None]] = deque()
        self._persists_vote = Safeguard.PERSIST_VOTE not in without
        self._persists_first = Safeguard.PERSIST_BEFORE_REPLY not in without

    @property
    def is_voter(self) -> bool:
        """Also true while its removal is in the log but not committed: its vote may be needed to commit it."""
        leaving = self.config_end > self.commit and self.node in self.previous_config.voters
        return (self.node in self.config.voters or leaving) and self.complete and not self.removed

    @property
    def only_copy_damaged(self) -> bool:
        """The replica is damaged and the only one: it serves what can be read and accepts no proposals."""
        return not self.complete and self.config.voters == (self.node,)

    @property
    def may_lead(self) -> bool:
        return self.is_voter and not self.disk_failed

    @property
    def knows_commit(self) -> bool:
        """Whether an entry of the current term is committed, so that the commit offset covers all earlier terms."""
        return self.committed_in_term or (self.skipped_noop and self.role is Role.LEADER)

    @property
    def committed_in_term(self) -> bool:
        return self.term > 0 and self.log.term_at(self.commit) == self.term

    def can_skip_noop(self) -> bool:
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
            and len(self.hard_state.configs) == 1
            and log.first < log.end == log.synced
            and self.complete
            and not (self.disk_failed or self.without or self.persists_commit)
        )

    @property
    def damage_error(self) -> RostraError:
        at = self.log.end if self.damaged_at is None else self.damaged_at
        return PartitionDamaged(self.name, self.partition.index, at)

    def take_effects(self) -> list[FabricEffect]:
        """Returns the effects since the last call."""
        effects, self.out = self.out, []
        return effects

    def send(self, peer: NodeId, message: GroupMessage, payload: tuple[Buffer, ...] = ()) -> None:
        self._sends.append(Send(peer, message, payload))

    # --- roles ---

    def become(self, role: Role) -> None:
        assert (self.role, role) in TRANSITIONS, f"{self.role} does not become {role}"
        former, self.role = self.role, role
        self.leave_fast_path()
        self.add_log_line("debug", "role changed", {"former": str(former), "because": TRANSITIONS[former, role]})

    def leave_fast_path(self) -> None:
        """Disables the fast paths until `update_fast_path` allows one again."""
        self.fast_single = self.fast_leader = self.fast_follower = False

    def become_leader(self) -> None:
        self.become(Role.LEADER)
        self.leader = self.node
        self.quiescent = False
        self.replication.reset()
        self.add_log_line("info", "leads", {"term": self.term, "end": self.log.end})
        self.skipped_noop = self.can_skip_noop()
        if not self.skipped_noop:
            self.replication.append(group_batch(NoOp(), self.now.wall_us))
        self.deadline_us = self.replication.quorum_deadline_us()
        self.wants_heartbeat = True
        self.announce()
        if self.skipped_noop and self.commit < self.log.end:
            # Writes nothing: a node with thousands of topics starts without touching their logs.
            self.advance_commit(self.log.end)

    def step_down(self, reason: str) -> None:
        """Becomes a follower that knows no leader."""
        if self.role is Role.LEADER:
            self.add_log_line("info", "stepped down", {"term": self.term, "reason": reason})
            self.read_index.abort()
            self.replication.progress.clear()
            self.transfer_to = None
            self.peer_reads.clear()
        self.leader = None
        self.quiescent = False
        if self.role not in (Role.FOLLOWER, Role.LEARNER):
            self.become(Role.FOLLOWER)
        self.election.reset_timeout()
        self._adjust_role()
        self.announce()

    def accept_leader(self, peer: NodeId) -> None:
        if self.role is Role.LEADER:
            raise PeerViolation("leader", f"{peer} claims to lead {self.partition} in our own term {self.term}")
        if self.role in CANDIDATE_ROLES:
            self.become(Role.FOLLOWER)
        self.election.leader_heard()
        if self.leader != peer:
            self.leader = peer
            self.add_log_line("info", "follows", {"leader": peer, "term": self.term})
            self.announce()

    def _adjust_role(self) -> None:
        """Becomes learner or follower as voting rights change; a removed leader leads until that is committed."""
        if self.role is Role.LEARNER and self.is_voter:
            self.become(Role.FOLLOWER)
            self.election.reset_timeout()
        elif self.role is Role.LEADER and not self.complete:
            self.step_down("its replica is damaged")
        elif self.role not in (Role.LEARNER, Role.LEADER) and not self.is_voter:
            self.become(Role.LEARNER)
            self.deadline_us = None

    def announce(self) -> None:
        """Reports to the broker which node serves the partition; an incomplete replica counts as none."""
        self.report_commit()
        address = self.address_of(self.leader) if self.leader is not None and self.leader != self.node else ""
        if self.removed or (not self.complete and not self.only_copy_damaged):
            self.out.append(ServedElsewhere(self.partition, self.term, address))
            return
        log = self.log
        owner = self.role is Role.LEADER or self.only_copy_damaged
        self.out.append(Serving(self.partition, self.term, owner, log.first, log.end, self.commit, address))
        if self.only_copy_damaged:
            self.out.append(Blocked(self.partition, self.damage_error))

    # --- hard state ---

    def begin_term(self, term: int, *, vote: int) -> None:
        self.hard_state = msgspec.structs.replace(self.hard_state, term=term, vote=vote)
        self.term = term
        self._dirty = True
        self.leader = None
        self.follower.begin_term()

    def adopt_term(self, term: int) -> None:
        self.begin_term(term, vote=0)
        self.step_down(f"term {term} has begun")

    def record_vote(self, candidate: NodeId) -> None:
        if self.hard_state.vote != candidate:
            self.hard_state = msgspec.structs.replace(self.hard_state, vote=candidate)
            self._dirty = True

    def add_configs(self, rows: Iterable[GroupConfigAt]) -> None:
        known = [row for row in self.hard_state.configs if self._is_in_log(row) or row.end > self.log.end]
        ordered = sorted((*known, *rows), key=lambda row: (row.end, row.term))
        self.hard_state = msgspec.structs.replace(self.hard_state, configs=tuple(ordered))
        self._dirty = True

    def remove_config(self, gone: GroupConfigAt) -> None:
        rows = tuple(row for row in self.hard_state.configs if row != gone)
        self.hard_state = msgspec.structs.replace(self.hard_state, configs=rows)
        self._dirty = True

    def mark_incomplete(self) -> None:
        """Marks the replica incomplete at start, because its log cannot be read."""
        self.hard_state = msgspec.structs.replace(self.hard_state, complete=False)
        self.complete = False

    def set_complete(self, complete: bool) -> None:
        self.hard_state = msgspec.structs.replace(self.hard_state, complete=complete)
        self.complete = complete
        self._dirty = True
        self.installing_snapshot = False
        self.complete_at = None
        self._adjust_role()
        self.announce()

    def begin_snapshot(self, start: SnapshotStart, configs: tuple[GroupConfigAt, ...]) -> None:
        self.hard_state = msgspec.structs.replace(
            self.hard_state, snapshot_start=start, snapshots=self.hard_state.snapshots + 1, configs=configs
        )
        self._dirty = True
        self.complete_at = None
        self._adjust_role()

    def run_after_persist(self, action: Callable[[], None]) -> None:
        """Runs the action when the hard state that was just changed is durable."""
        self.after_persist.append(action)

    def defer(self, action: Callable[[], None], *, sent: bool = False) -> None:
        """Queues an input until the hard state is durable. Beyond the bound, messages are dropped; disk results not."""
        if not sent or len(self.deferred) < self.settings.deferred_inputs_max:
            self.deferred.append(action)

    def flush(self) -> None:
        """Ends a step: persists changed hard state, and sends the messages once it is durable."""
        if not self._dirty:
            if self._sends:
                self.out += self._sends
                self._sends = []
            return
        sends, self._sends = self._sends, []
        if not self._persists_first:
            self.out += sends
            sends = []
        self._dirty = False
        self.persisting = True
        self.leave_fast_path()
        self.persist_number += 1
        self.out.append(self._persist((*sends, Echo(key_of(self.partition), self.persist_number))))

    def _persist(self, then: tuple[FabricEffect, ...]) -> Persist:
        hard_state = self.hard_state if self._persists_vote else msgspec.structs.replace(self.hard_state, vote=0)
        return Persist(key_of(self.partition), pack_hard_state(hard_state), then)

    # --- configurations ---

    def update_config(self) -> None:
        """Recomputes the configuration after the log changed: the last one that the log holds is in force."""
        rows = tuple(row for row in self.hard_state.configs if self._is_in_log(row))
        kept = tuple(row for row in self.hard_state.configs if row in rows or row.end > self.log.end)
        if kept != self.hard_state.configs:
            # Another entry is at that offset now. A log that starts after it could not tell, were the row kept.
            self.hard_state = msgspec.structs.replace(self.hard_state, configs=kept)
            self._dirty = True
        self.config, self.config_end = (rows[-1].config, rows[-1].end) if rows else (NO_MEMBERS, 0)
        self.previous_config = rows[-2].config if len(rows) > 1 else NO_MEMBERS
        if self.role is Role.LEADER:
            self.replication.update_peers()
        self._adjust_role()

    def _is_in_log(self, row: GroupConfigAt) -> bool:
        if row.end <= self.log.first:
            return True
        return row.end <= self.log.end and self.log.term_at(row.end) == row.term

    def _drop_superseded_configs(self) -> None:
        """Drops all but the last of the configurations that can no longer be truncated."""
        safe = min(self.commit, self.log.end)
        last = max((row.end for row in self.hard_state.configs if row.end <= safe and self._is_in_log(row)), default=0)
        rows = tuple(row for row in self.hard_state.configs if row.end >= last)
        self.hard_state = msgspec.structs.replace(self.hard_state, configs=rows)

    def configs_before(self, offset: int) -> tuple[GroupConfigAt, ...]:
        return tuple(row for row in self.hard_state.configs if row.end <= offset)[-1:]

    # --- commit ---

    def report_commit(self) -> None:
        """Reports a pending commit offset to the broker, once the log (which a full disk may have cut) reaches it."""
        if self.unreported_commit and self.unreported_commit <= self.log.end:
            self.out.append(Committed(self.partition, self.unreported_commit))
            self.unreported_commit = 0

    def advance_commit(self, offset: int) -> None:
        self.commit = offset
        self.unreported_commit = offset
        now_us = self.now.mono_us
        if self.has_readers or self.role is Role.LEADER or now_us >= self.commit_report_us:
            self.commit_report_us = now_us + COMMIT_REPORT_US
            self.report_commit()
        if len(self.hard_state.configs) > 1:
            self._drop_superseded_configs()
        if self.persists_commit:
            self.hard_state = msgspec.structs.replace(self.hard_state, commit=offset)
            self.out.append(self._persist(()))
        if self.config_end <= offset and self.node not in self.config.voters:
            if self.role is Role.LEADER:
                self.step_down("it was removed")
            else:
                self._adjust_role()

    def add_log_line(self, level: str, event: str, about: dict[str, int | str]) -> None:
        place = self.name if self.name == METADATA else f"{self.name}/{self.partition.index}"
        if level == "info" and self.name != METADATA and self.config.voters == (self.node,):
            # The only replica always elects itself; with many topics that would hide other lines.
            level = "debug"
        self.out.append(LogLine(level, event, {"partition": place, "node": self.node, "role": str(self.role), **about}))


def interrupted_snapshot_start(hard_state: HardState, found: Recovered) -> int | None:
    """Where the log of a complete replica must restart after a crash interrupted an InstallSnapshot; else None.

    The snapshot start was persisted but the old log not dropped. Everything before that start is committed, so an empty
    log at that start is complete. A log that extends beyond it was kept: another leader has appended to it since.
    """
    start = hard_state.snapshot_start
    if start is None or not hard_state.complete or found.damaged_at is not None:
        return None
    return start.first if found.first < start.first and found.end <= start.first else None


def _reconciled(hard_state: HardState, found: Recovered) -> tuple[HardState, tuple[EpochStart, ...]]:
    """Reconciles hard state and log, either of which may be ahead after a crash."""
    epochs = found.epochs
    start = hard_state.snapshot_start
    if start is not None and found.first < start.first:
        # The crash came between dropping the old log and creating the new one.
        hard_state = msgspec.structs.replace(hard_state, complete=False)
    elif start is not None and found.first == start.first and not any(row.offset < found.first for row in epochs):
        epochs = (*start.epochs, *epochs)
    if found.damaged_at is not None:
        hard_state = msgspec.structs.replace(hard_state, complete=False)
    # The log may hold entries of a term that was not persisted before the crash.
    if epochs and epochs[-1].epoch > hard_state.term:
        hard_state = msgspec.structs.replace(hard_state, term=epochs[-1].epoch, vote=0)
    return hard_state, epochs
