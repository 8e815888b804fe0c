"""The closed set of messages between the nodes of a Raft cluster.

Like the clients' messages they are arrays on the wire: a newer node may append fields with defaults. Kinds begin at
128, so that no peer message can be taken for a client's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, get_args

import msgspec
from msgspec import Meta

from rostra.fabric.api import EpochStart, TopicSpec
from rostra.fabric.raft.consensus.hard_state import GroupConfigAt
from rostra.model.cluster import PlacedPartition
from rostra.model.ids import ID_MAX, NodeId, Partition, TopicId

TEXT_MAX = 1024
GROUPS_MAX = 1 << 16

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Node = Annotated[NodeId, Meta(ge=0, le=ID_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]


class RaftMessageBase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One frame's typed part. `payload` says whether raw batches may follow it."""

    kind: ClassVar[int] = 0
    payload: ClassVar[bool] = False


# --- the pair's heartbeat --------------------------------------------------------------------------


class GroupHeartbeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A leader's word to one follower. `quiet`: the follower holds and knows everything, nothing more will be said."""

    partition: Partition
    term: Count
    commit: Count
    round: Count
    quiescent: bool = False


class GroupHeartbeatReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`held` is how far the follower's log agrees with the leader's, `match` how far that is on stable storage.

    `fills` counts how often the copy was begun anew: words about an earlier filling may arrive late.
    """

    partition: Partition
    term: Count
    round: Count
    agreed: Count
    match: Count
    commit: Count
    quiescent: bool = False
    snapshots: Count = 0


class NodeHeartbeat(RaftMessageBase, frozen=True, array_like=True):
    """All that a node has to say to another now, for all groups it leads there, and that it lives.

    `boot` rises with every start: a leader that was away for less than a timeout leads no more. `peer_address` is where
    the sender is answered: whoever was away may not have heard of it. `resigned` rises whenever it ceases to lead a
    group: one that is silent would not hear of that otherwise.
    """

    kind: ClassVar[int] = 128
    boot: Count
    groups: Annotated[tuple[GroupHeartbeat, ...], Meta(max_length=GROUPS_MAX)] = ()
    peer_address: Text = ""
    step_downs: Count = 0


class NodeHeartbeatReply(RaftMessageBase, frozen=True, array_like=True):
    """Who answers lives, too: with `resigned` it says all that a heartbeat about no group would say."""

    kind: ClassVar[int] = 129
    boot: Count
    groups: Annotated[tuple[GroupHeartbeatReply, ...], Meta(max_length=GROUPS_MAX)] = ()
    step_downs: Count = 0


# --- one group -------------------------------------------------------------------------------------


class RequestVote(RaftMessageBase, frozen=True, array_like=True):
    """`pre`: would you? `forced`: the leader itself has asked for this election."""

    kind: ClassVar[int] = 130
    partition: Partition
    term: Count
    last_end: Count
    last_term: Count
    pre_vote: bool
    transfer: bool = False


class RequestVoteReply(RaftMessageBase, frozen=True, array_like=True):
    """`term` is the voter's own, `asked` the one it was asked about."""

    kind: ClassVar[int] = 131
    partition: Partition
    term: Count
    requested_term: Count
    granted: bool
    pre_vote: bool


class AppendEntries(RaftMessageBase, frozen=True, array_like=True):
    """Batches that follow `prev_end`, where an entry of `prev_term` ends; without payload it asks whether one does.

    `whole`: `prev_end` is known to lie between two batches. `first` is where the leader's log begins. `news`: all that
    it says is the commit, and it needs no answer.
    """

    kind: ClassVar[int] = 132
    payload: ClassVar[bool] = True
    partition: Partition
    term: Count
    prev_end: Count
    prev_term: Count
    commit: Count
    log_start: Count
    at_boundary: bool = True
    commit_only: bool = False


class AppendEntriesReply(RaftMessageBase, frozen=True, array_like=True):
    """`agreed` is the `prev_end` of a message without payload that fitted. `readers`: somebody reads the copy, and
    waits to hear what is committed.
    """

    kind: ClassVar[int] = 133
    partition: Partition
    term: Count
    agreed: Count
    match: Count
    commit: Count
    probed: Count = 0
    snapshots: Count = 0
    has_readers: bool = True


class AppendEntriesRefused(RaftMessageBase, frozen=True, array_like=True):
    """`prev_end` is not where the leader thinks; they may agree at `hint_end`, if `hint_term` ends there.

    `empty`: nothing of this copy can be used, it must be filled from the leader's log start.
    """

    kind: ClassVar[int] = 134
    partition: Partition
    term: Count
    prev_end: Count
    hint_end: Count
    hint_term: Count
    needs_snapshot: bool = False
    snapshots: Count = 0


class InstallSnapshot(RaftMessageBase, frozen=True, array_like=True):
    """Begin anew at `first`, the leader's log start; `epochs` and `configs` are what was before it."""

    kind: ClassVar[int] = 135
    partition: Partition
    term: Count
    log_start: Count
    epochs: Annotated[tuple[EpochStart, ...], Meta(max_length=1)]
    configs: Annotated[tuple[GroupConfigAt, ...], Meta(max_length=1)]


class TimeoutNow(RaftMessageBase, frozen=True, array_like=True):
    """The leader hands over: begin an election at once."""

    kind: ClassVar[int] = 136
    partition: Partition
    term: Count


class ReadIndexRequest(RaftMessageBase, frozen=True, array_like=True):
    """From a follower: what must I have applied before I may answer a read that begins now?"""

    kind: ClassVar[int] = 137
    partition: Partition
    term: Count
    token: Count


class ReadIndexReply(RaftMessageBase, frozen=True, array_like=True):
    """All below `commit`. Not `known`: the asked node cannot say."""

    kind: ClassVar[int] = 138
    partition: Partition
    term: Count
    token: Count
    commit: Count
    known: bool


GroupMessage = (
    RequestVote
    | RequestVoteReply
    | AppendEntries
    | AppendEntriesReply
    | AppendEntriesRefused
    | InstallSnapshot
    | TimeoutNow
    | ReadIndexRequest
    | ReadIndexReply
)

# --- the cluster -----------------------------------------------------------------------------------


class JoinRequest(RaftMessageBase, frozen=True, array_like=True):
    """Make this node a member; any node passes it on to the leader of the catalogue."""

    kind: ClassVar[int] = 144
    node: Node
    address: Text
    peer_address: Text


class JoinReply(RaftMessageBase, frozen=True, array_like=True):
    """To the node that joins: who it should keep a link to, until the catalogue tells it."""

    kind: ClassVar[int] = 145
    leader: Node
    leader_address: Text


class CreateTopicRequest(RaftMessageBase, frozen=True, array_like=True):
    """Passed on to the leader of the catalogue by the node that was asked."""

    kind: ClassVar[int] = 146
    origin: Node
    boot: Count
    token: Count
    spec: TopicSpec
    segment_bytes: Count
    replicas: Count


class DropTopicRequest(RaftMessageBase, frozen=True, array_like=True):
    kind: ClassVar[int] = 147
    origin: Node
    boot: Count
    token: Count
    topic: TopicId


class AlterTopicRequest(RaftMessageBase, frozen=True, array_like=True):
    kind: ClassVar[int] = 155
    origin: Node
    boot: Count
    token: Count
    topic: TopicId
    settings: bytes
    segment_bytes: Count


class RequestReply(RaftMessageBase, frozen=True, array_like=True):
    """The catalogue's leader refused. What it accepts is answered by the catalogue itself, which names the asker."""

    kind: ClassVar[int] = 148
    token: Count
    code: Text
    carried: dict[Text, int | Text]
    boot: Count = 0
    """Of the node that asked: after another start nobody there waits for this."""


class RemoveNodeRequest(RaftMessageBase, frozen=True, array_like=True):
    """Like a topic's making: the leader of the catalogue is to let this member go."""

    kind: ClassVar[int] = 149
    origin: Node
    boot: Count
    token: Count
    node: Node


class RemovedNotice(RaftMessageBase, frozen=True, array_like=True):
    """To a node that speaks as a member and is none any more."""

    kind: ClassVar[int] = 150
    node: Node


class ReassignmentReport(RaftMessageBase, frozen=True, array_like=True):
    """To the leader of the catalogue: the partition's group has the members that were wanted."""

    kind: ClassVar[int] = 151
    partition: Partition
    replicas: Annotated[tuple[Node, ...], Meta(max_length=64)]


class TransferLeadership(RaftMessageBase, frozen=True, array_like=True):
    """To the leader of a partition, passed on to it once by another holder: hand it over to `heir`.

    Answered to `origin` by `RequestReply`, with an empty code if it was.
    """

    kind: ClassVar[int] = 152
    origin: Node
    token: Count
    partition: Partition
    target: Node
    forwarded: bool = False


class ClusterStateRequest(RaftMessageBase, frozen=True, array_like=True):
    """What do you know of the partitions that you have copies of?"""

    kind: ClassVar[int] = 153
    token: Count


class ClusterStateReply(RaftMessageBase, frozen=True, array_like=True):
    """A part of the answer; the last one says that there is no `more`."""

    kind: ClassVar[int] = 154
    token: Count
    partitions: Annotated[tuple[PlacedPartition, ...], Meta(max_length=GROUPS_MAX)]
    more: bool = False


ClusterMessage = (
    JoinRequest
    | JoinReply
    | CreateTopicRequest
    | DropTopicRequest
    | AlterTopicRequest
    | RequestReply
    | RemoveNodeRequest
    | RemovedNotice
    | ReassignmentReport
    | TransferLeadership
    | ClusterStateRequest
    | ClusterStateReply
)
RaftMessage = NodeHeartbeat | NodeHeartbeatReply | GroupMessage | ClusterMessage

PEER_KINDS: dict[int, type[RaftMessage]] = {kind.kind: kind for kind in get_args(RaftMessage)}
"""For the codec: which Struct a frame's kind stands for."""
