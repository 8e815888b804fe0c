"""Invariants of one group, checked at every step."""

from __future__ import annotations

from rostra.fabric.api import Committed, FabricEffect
from rostra.fabric.consensus.roles import Role
from tests.unit.raft.disk_model import StoredEntry
from tests.unit.raft.group_simulation import GroupSimulation, Member


class Violation(AssertionError):
    """An invariant was violated."""


class Checkers:
    def __init__(self, sim: GroupSimulation) -> None:
        self.sim = sim
        self.leaders: dict[int, int] = {}
        self.committed: dict[int, bytes] = {}
        """By base offset: what was shown as committed anywhere, ever."""
        self.commit = 0
        sim.observers.append(self)

    def stepped(self, member: Member, effects: list[FabricEffect]) -> None:
        group = member.group
        if group.role is Role.LEADER and self.leaders.get(group.term) != member.node:
            self._one_leader_per_term(member)
            self._leader_has_all(member)
        for effect in effects:
            if isinstance(effect, Committed):
                self._committed(member, effect.offset)

    def _fail(self, what: str) -> None:
        raise Violation(f"seed {self.sim.seed} at {self.sim.us / 1e6:.3f} s: {what}")

    def _one_leader_per_term(self, member: Member) -> None:
        term = member.group.term
        other = self.leaders.setdefault(term, member.node)
        if other != member.node:
            self._fail(f"nodes {other} and {member.node} both lead in term {term}")

    def _leader_has_all(self, member: Member) -> None:
        have = {one.base: one.batch for one in member.disk.stored}
        for base, batch in self.committed.items():
            if base >= member.disk.first and have.get(base) != batch:
                self._fail(f"node {member.node} leads in term {member.group.term} without the committed {base}")
        if member.disk.first > self.commit:
            self._fail(f"node {member.node} leads, and its log begins behind what is committed")

    def _committed(self, member: Member, offset: int) -> None:
        for one in member.disk.stored:
            if one.end > offset:
                break
            known = self.committed.get(one.base)
            if known is None:
                self._majority_has(member, one)
                self.committed[one.base] = one.batch
            elif known != one.batch:
                self._fail(f"node {member.node} shows another batch at {one.base} than was shown before")
        # A follower whose disk has just refused an entry may learn in the same step that others committed it.
        if offset > member.disk.end and not member.writes_refused:
            self._fail(f"node {member.node} says {offset} is committed, its log ends at {member.disk.end}")
        self.commit = max(self.commit, offset)

    def _majority_has(self, member: Member, entry: StoredEntry) -> None:
        voters = member.group.config.voters
        having = [n for n in voters if self._has_durable(n, entry)]
        if len(having) * 2 <= len(voters):
            self._fail(f"{entry.base} is committed by node {member.node}; on stable storage of {having} of {voters}")

    def _has_durable(self, node: int, entry: StoredEntry) -> bool:
        member = self.sim.members[node]
        # A copy that was damaged since had it when it said so, and a leader may count on what it heard before.
        had = (one for one in (*member.disk.stored, *member.lost_to_damage) if one.durable)
        return any(one.batch == entry.batch for one in had)

    # --- at the end ---

    def logs_match(self) -> None:
        """Two logs that have the same entry at one place have the same before it."""
        members = list(self.sim.members.values())
        for one in members:
            for other in members:
                theirs = {entry.end: entry for entry in other.disk.stored}
                shared = [e.end for e in one.disk.stored if e.end in theirs and theirs[e.end].term == e.term]
                if not shared:
                    continue
                begin = max(one.disk.first, other.disk.first)
                ours = [e.batch for e in one.disk.stored if begin <= e.base and e.end <= shared[-1]]
                if ours != [e.batch for e in other.disk.stored if begin <= e.base and e.end <= shared[-1]]:
                    self._fail(f"the logs of {one.node} and {other.node} differ below {shared[-1]}")

    def nothing_lost(self) -> None:
        leader = self.sim.leader()
        for node in leader.group.config.voters if leader is not None else ():
            self._leader_has_all(self.sim.members[node])
