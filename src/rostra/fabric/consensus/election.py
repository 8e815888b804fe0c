"""Leader election: timeouts, PreVote, votes, and elections requested by leadership transfer."""

from __future__ import annotations

from random import Random
from typing import Protocol

from rostra.fabric.api import Now
from rostra.fabric.consensus.hard_state import GroupConfig
from rostra.fabric.consensus.messages import RequestVote, RequestVoteReply, TimeoutNow
from rostra.fabric.consensus.roles import Role
from rostra.fabric.consensus.settings import ConsensusSettings
from rostra.fabric.replication.log_state import LogState
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard, Without


class ElectingGroup(Protocol):
    """What an election needs of its group."""

    node: NodeId
    partition: Partition
    settings: ConsensusSettings
    random: Random
    without: Without
    now: Now
    log: LogState
    config: GroupConfig
    role: Role
    vote: int
    owner: NodeId | None
    complete: bool
    quiescent: bool
    deadline_us: int | None

    @property
    def term(self) -> int: ...

    @property
    def is_voter(self) -> bool: ...

    @property
    def may_lead(self) -> bool: ...

    def become(self, role: Role) -> None: ...

    def become_leader(self) -> None: ...

    def begin_term(self, term: int, *, vote: int) -> None: ...

    def record_vote(self, candidate: NodeId) -> None: ...

    def announce(self) -> None: ...

    def send(self, peer: NodeId, message: object) -> None: ...

    def add_log_line(self, level: str, event: str, about: dict[str, int | str]) -> None: ...


class Election:
    def __init__(self, group: ElectingGroup) -> None:
        self._group = group
        self._votes: dict[NodeId, bool] = {}
        self.leader_heard_us = -(1 << 62)
        """When the leader last sent a message."""
        self.timeout_us = 0
        """The election timeout drawn last."""
        self._pre_vote = Safeguard.PRE_VOTE not in group.without
        self._leader_lease = Safeguard.CHECK_QUORUM not in group.without
        self._up_to_date = Safeguard.UP_TO_DATE_VOTE not in group.without

    # --- time ---

    def reset_timeout(self) -> None:
        """Draws a new timeout. The only voter of a group does not wait."""
        group = self._group
        settings = group.settings
        if group.config.voters == (group.node,) and group.may_lead:
            group.deadline_us = group.now.mono_us
            return
        drawn_ms = group.random.uniform(settings.election_timeout_ms_min, settings.election_timeout_ms_max)
        self.timeout_us = int(drawn_ms * 1000)
        group.deadline_us = group.now.mono_us + self.timeout_us

    def leader_heard(self) -> None:
        """Restarts the same timeout; only a failed election needs a newly drawn one."""
        group = self._group
        self.leader_heard_us = group.now.mono_us
        if group.is_voter:
            if self.timeout_us:
                group.deadline_us = self.leader_heard_us + self.timeout_us
            else:
                self.reset_timeout()

    def timed_out(self) -> None:
        group = self._group
        if not group.may_lead:
            group.deadline_us = None
            return
        group.owner = None
        group.announce()
        if self._pre_vote and group.config.voters != (group.node,):
            self._start_pre_vote()
        else:
            self.campaign(transfer=False)

    def leader_is_alive(self) -> bool:
        group = self._group
        if not self._leader_lease or group.owner is None:
            return False
        if group.role is Role.LEADER or group.quiescent:
            return True
        return group.now.mono_us - self.leader_heard_us < group.settings.election_min_us

    # --- campaigning ---

    def _start_pre_vote(self) -> None:
        group = self._group
        if group.role is not Role.PRECANDIDATE:
            group.become(Role.PRECANDIDATE)
        self._votes = {group.node: True}
        self.reset_timeout()
        self._request_votes(group.term + 1, pre_vote=True, transfer=False)
        self._count_votes()

    def campaign(self, *, transfer: bool) -> None:
        """Starts a new term. The candidate's own vote counts once it is durable, like any vote."""
        group = self._group
        if group.role is not Role.CANDIDATE:
            group.become(Role.CANDIDATE)
        group.begin_term(group.term + 1, vote=group.node)
        group.add_log_line("info", "asks for votes", {"term": group.term})
        self._votes = {}
        self.reset_timeout()
        self._request_votes(group.term, pre_vote=False, transfer=transfer)

    def _request_votes(self, term: int, *, pre_vote: bool, transfer: bool) -> None:
        group = self._group
        log = group.log
        for peer in group.config.voters:
            if peer != group.node:
                group.send(peer, RequestVote(group.partition, term, log.end, log.last_epoch, pre_vote, transfer))

    def vote_persisted(self) -> None:
        group = self._group
        if group.role is Role.CANDIDATE and group.vote == group.node:
            self._votes[group.node] = True
            self._count_votes()

    # --- voting ---

    def vote_requested(self, peer: NodeId, request: RequestVote) -> None:
        group = self._group
        granted = self._grants(peer, request)
        if granted and not request.pre_vote:
            group.record_vote(peer)
            self.reset_timeout()
        group.send(peer, RequestVoteReply(group.partition, group.term, request.term, granted, request.pre_vote))

    def _grants(self, peer: NodeId, request: RequestVote) -> bool:
        group = self._group
        # Also if the candidate is no voter here: it may be one in a configuration that this node does not have yet.
        if not group.complete or request.term < group.term:
            return False
        if request.pre_vote:
            if request.term == group.term or self.leader_is_alive():
                return False
        elif group.vote not in (0, peer) or group.owner is not None:
            return False
        ours = (group.log.last_epoch, group.log.end)
        return (request.last_term, request.last_end) >= ours or not self._up_to_date

    def vote_replied(self, peer: NodeId, reply: RequestVoteReply) -> None:
        group = self._group
        if reply.pre_vote:
            fits = group.role is Role.PRECANDIDATE and reply.requested_term == group.term + 1
        else:
            fits = group.role is Role.CANDIDATE and reply.requested_term == group.term
        if fits:
            self._votes[peer] = reply.granted
            self._count_votes()

    def _count_votes(self) -> None:
        group = self._group
        config = group.config
        granted = sum(self._votes.get(voter, False) for voter in config.voters)
        if granted >= config.majority:
            if group.role is Role.PRECANDIDATE:
                self.campaign(transfer=False)
            elif self._votes.get(group.node):
                group.become_leader()

    # --- leadership transfer ---

    def timeout_now(self, message: TimeoutNow) -> None:
        group = self._group
        if group.role is Role.FOLLOWER and group.may_lead and message.term == group.term:
            group.add_log_line("info", "leadership transfer received", {})
            self.campaign(transfer=True)
