"""Messages within one Raft group, besides those of replication: elections, transfer, read index.

In all of them `term` is Raft's word for the owner epoch.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from rostra.fabric.consensus.hard_state import GroupConfigAt
from rostra.fabric.links.messages import Count, PeerMessage
from rostra.fabric.replication.messages import (
    AppendEntries,
    AppendEntriesRefused,
    AppendEntriesReply,
    InstallSnapshot,
)
from rostra.model.ids import Partition


class TermMessage(PeerMessage, frozen=True, array_like=True):
    partition: Partition
    term: Count

    @property
    def epoch(self) -> int:
        return self.term


class RequestVote(TermMessage, frozen=True, array_like=True):
    """`pre_vote`: no term is started yet. `transfer`: the leader itself requested this election."""

    kind: ClassVar[int] = 130
    last_end: Count
    last_term: Count
    pre_vote: bool
    transfer: bool = False


class RequestVoteReply(TermMessage, frozen=True, array_like=True):
    """`term` is the voter's own, `requested_term` that of the request."""

    kind: ClassVar[int] = 131
    requested_term: Count
    granted: bool
    pre_vote: bool


class InstallGroupSnapshot(InstallSnapshot, frozen=True, array_like=True):
    """`configs`: the configuration in force at `log_start`, whose entry the new log does not hold."""

    kind: ClassVar[int] = 135
    configs: Annotated[tuple[GroupConfigAt, ...], Meta(max_length=1)]


class TimeoutNow(TermMessage, frozen=True, array_like=True):
    """The leader transfers leadership: start an election at once."""

    kind: ClassVar[int] = 136


class ReadIndexRequest(TermMessage, frozen=True, array_like=True):
    """A follower asks which offset it must have applied before it answers a read that starts now."""

    kind: ClassVar[int] = 137
    token: Count


class ReadIndexReply(TermMessage, frozen=True, array_like=True):
    """Everything below `commit`. Not `known`: the receiver of the request could not tell."""

    kind: ClassVar[int] = 138
    token: Count
    commit: Count
    known: bool


GroupMessage = (
    RequestVote
    | RequestVoteReply
    | AppendEntries
    | AppendEntriesReply
    | AppendEntriesRefused
    | InstallGroupSnapshot
    | TimeoutNow
    | ReadIndexRequest
    | ReadIndexReply
)
