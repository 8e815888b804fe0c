"""One member of one Raft group, over one partition whose log is the Raft log.

Pure: inputs and time in, effects out. While hard state is on its way to the disk nothing else is looked at (inputs wait
in order), so every message that leaves depends only on what is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import assert_never

import msgspec

from rostra.errors import Moved, RostraError, Unavailable
from rostra.fabric.api import (
    Accepted,
    Buffer,
    Committed,
    Echo,
    Elsewhere,
    EpochStart,
    FabricEffect,
    Note,
    Now,
    Persist,
    Recovered,
    Refused,
    Send,
    Serving,
    Trim,
)
from rostra.fabric.raft.copy import Copy
from rostra.fabric.raft.election import Election
from rostra.fabric.raft.following import Following
from rostra.fabric.raft.hard import Config, ConfigAt, Filled, Hard, key_of, pack_hard
from rostra.fabric.raft.membership import Change, Membership, NoOp, group_batch
from rostra.fabric.raft.messages import (
    Beat,
    BeatReply,
    Entries,
    EntriesRefused,
    EntriesReply,
    GroupMessage,
    ReadAsk,
    ReadTold,
    Refill,
    TimeoutNow,
    VoteAsk,
    VoteReply,
)
from rostra.fabric.raft.reading import Reading
from rostra.fabric.raft.replication import Replication
from rostra.fabric.raft.roles import TRANSITIONS, Role
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import ALL_ON, Safeguard, Without

NOBODY = Config(())


class Group:
    """The parts (election, replication, following, membership, reading) act through it; it holds what they share."""

    def __init__(
        self,
        me: NodeId,
        found: Recovered,
        hard: Hard,
        *,
        settings: RaftSettings,
        random: Random,
        next_token: Callable[[], int],
        address_of: Callable[[NodeId], str] = str,
        segment_bytes: int = 1 << 26,
        without: Without = ALL_ON,
    ) -> None:
        self.me = me
        self.partition: Partition = found.partition
        self.settings = settings
        self.random = random
        self.without = without
        self.segment_bytes = segment_bytes
        self.name = str(found.partition)
        self.promotes = True
        """Whether a learner that has caught up is made a voter by itself."""
        self.voters_max = 63
        self.keeps_commit = False
        """Whether the commit offset is written down as it moves, for a start before any leader is heard."""
        self.now = Now(0, 0)
        self.out: list[FabricEffect] = []
        self.hard, epochs = _reconciled(hard, found)
        self.copy = Copy(found.first, found.end, epochs, without)
        self.refilling = False
        """The copy is incomplete, and what is in it comes from a leader's log start."""
        self.whole_at: int | None = None
        self.commit = min(max(found.first, hard.commit), found.end)
        self.role = Role.LEARNER
        self.leader: NodeId | None = None
        self.quiet = False
        self.broken = False
        self.deadline_us: int | None = None
        self.transfer_to: NodeId | None = None
        self._transfer_until_us = 0
        self.wants_beat = False
        """Somebody waits for a heartbeat round: do not wait for the next period."""
        self.config = NOBODY
        self.config_end = 0
        self.reads: dict[int, NodeId] = {}
        self._address_of = address_of
        self._sends: list[FabricEffect] = []
        self._dirty = False
        self._settling = False
        self._number = 0
        self._retries: list[Callable[[], None]] = []
        self._kept: deque[Callable[[], None]] = deque()
        self._keeps_vote = Safeguard.PERSIST_VOTE not in without
        self._persists_first = Safeguard.PERSIST_BEFORE_REPLY not in without
        self.election = Election(self)
        self.following = Following(self)
        self.replication = Replication(self, next_token)
        self.membership = Membership(self)
        self.reading = Reading(self)

    @property
    def term(self) -> int:
        return self.hard.term

    @property
    def complete(self) -> bool:
        return self.hard.complete

    @property
    def is_voter(self) -> bool:
        return self.me in self.config.voters and self.complete

    @property
    def may_lead(self) -> bool:
        return self.is_voter and not self.broken

    @property
    def settling(self) -> bool:
        return self._settling

    @property
    def is_current(self) -> bool:
        """Whether something of the present term is committed, so that nothing committed earlier is unknown here."""
        return self.term > 0 and self.copy.term_at(self.commit) == self.term

    def take(self) -> list[FabricEffect]:
        """The effects since the last call."""
        effects, self.out = self.out, []
        return effects

    # --- inputs ---

    def start(self, now: Now) -> None:
        self.now = now
        self.following.begin()
        self.configs_moved()
        self.announce()
        self._finish()

    def receive(self, now: Now, peer: NodeId, message: GroupMessage, payload: bytearray | None = None) -> None:
        self.now = now
        if self._settling:
            self._keep(lambda: self.receive(self.now, peer, message, payload))
            return
        if self.quiet:
            self.wake(now)
        if self._fits_term(peer, message, payload):
            self._dispatch(peer, message, payload)
        self._finish()

    def synced(self, now: Now, generation: int, offset: int) -> None:
        self.now = now
        if self._settling:
            self._keep(lambda: self.synced(self.now, generation, offset))
            return
        if self.copy.made_durable(generation, offset):
            self.following.mend()
            if self.role is Role.LEADER:
                self.replication.own_copy_grew()
            elif self.leader is not None:
                self.following.acknowledge(self.leader)
        self._finish()

    def fire(self, now: Now) -> None:
        """The deadline has passed."""
        self.now = now
        if self._settling:
            self.deadline_us = now.mono_us + self.settings.heartbeat_us
            return
        if self.role is Role.LEADER:
            self._check_leadership()
        else:
            self.election.timed_out()
        self._finish()

    def echo(self, now: Now, number: int) -> None:
        """The hard state is durable: on with what waited for it."""
        self.now = now
        if not self._settling or number != self._number:
            return
        self._settling = False
        self.election.persisted()
        retries, self._retries = self._retries, []
        for retry in retries:
            retry()
        self._finish()
        while self._kept and not self._settling:
            self._kept.popleft()()

    def write_failed(self, now: Now, offset: int, generation: int) -> None:
        """The disk refused what was appended last. A leader whose followers have it must not order others there."""
        self.now = now
        self.copy.shortened(offset, generation)
        self.following.held = min(self.following.held, offset)
        self.configs_moved()
        if self.role is Role.LEADER and self.config.everyone != (self.me,):
            self.step_down("the disk refuses writes")
        self._finish()

    def read_done(self, now: Now, token: int, batches: bytes) -> None:
        self.now = now
        peer = self.reads.pop(token, None)
        if peer is not None and not self._settling:
            self.replication.read_done(token, peer, batches)
            self._finish()
        elif peer is not None:
            self._keep(lambda: self._read_again(peer, token))

    def _read_again(self, peer: NodeId, token: int) -> None:
        progress = self.replication.peers.get(peer)
        if progress is not None and progress.reading == token:
            progress.reading = 0

    def read_failed(self, now: Now, token: int, damaged: bool) -> None:
        """A follower could not be fed. If this copy is damaged, another shall lead."""
        self.now = now
        peer = self.reads.pop(token, None)
        if peer is not None:
            self._read_again(peer, token)
        if damaged and not self._settling and self.complete:
            self.set_complete(False)
        self._finish()

    def broke(self, now: Now) -> None:
        """An fsync failed: nothing here will be durable any more."""
        self.now = now
        self.broken = True
        if self.role is Role.LEADER and not self._settling:
            best = max(self.replication.peers.items(), key=lambda item: item[1].match, default=None)
            if best is not None and best[0] in self.config.voters:
                self.send(best[0], TimeoutNow(self.partition, self.term))
            self.step_down("its disk cannot sync")
        self._finish()

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
        self._finish()

    def write(self, now: Now, batch: bytearray) -> RostraError | None:
        """A batch of the fabric's own, which nobody awaits by its place."""
        self.now = now
        error = self.refusal()
        if error is None:
            if self.quiet:
                self.wake(now)
            self.replication.append(batch)
            self._finish()
        return error

    def refusal(self) -> RostraError | None:
        """Why this node does not order batches now, if it does not."""
        if self.role is Role.LEADER and not self._settling and self.transfer_to is None and not self.broken:
            return None
        if self.leader is not None and self.leader != self.me:
            return Moved(self._address_of(self.leader), self.term)
        return Unavailable(self.name, self.partition.index, "it has no leader yet, or is changing it")

    def advance_start(self, now: Now, first: int) -> None:
        """Retention: followers hear of it with the next entries or heartbeats' probes."""
        self.now = now
        if self.role is Role.LEADER and self.copy.first < first <= self.commit:
            self.copy.trimmed(first)
            self.out.append(Trim(self.partition, first))

    def change(self, now: Now, change: Change, node: NodeId) -> RostraError | None:
        self.now = now
        if self._settling:
            return self._busy()
        if self.quiet:
            self.wake(now)
        error = self.membership.change(change, node)
        self._finish()
        return error

    def transfer(self, now: Now, target: NodeId) -> RostraError | None:
        """Hands leadership to a voter: no proposals until it has everything, then it begins an election."""
        self.now = now
        if self._settling or self.role is not Role.LEADER or self.transfer_to is not None:
            return self._busy()
        if target == self.me or target not in self.config.voters:
            return self._busy()
        if self.quiet:
            self.wake(now)
        self.transfer_to = target
        self._transfer_until_us = now.mono_us + self.settings.election_us
        self.deadline_us = min(self._transfer_until_us, self.deadline_us or self._transfer_until_us)
        self.try_transfer()
        self._finish()
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
        if self._settling:
            self._keep(lambda: self.ask_read(self.now, token))
            return
        if self.quiet and self.role is Role.LEADER:
            self.wake(now)
        self.reading.ask(token)
        self._finish()

    # --- heartbeats, which the node puts together for all groups ---

    def beats(self, now: Now) -> list[tuple[NodeId, Beat]]:
        self.now = now
        self.wants_beat = False
        if self.role is not Role.LEADER or self.quiet or self._settling:
            return []
        beats = self.replication.beat()
        self._finish()
        return beats

    def heard(self, now: Now, peer: NodeId, beat: Beat) -> BeatReply | None:
        self.now = now
        if self._settling:
            return None
        if beat.term < self.term:
            return BeatReply(self.partition, self.term, beat.round, 0, 0, 0)
        if beat.term > self.term:
            self._adopt(beat.term)
            self._finish()
            return None
        self._hear_leader(peer)
        reply = self.following.beat(peer, beat)
        if self.quiet:
            self.deadline_us = None
        self._finish()
        return reply if not self._settling else None

    def answered(self, now: Now, peer: NodeId, reply: BeatReply) -> None:
        self.now = now
        if self._settling:
            return
        if reply.term > self.term:
            self._adopt(reply.term)
        elif self.role is Role.LEADER and reply.term == self.term:
            self.replication.beat_answered(peer, reply)
            if self.role is Role.LEADER and self.may_fall_silent() and self.replication.all_quiet():
                self.quiet = True
                self.deadline_us = None
        self._finish()

    def may_fall_silent(self) -> bool:
        if self.commit != self.copy.end or self.copy.synced != self.copy.end or self.transfer_to is not None:
            return False
        return not self.reading.busy and not self.config.learners and self.replication.all_know_all()

    def wake(self, now: Now) -> None:
        """Something happens again in this group, or the pair's heartbeat that stood in for its own is lost."""
        self.now = now
        if not self.quiet:
            return
        self.quiet = False
        if self.role is Role.LEADER:
            for progress in self.replication.peers.values():
                progress.heard_us = now.mono_us
                progress.quiet = False
            self.deadline_us = self.replication.quorum_deadline_us()
        else:
            self.election.wait()

    def peer_lost(self, now: Now, peer: NodeId) -> None:
        """The pair's heartbeat, which stands in for that of a silent group, is lost, or the peer was started anew."""
        if self.quiet and (self.role is Role.LEADER or self.leader == peer):
            self.wake(now)

    # --- messages ---

    def _fits_term(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> bool:
        """Whether the message is of this term; a higher one is taken over first, a lower one is set right."""
        term = message.term
        if term == self.term:
            return True
        if isinstance(message, VoteAsk) and (message.pre or term < self.term):
            # A question about a term raises none; one about an old term is answered with ours.
            return True
        if isinstance(message, VoteReply) and message.pre and message.granted:
            return True
        if term < self.term:
            if isinstance(message, Entries | Refill):
                self.send(peer, EntriesRefused(self.partition, self.term, 0, 0, 0))
            return False
        if isinstance(message, VoteAsk):
            if not message.forced and self.election.leader_is_alive():
                return False
            self._adopt(term)
            return True
        self._adopt(term)
        self.retry(lambda: self.receive(self.now, peer, message, payload))
        return False

    def _dispatch(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> None:
        match message:
            case Entries():
                self._hear_leader(peer)
                self.following.receive(peer, message, payload)
            case EntriesReply():
                if self.role is Role.LEADER:
                    self.replication.stored(peer, message)
            case EntriesRefused():
                if self.role is Role.LEADER:
                    self.replication.refused(peer, message)
            case VoteAsk():
                self.election.asked(peer, message)
            case VoteReply():
                self.election.answered(peer, message)
            case Refill():
                self._hear_leader(peer)
                self.following.refill(peer, message)
            case TimeoutNow():
                self.election.told_to_begin(message)
            case ReadAsk():
                self.reading.asked(peer, message)
            case ReadTold():
                self.reading.answered(message)
            case _:
                assert_never(message)

    def send(self, peer: NodeId, message: GroupMessage, payload: tuple[Buffer, ...] = ()) -> None:
        self._sends.append(Send(peer, message, payload))

    # --- roles ---

    def become(self, role: Role) -> None:
        assert (self.role, role) in TRANSITIONS, f"{self.role} does not become {role}"
        self.role = role

    def lead(self) -> None:
        self.become(Role.LEADER)
        self.leader = self.me
        self.quiet = False
        self.replication.begin()
        self.note("info", "leads", {"term": self.term, "end": self.copy.end})
        self.replication.append(group_batch(NoOp(), self.now.wall_us))
        self.deadline_us = self.replication.quorum_deadline_us()
        self.wants_beat = True
        self.announce()

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

    def _hear_leader(self, peer: NodeId) -> None:
        assert self.role is not Role.LEADER, f"{peer} leads {self.partition} in our own term {self.term}"
        if self.role in (Role.CANDIDATE, Role.PRECANDIDATE):
            self.become(Role.FOLLOWER)
        self.election.heard_us = self.now.mono_us
        if self.is_voter:
            self.election.wait()
        if self.leader != peer:
            self.leader = peer
            self.announce()

    def _check_leadership(self) -> None:
        now_us = self.now.mono_us
        if self.transfer_to is not None and now_us >= self._transfer_until_us:
            self.transfer_to = None
            self.note("warning", "handing over failed", {"term": self.term})
        deadline_us = self.replication.quorum_deadline_us()
        if deadline_us is not None and now_us >= deadline_us:
            self.step_down("it hears no majority")
            return
        self.deadline_us = deadline_us
        if self.transfer_to is not None:
            self.deadline_us = min(self._transfer_until_us, deadline_us or self._transfer_until_us)

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
        address = self._address_of(self.leader) if self.leader is not None and self.leader != self.me else ""
        if not self.complete:
            self.out.append(Elsewhere(self.partition, self.term, address))
            return
        copy = self.copy
        owner = self.role is Role.LEADER
        self.out.append(Serving(self.partition, self.term, owner, copy.first, copy.end, self.commit, address))

    # --- hard state ---

    def begin_term(self, term: int, *, vote: int) -> None:
        self.hard = msgspec.structs.replace(self.hard, term=term, vote=vote)
        self._dirty = True
        self.leader = None
        self.following.begin()

    def _adopt(self, term: int) -> None:
        self.begin_term(term, vote=0)
        self.step_down(f"term {term} has begun")

    def remember_vote(self, candidate: NodeId) -> None:
        if self.hard.vote != candidate:
            self.hard = msgspec.structs.replace(self.hard, vote=candidate)
            self._dirty = True

    def remember_configs(self, rows: Iterable[ConfigAt]) -> None:
        known = [row for row in self.hard.configs if self._in_force(row)]
        self.hard = msgspec.structs.replace(self.hard, configs=(*known, *rows))
        self._dirty = True

    def forget_config(self, gone: ConfigAt) -> None:
        rows = tuple(row for row in self.hard.configs if row != gone)
        self.hard = msgspec.structs.replace(self.hard, configs=rows)
        self._dirty = True

    def set_complete(self, complete: bool) -> None:
        self.hard = msgspec.structs.replace(self.hard, complete=complete)
        self._dirty = True
        self.refilling = False
        self.whole_at = None
        self._fit_role()
        self.announce()

    def begin_refill(self, filled: Filled, configs: tuple[ConfigAt, ...]) -> None:
        self.hard = msgspec.structs.replace(self.hard, filled=filled, fills=self.hard.fills + 1, configs=configs)
        self._dirty = True
        self.whole_at = None
        self._fit_role()

    def retry(self, action: Callable[[], None]) -> None:
        """When the hard state, which has just been changed, is durable."""
        self._retries.append(action)

    def _keep(self, action: Callable[[], None]) -> None:
        if len(self._kept) < self.settings.waiting_inputs_max:
            self._kept.append(action)

    def _finish(self) -> None:
        """Messages leave when what they depend on is durable."""
        sends, self._sends = self._sends, []
        if not self._dirty or not self._persists_first:
            self.out += sends
            sends = []
        if self._dirty:
            self._dirty = False
            self._settling = True
            self._number += 1
            self.out.append(self._persist((*sends, Echo(key_of(self.partition), self._number))))

    def _persist(self, then: tuple[FabricEffect, ...]) -> Persist:
        hard = self.hard if self._keeps_vote else msgspec.structs.replace(self.hard, vote=0)
        return Persist(key_of(self.partition), pack_hard(hard), then)

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
        if self.role is Role.LEADER:
            self.replication.follow_config()
        self._fit_role()

    def _in_force(self, row: ConfigAt) -> bool:
        if row.end <= self.copy.first:
            return True
        return row.end <= self.copy.end and self.copy.term_at(row.end) == row.term

    def configs_before(self, offset: int) -> tuple[ConfigAt, ...]:
        return tuple(row for row in self.hard.configs if row.end <= offset)[-1:]

    # --- commit ---

    def advance_commit(self, offset: int) -> None:
        self.commit = offset
        self.out.append(Committed(self.partition, offset))
        rows = self.hard.configs
        if len(rows) > 1 and rows[1].end <= offset:
            kept = tuple(row for at, row in enumerate(rows) if at + 1 == len(rows) or rows[at + 1].end > offset)
            self.hard = msgspec.structs.replace(self.hard, configs=kept)
        if self.keeps_commit:
            self.hard = msgspec.structs.replace(self.hard, commit=offset)
            self.out.append(self._persist(()))
        if self.role is Role.LEADER and self.config_end <= offset and self.me not in self.config.voters:
            self.step_down("it was removed")

    def note(self, level: str, event: str, about: dict[str, int | str]) -> None:
        self.out.append(Note(level, event, {"partition": self.name, "node": self.me, "role": str(self.role), **about}))


def _reconciled(hard: Hard, found: Recovered) -> tuple[Hard, tuple[EpochStart, ...]]:
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
