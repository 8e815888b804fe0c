"""The closed set of messages between the nodes of a Raft cluster.

Like client messages they are arrays on the wire: a newer node may append fields with defaults. Kinds start at 128, so
that no peer message can be mistaken for a client's.
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


# --- heartbeats between nodes --------------------------------------------------------------------------


class GroupHeartbeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A leader's heartbeat to one follower. `quiescent`: the follower is up to date and gets no further ones."""

    partition: Partition
    term: Count
    commit: Count
    round: Count
    quiescent: bool = False


class GroupHeartbeatReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`agreed` is how far the follower's log agrees with the leader's, `match` how far that is on stable storage.

    `snapshots` counts installed snapshots: replies from before the last one may arrive late.
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
    """A node's heartbeat to another, with those of all groups that it leads there.

    `boot` increases with every start: a leader that restarted within a timeout no longer leads. `peer_address` is the
    sender's, which a node that was down may not know. `step_downs` increases whenever the sender stops leading a group,
    which a quiescent group would not notice otherwise.
    """

    kind: ClassVar[int] = 128
    boot: Count
    groups: Annotated[tuple[GroupHeartbeat, ...], Meta(max_length=GROUPS_MAX)] = ()
    peer_address: Text = ""
    step_downs: Count = 0


class NodeHeartbeatReply(RaftMessageBase, frozen=True, array_like=True):
    """Also proves that the sender is alive: with `step_downs` it replaces an idle heartbeat."""

    kind: ClassVar[int] = 129
    boot: Count
    groups: Annotated[tuple[GroupHeartbeatReply, ...], Meta(max_length=GROUPS_MAX)] = ()
    step_downs: Count = 0


# --- one group -------------------------------------------------------------------------------------


class RequestVote(RaftMessageBase, frozen=True, array_like=True):
    """`pre_vote`: no term is started yet. `transfer`: the leader itself requested this election."""

    kind: ClassVar[int] = 130
    partition: Partition
    term: Count
    last_end: Count
    last_term: Count
    pre_vote: bool
    transfer: bool = False


class RequestVoteReply(RaftMessageBase, frozen=True, array_like=True):
    """`term` is the voter's own, `requested_term` that of the request."""

    kind: ClassVar[int] = 131
    partition: Partition
    term: Count
    requested_term: Count
    granted: bool
    pre_vote: bool


class AppendEntries(RaftMessageBase, frozen=True, array_like=True):
    """Batches that follow `prev_end`, where an entry of `prev_term` ends; without payload, a probe for that entry.

    `at_boundary`: `prev_end` is known to lie between two batches. `log_start` is the leader's. `commit_only`: carries
    nothing but the commit offset and needs no reply.
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
    """`probed` is the `prev_end` of a successful probe. `has_readers`: readers of the replica wait for commits."""

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
    """The log does not match at `prev_end`; it may match at `hint_end`, if an entry of `hint_term` ends there.

    `needs_snapshot`: the replica is damaged and must restart at the leader's log start.
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
    """Restart the log at `log_start`, the leader's; `epochs` and `configs` describe what came before it."""

    kind: ClassVar[int] = 135
    partition: Partition
    term: Count
    log_start: Count
    epochs: Annotated[tuple[EpochStart, ...], Meta(max_length=1)]
    configs: Annotated[tuple[GroupConfigAt, ...], Meta(max_length=1)]


class TimeoutNow(RaftMessageBase, frozen=True, array_like=True):
    """The leader transfers leadership: start an election at once."""

    kind: ClassVar[int] = 136
    partition: Partition
    term: Count


class ReadIndexRequest(RaftMessageBase, frozen=True, array_like=True):
    """A follower asks which offset it must have applied before it answers a read that starts now."""

    kind: ClassVar[int] = 137
    partition: Partition
    term: Count
    token: Count


class ReadIndexReply(RaftMessageBase, frozen=True, array_like=True):
    """Everything below `commit`. Not `known`: the receiver of the request could not tell."""

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
    """Asks to become a member; any node forwards it to the metadata leader."""

    kind: ClassVar[int] = 144
    node: Node
    address: Text
    peer_address: Text
    name: Text = ""


class JoinReply(RaftMessageBase, frozen=True, array_like=True):
    """To the joining node: the metadata leader, to which it keeps a link until it has the metadata."""

    kind: ClassVar[int] = 145
    leader: Node
    leader_address: Text


class CreateTopicRequest(RaftMessageBase, frozen=True, array_like=True):
    """Forwarded to the metadata leader by the node that received the request."""

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
    """The leader refused a request; an empty code means success. Metadata requests succeed by their entry."""

    kind: ClassVar[int] = 148
    token: Count
    code: Text
    carried: dict[Text, int | Text]
    boot: Count = 0
    """Of the requester: after a restart it no longer waits for this."""


class RemoveNodeRequest(RaftMessageBase, frozen=True, array_like=True):
    """Asks the metadata leader to remove this member."""

    kind: ClassVar[int] = 149
    origin: Node
    boot: Count
    token: Count
    node: Node


class RemovedNotice(RaftMessageBase, frozen=True, array_like=True):
    """To a node that was removed and does not know it."""

    kind: ClassVar[int] = 150
    node: Node


class ReassignmentReport(RaftMessageBase, frozen=True, array_like=True):
    """To the metadata leader: the partition's group has the assigned members."""

    kind: ClassVar[int] = 151
    partition: Partition
    replicas: Annotated[tuple[Node, ...], Meta(max_length=64)]


class TransferLeadership(RaftMessageBase, frozen=True, array_like=True):
    """Asks the leader of a partition to transfer leadership to `target`; another replica forwards it once.

    `origin` is answered by `RequestReply`, with an empty code on success.
    """

    kind: ClassVar[int] = 152
    origin: Node
    token: Count
    partition: Partition
    target: Node
    forwarded: bool = False


class ClusterStateRequest(RaftMessageBase, frozen=True, array_like=True):
    """Asks for the state of the partitions that the receiver has replicas of."""

    kind: ClassVar[int] = 153
    token: Count


class ClusterStateReply(RaftMessageBase, frozen=True, array_like=True):
    """One chunk of the answer; `more` is false in the last one."""

    kind: ClassVar[int] = 154
    token: Count
    partitions: Annotated[tuple[PlacedPartition, ...], Meta(max_length=GROUPS_MAX)]
    more: bool = False


class BrokerToBroker(RaftMessageBase, frozen=True, array_like=True):
    """Passes a message of one broker to another; the fabric does not look into it."""

    kind: ClassVar[int] = 156
    body: bytes


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
    | BrokerToBroker
)
RaftMessage = NodeHeartbeat | NodeHeartbeatReply | GroupMessage | ClusterMessage

PEER_KINDS: dict[int, type[RaftMessage]] = {kind.kind: kind for kind in get_args(RaftMessage)}
"""Message types by frame kind, for the codec."""
