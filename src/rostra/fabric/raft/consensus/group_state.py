"""A member's standing in its group: role and term, hard state, configuration, commit, and what leaves of them.

Messages leave only when the hard state they depend on is durable: `finish` ends every step.
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
    CopyStart,
    GroupConfig,
    GroupConfigAt,
    HardState,
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

NOBODY = GroupConfig(())
COMMIT_SAID_US = 5_000
"""As often as a node weighs what is live against what it reads from its disk."""
CANDIDATE_ROLES = (Role.CANDIDATE, Role.PRECANDIDATE)


class RaftGroupState:
    """What the parts of a group share: its role, hard state, members, log and commit, and how each of them changes."""

    __slots__ = (
        "_dirty",
        "_keeps_vote",
        "_persists_first",
        "_sends",
        "address_of",
        "alone",
        "armed_us",
        "beating",
        "broken",
        "commit",
        "complete",
        "config",
        "config_end",
        "copy",
        "damaged_at",
        "deadline_us",
        "election",
        "expelled",
        "following",
        "follows_steadily",
        "former",
        "hard",
        "has_readers",
        "inherits",
        "keeps_commit",
        "kept",
        "leader",
        "leads_steadily",
        "led",
        "me",
        "name",
        "now",
        "number",
        "out",
        "partition",
        "promotes",
        "quiet",
        "random",
        "reading",
        "reads",
        "refilling",
        "replication",
        "retries",
        "role",
        "seed",
        "segment_bytes",
        "settings",
        "settling",
        "silent_until_us",
        "term",
        "transfer_to",
        "transfer_until_us",
        "unsaid",
        "voters_max",
        "wants_beat",
        "whole_at",
        "without",
    )

    election: Election
    following: Follower
    replication: Replication
    reading: ReadIndex

    def __init__(
        self,
        me: NodeId,
        found: Recovered,
        hard: HardState,
        *,
        settings: RaftSettings,
        random: Random,
        address_of: Callable[[NodeId], str] = str,
        segment_bytes: int = 1 << 26,
        without: Without = ALL_ON,
    ) -> None:
        self.me = me
        self.partition: Partition = found.partition
        self.seed = placement_seed(found.partition.topic, found.partition.index)
        """Of the checksum over a batch's place."""
        self.settings = settings
        self.random = random
        self.without = without
        self.segment_bytes = segment_bytes
        self.name = text(found.partition.topic)
        self.promotes = True
        """Whether a learner that has caught up is made a voter by itself."""
        self.voters_max = 63
        self.keeps_commit = False
        """Whether the commit offset is written down as it moves, for a start before any leader is heard."""
        self.now = Now(0, 0)
        self.out: list[FabricEffect] = []
        self.hard, epochs = _reconciled(hard, found)
        # These two of the hard state are looked at with every message.
        self.term = self.hard.term
        self.complete = self.hard.complete
        self.copy = LogState(found.first, found.end, epochs, without)
        self.damaged_at = found.damaged_at
        self.refilling = False
        """The copy is incomplete, and what is in it comes from a leader's log start."""
        self.whole_at: int | None = None
        self.commit = min(max(found.first, hard.commit), found.end)
        self.role = Role.LEARNER
        self.leader: NodeId | None = None
        self.quiet = False
        self.has_readers = False
        """Whether somebody reads this copy, and waits for what is committed."""
        self.silent_until_us = 0
        self.unsaid = 0
        """Where nobody reads, those above hear of commits now and then, not of each: this one they have not heard."""
        self.broken = False
        self.expelled = False
        """The node is no member of the cluster any more: it leads nothing and votes for nobody."""
        self.deadline_us: int | None = None
        self.armed_us = NEVER_US
        """When its alarm goes off, which is not later than its deadline."""
        self.led = False
        self.beating = False
        """Whether it led when it last did anything, and spoke to its followers then: the node keeps its heartbeats."""
        self.transfer_to: NodeId | None = None
        self.transfer_until_us = 0
        self.alone = False
        self.leads_steadily = False
        self.follows_steadily = False
        """Which short way it takes, as `find_way` had it when the group last did anything else."""
        self.inherits = False
        """It leads, and began to without an entry: all that was there is committed."""
        self.wants_beat = False
        """Somebody waits for a heartbeat round: do not wait for the next period."""
        self.config = NOBODY
        self.config_end = 0
        self.former = NOBODY
        """The configuration before this one, which counts again if this one is cut."""
        self.reads: dict[int, NodeId] = {}
        self.address_of = address_of
        self._sends: list[FabricEffect] = []
        self._dirty = False
        self.settling = False
        """The hard state is on its way to the disk; until it is there every input waits."""
        self.number = 0
        self.retries: list[Callable[[], None]] = []
        self.kept: deque[Callable[[], None]] = deque()
        self._keeps_vote = Safeguard.PERSIST_VOTE not in without
        self._persists_first = Safeguard.PERSIST_BEFORE_REPLY not in without

    @property
    def is_voter(self) -> bool:
        """Also while its removal is in the log but not known to be committed: it may be the one that must commit it."""
        leaving = self.config_end > self.commit and self.me in self.former.voters
        return (self.me in self.config.voters or leaving) and self.complete and not self.expelled

    @property
    def stranded(self) -> bool:
        """Its copy is damaged and nobody has another: what can be read is served, nothing is added."""
        return not self.complete and self.config.voters == (self.me,)

    @property
    def may_lead(self) -> bool:
        return self.is_voter and not self.broken

    @property
    def is_current(self) -> bool:
        """Whether something of the present term is committed, so that nothing committed earlier is unknown here."""
        return self.has_begun_term or (self.inherits and self.role is Role.LEADER)

    @property
    def has_begun_term(self) -> bool:
        return self.term > 0 and self.copy.term_at(self.commit) == self.term

    def is_all_there_is(self) -> bool:
        """Whether all that this copy holds is committed because nobody else ever had a say since it was written.

        A leader's first entry is needed where another one may have been elected with entries of terms in between, which
        could replace older ones that a majority holds. Here the configuration in force is this node alone, and it is
        committed: an uncommitted one has the one before it beside it. So every leader since has it in its log, and was
        elected under it or under one that came after it, which only this node could have begun, and its log has none.
        Thus no entry of any later term exists anywhere, and whoever asks for this node's vote once it has company must
        hold all of this log. The term is a new one all the same: of the last one, entries that a crash took from this
        disk may lie at a node that was once a member here, and the same place must not get another entry of that term.
        """
        copy = self.copy
        return (
            self.config.everyone == (self.me,)
            and len(self.hard.configs) == 1
            and copy.first < copy.end == copy.synced
            and self.complete
            and not (self.broken or self.without or self.keeps_commit)
        )

    @property
    def damage(self) -> RostraError:
        at = self.copy.end if self.damaged_at is None else self.damaged_at
        return PartitionDamaged(self.name, self.partition.index, at)

    def take(self) -> list[FabricEffect]:
        """The effects since the last call."""
        effects, self.out = self.out, []
        return effects

    def send(self, peer: NodeId, message: GroupMessage, payload: tuple[Buffer, ...] = ()) -> None:
        self._sends.append(Send(peer, message, payload))

    # --- roles ---

    def become(self, role: Role) -> None:
        assert (self.role, role) in TRANSITIONS, f"{self.role} does not become {role}"
        former, self.role = self.role, role
        self.leave_way()
        self.note("debug", "role changed", {"former": str(former), "because": TRANSITIONS[former, role]})

    def leave_way(self) -> None:
        """No short way, until it is found anew."""
        self.alone = self.leads_steadily = self.follows_steadily = False

    def lead(self) -> None:
        self.become(Role.LEADER)
        self.leader = self.me
        self.quiet = False
        self.replication.begin()
        self.note("info", "leads", {"term": self.term, "end": self.copy.end})
        self.inherits = self.is_all_there_is()
        if not self.inherits:
            self.replication.append(group_batch(NoOp(), self.now.wall_us))
        self.deadline_us = self.replication.quorum_deadline_us()
        self.wants_beat = True
        self.announce()
        if self.inherits and self.commit < self.copy.end:
            # Nothing is written: a node with thousands of topics starts without touching their logs.
            self.advance_commit(self.copy.end)

    def step_down(self, reason: str) -> None:
        """Whoever leads next finds out; this node does not know."""
        if self.role is Role.LEADER:
            self.note("info", "leads no more", {"term": self.term, "reason": reason})
            self.reading.give_up()
            self.replication.peers.clear()
            self.transfer_to = None
            self.reads.clear()
        self.leader = None
        self.quiet = False
        if self.role not in (Role.FOLLOWER, Role.LEARNER):
            self.become(Role.FOLLOWER)
        self.election.wait()
        self._fit_role()
        self.announce()

    def hear_leader(self, peer: NodeId) -> None:
        if self.role is Role.LEADER:
            raise PeerViolation("leader", f"{peer} claims to lead {self.partition} in our own term {self.term}")
        if self.role in CANDIDATE_ROLES:
            self.become(Role.FOLLOWER)
        self.election.heard()
        if self.leader != peer:
            self.leader = peer
            self.note("info", "follows", {"leader": peer, "term": self.term})
            self.announce()

    def _fit_role(self) -> None:
        """Voters and those without a vote; a leader that is being removed leads until that is committed."""
        if self.role is Role.LEARNER and self.is_voter:
            self.become(Role.FOLLOWER)
            self.election.wait()
        elif self.role is Role.LEADER and not self.complete:
            self.step_down("its copy is damaged")
        elif self.role not in (Role.LEARNER, Role.LEADER) and not self.is_voter:
            self.become(Role.LEARNER)
            self.deadline_us = None

    def announce(self) -> None:
        """Tells the broker who serves the partition; an incomplete copy is as good as none."""
        self.say_commit()
        address = self.address_of(self.leader) if self.leader is not None and self.leader != self.me else ""
        if self.expelled or (not self.complete and not self.stranded):
            self.out.append(ServedElsewhere(self.partition, self.term, address))
            return
        copy = self.copy
        owner = self.role is Role.LEADER or self.stranded
        self.out.append(Serving(self.partition, self.term, owner, copy.first, copy.end, self.commit, address))
        if self.stranded:
            self.out.append(Blocked(self.partition, self.damage))

    # --- hard state ---

    def begin_term(self, term: int, *, vote: int) -> None:
        self.hard = msgspec.structs.replace(self.hard, term=term, vote=vote)
        self.term = term
        self._dirty = True
        self.leader = None
        self.following.begin()

    def adopt(self, term: int) -> None:
        self.begin_term(term, vote=0)
        self.step_down(f"term {term} has begun")

    def remember_vote(self, candidate: NodeId) -> None:
        if self.hard.vote != candidate:
            self.hard = msgspec.structs.replace(self.hard, vote=candidate)
            self._dirty = True

    def remember_configs(self, rows: Iterable[GroupConfigAt]) -> None:
        known = [row for row in self.hard.configs if self._in_force(row) or row.end > self.copy.end]
        ordered = sorted((*known, *rows), key=lambda row: (row.end, row.term))
        self.hard = msgspec.structs.replace(self.hard, configs=tuple(ordered))
        self._dirty = True

    def forget_config(self, gone: GroupConfigAt) -> None:
        rows = tuple(row for row in self.hard.configs if row != gone)
        self.hard = msgspec.structs.replace(self.hard, configs=rows)
        self._dirty = True

    def doubt(self) -> None:
        """What the disk had cannot be read: the copy counts for nothing from the start."""
        self.hard = msgspec.structs.replace(self.hard, complete=False)
        self.complete = False

    def set_complete(self, complete: bool) -> None:
        self.hard = msgspec.structs.replace(self.hard, complete=complete)
        self.complete = complete
        self._dirty = True
        self.refilling = False
        self.whole_at = None
        self._fit_role()
        self.announce()

    def begin_refill(self, filled: CopyStart, configs: tuple[GroupConfigAt, ...]) -> None:
        self.hard = msgspec.structs.replace(self.hard, filled=filled, fills=self.hard.fills + 1, configs=configs)
        self._dirty = True
        self.whole_at = None
        self._fit_role()

    def retry(self, action: Callable[[], None]) -> None:
        """When the hard state, which has just been changed, is durable."""
        self.retries.append(action)

    def keep(self, action: Callable[[], None], *, sent: bool = False) -> None:
        """For when the hard state is durable. What was sent may be lost, as on the way; what the disk said may not."""
        if not sent or len(self.kept) < self.settings.waiting_inputs_max:
            self.kept.append(action)

    def finish(self) -> None:
        """Messages leave when what they depend on is durable."""
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
        self.settling = True
        self.leave_way()
        self.number += 1
        self.out.append(self._persist((*sends, Echo(key_of(self.partition), self.number))))

    def _persist(self, then: tuple[FabricEffect, ...]) -> Persist:
        hard = self.hard if self._keeps_vote else msgspec.structs.replace(self.hard, vote=0)
        return Persist(key_of(self.partition), pack_hard_state(hard), then)

    # --- configurations ---

    def configs_moved(self) -> None:
        """The log has changed where configurations may lie: the last one it holds is in force."""
        rows = tuple(row for row in self.hard.configs if self._in_force(row))
        kept = tuple(row for row in self.hard.configs if row in rows or row.end > self.copy.end)
        if kept != self.hard.configs:
            # Another entry stands there now. Were the row kept, a log that begins behind it could not tell.
            self.hard = msgspec.structs.replace(self.hard, configs=kept)
            self._dirty = True
        self.config, self.config_end = (rows[-1].config, rows[-1].end) if rows else (NOBODY, 0)
        self.former = rows[-2].config if len(rows) > 1 else NOBODY
        if self.role is Role.LEADER:
            self.replication.follow_config()
        self._fit_role()

    def _in_force(self, row: GroupConfigAt) -> bool:
        if row.end <= self.copy.first:
            return True
        return row.end <= self.copy.end and self.copy.term_at(row.end) == row.term

    def _forget_superseded(self) -> None:
        """Of the configurations that cannot be cut any more, only the last matters."""
        safe = min(self.commit, self.copy.end)
        last = max((row.end for row in self.hard.configs if row.end <= safe and self._in_force(row)), default=0)
        rows = tuple(row for row in self.hard.configs if row.end >= last)
        self.hard = msgspec.structs.replace(self.hard, configs=rows)

    def configs_before(self, offset: int) -> tuple[GroupConfigAt, ...]:
        return tuple(row for row in self.hard.configs if row.end <= offset)[-1:]

    # --- commit ---

    def say_commit(self) -> None:
        """What those above have not heard yet; of what a full disk took from the log again, only when it is back."""
        if self.unsaid and self.unsaid <= self.copy.end:
            self.out.append(Committed(self.partition, self.unsaid))
            self.unsaid = 0

    def advance_commit(self, offset: int) -> None:
        self.commit = offset
        self.unsaid = offset
        now_us = self.now.mono_us
        if self.has_readers or self.role is Role.LEADER or now_us >= self.silent_until_us:
            self.silent_until_us = now_us + COMMIT_SAID_US
            self.say_commit()
        if len(self.hard.configs) > 1:
            self._forget_superseded()
        if self.keeps_commit:
            self.hard = msgspec.structs.replace(self.hard, commit=offset)
            self.out.append(self._persist(()))
        if self.config_end <= offset and self.me not in self.config.voters:
            if self.role is Role.LEADER:
                self.step_down("it was removed")
            else:
                self._fit_role()

    def note(self, level: str, event: str, about: dict[str, int | str]) -> None:
        place = self.name if self.name == METADATA else f"{self.name}/{self.partition.index}"
        self.out.append(LogLine(level, event, {"partition": place, "node": self.me, "role": str(self.role), **about}))


def half_refilled(hard: HardState, found: Recovered) -> int | None:
    """Where a whole copy begins whose old log is still there, and was to be dropped when the crash came; else None.

    That it begins anew was written down, and all before that is committed: it is whole, with nothing in it. But not one
    that goes on beyond: it was not dropped because another leader came, whose entries it has.
    """
    filled = hard.filled
    if filled is None or not hard.complete or found.damaged_at is not None:
        return None
    return filled.first if found.first < filled.first and found.end <= filled.first else None


def _reconciled(hard: HardState, found: Recovered) -> tuple[HardState, tuple[EpochStart, ...]]:
    """Hard state and log as a crash may have left them, the one ahead of the other."""
    epochs = found.epochs
    filled = hard.filled
    if filled is not None and found.first < filled.first:
        # The crash came between dropping the old log and making the new one.
        hard = msgspec.structs.replace(hard, complete=False)
    elif filled is not None and found.first == filled.first and not any(row.offset < found.first for row in epochs):
        epochs = (*filled.epochs, *epochs)
    if found.damaged_at is not None:
        hard = msgspec.structs.replace(hard, complete=False)
    # A log may hold entries of a term whose beginning was not written down before the crash.
    if epochs and epochs[-1].epoch > hard.term:
        hard = msgspec.structs.replace(hard, term=epochs[-1].epoch, vote=0)
    return hard, epochs
