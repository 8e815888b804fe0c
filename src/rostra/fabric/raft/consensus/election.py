"""How a group finds its leader: timeouts, the question before the vote, votes, and handing over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import RequestVote, RequestVoteReply, TimeoutNow
from rostra.model.ids import NodeId
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.raft.consensus.raft_group import RaftGroup


class Election:
    def __init__(self, group: RaftGroup) -> None:
        self._group = group
        self._votes: dict[NodeId, bool] = {}
        self.heard_us = -(1 << 62)
        """When the leader was last heard."""
        self.patience_us = 0
        """The timeout drawn last."""
        self._pre_vote = Safeguard.PRE_VOTE not in group.without
        self._sticky = Safeguard.CHECK_QUORUM not in group.without
        self._up_to_date = Safeguard.UP_TO_DATE_VOTE not in group.without

    # --- time ---

    def wait(self) -> None:
        """Draws a new timeout. A group of one needs nobody's word and does not wait."""
        group = self._group
        settings = group.settings
        if group.config.voters == (group.me,) and group.may_lead:
            group.deadline_us = group.now.mono_us
            return
        drawn_ms = group.random.uniform(settings.election_timeout_ms_min, settings.election_timeout_ms_max)
        self.patience_us = int(drawn_ms * 1000)
        group.deadline_us = group.now.mono_us + self.patience_us

    def heard(self) -> None:
        """From the leader: the same timeout begins anew. Only after an election that failed it must be another."""
        group = self._group
        self.heard_us = group.now.mono_us
        if group.is_voter:
            if self.patience_us:
                group.deadline_us = self.heard_us + self.patience_us
            else:
                self.wait()

    def timed_out(self) -> None:
        group = self._group
        if not group.may_lead:
            group.deadline_us = None
            return
        group.leader = None
        group.announce()
        if self._pre_vote and group.config.voters != (group.me,):
            self._ask_first()
        else:
            self.campaign(forced=False)

    def leader_is_alive(self) -> bool:
        group = self._group
        if not self._sticky or group.leader is None:
            return False
        if group.role is Role.LEADER or group.quiet:
            return True
        return group.now.mono_us - self.heard_us < group.settings.election_us

    # --- asking ---

    def _ask_first(self) -> None:
        group = self._group
        if group.role is not Role.PRECANDIDATE:
            group.become(Role.PRECANDIDATE)
        self._votes = {group.me: True}
        self.wait()
        self._ask(group.term + 1, pre=True, forced=False)
        self._count()

    def campaign(self, *, forced: bool) -> None:
        """Begins a new term. Its own vote counts when it is durable, as everybody's."""
        group = self._group
        if group.role is not Role.CANDIDATE:
            group.become(Role.CANDIDATE)
        group.begin_term(group.term + 1, vote=group.me)
        group.note("info", "asks for votes", {"term": group.term})
        self._votes = {}
        self.wait()
        self._ask(group.term, pre=False, forced=forced)

    def _ask(self, term: int, *, pre: bool, forced: bool) -> None:
        group = self._group
        copy = group.copy
        for peer in group.config.voters:
            if peer != group.me:
                group.send(peer, RequestVote(group.partition, term, copy.end, copy.last_term, pre, forced))

    def persisted(self) -> None:
        group = self._group
        if group.role is Role.CANDIDATE and group.hard.vote == group.me:
            self._votes[group.me] = True
            self._count()

    # --- voting ---

    def asked(self, peer: NodeId, ask: RequestVote) -> None:
        group = self._group
        granted = self._grants(peer, ask)
        if granted and not ask.pre:
            group.remember_vote(peer)
            self.wait()
        group.send(peer, RequestVoteReply(group.partition, group.term, ask.term, granted, ask.pre))

    def _grants(self, peer: NodeId, ask: RequestVote) -> bool:
        group = self._group
        # Who is not a voter in our eyes may be one in a configuration we have not heard of: its vote must count there.
        if not group.complete or ask.term < group.term:
            return False
        if ask.pre:
            if ask.term == group.term or self.leader_is_alive():
                return False
        elif group.hard.vote not in (0, peer) or group.leader is not None:
            return False
        ours = (group.copy.last_term, group.copy.end)
        return (ask.last_term, ask.last_end) >= ours or not self._up_to_date

    def answered(self, peer: NodeId, reply: RequestVoteReply) -> None:
        group = self._group
        if reply.pre:
            fits = group.role is Role.PRECANDIDATE and reply.asked == group.term + 1
        else:
            fits = group.role is Role.CANDIDATE and reply.asked == group.term
        if fits:
            self._votes[peer] = reply.granted
            self._count()

    def _count(self) -> None:
        group = self._group
        config = group.config
        granted = sum(self._votes.get(voter, False) for voter in config.voters)
        if granted >= config.majority:
            if group.role is Role.PRECANDIDATE:
                self.campaign(forced=False)
            elif self._votes.get(group.me):
                group.lead()

    # --- handing over ---

    def told_to_begin(self, message: TimeoutNow) -> None:
        group = self._group
        if group.role is Role.FOLLOWER and group.may_lead and message.term == group.term:
            group.note("info", "leadership offered", {})
            self.campaign(forced=True)
