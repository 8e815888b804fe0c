"""The interface between a fabric and the broker: inputs and time in, effects out.

A fabric orders batches into partitions, decides what is committed, and holds the metadata of topics and members. The
broker calls `step` with one input and executes the effects in order, some by the driver (disk, network, timers). An
answer carries its request's token. A fabric stores no bytes: it writes a batch with `Append`, gets it back with `Read`.
`Persist.then` holds effects that wait for hard state. docs/decisions/0001-fabric-api.md walks through these types.
"""

from __future__ import annotations

from typing import Protocol

from rostra.errors import RostraError
from rostra.fabric.forwarding import (
    AwaitCoverage,
    Forward,
    ForwardDone,
    Forwarded,
    ForwardReceived,
    ProducerAdmitted,
    ProducerMigrated,
)
from rostra.fabric.guarantees import (
    AcksAll,
    Delivers,
    Guarantees,
    Order,
    PublishPath,
    SplitBehaviour,
    Survives,
    TopicScope,
)
from rostra.fabric.status import ClusterStatus
from rostra.fabric.values import Acks, Buffer, EpochStart, Now, Recovered, TopicSpec, Value
from rostra.model.cluster import ClusterState
from rostra.model.ids import NodeId, Partition, TopicId
from rostra.model.view import View

__all__ = [
    "Acks",
    "AcksAll",
    "AwaitCoverage",
    "Buffer",
    "Delivers",
    "EpochStart",
    "Forward",
    "ForwardDone",
    "ForwardReceived",
    "Forwarded",
    "Guarantees",
    "Now",
    "Order",
    "ProducerAdmitted",
    "ProducerMigrated",
    "PublishPath",
    "Recovered",
    "SplitBehaviour",
    "Survives",
    "TopicScope",
    "TopicSpec",
    "Value",
]

BatchOffsets = tuple[int, int]
"""The first and last offset of a batch."""

METADATA = "_metadata"
"""The name of the metadata log, used in place of a topic name in log lines and errors."""

UNKNOWN_PEER = NodeId(0)
"""Whoever answers at an address: the id is not known yet, and no node has this one."""
COORDINATION = NodeId(-1)
"""The peer id of an external coordination service; no node has it. Requests leave by `Send`; replies, watches and
disconnects arrive as `PeerReceived` and `PeerLost`, subject to the same faults as any other link."""


# --- inputs ----------------------------------------------------------------------------------------


class Started(Value, frozen=True):
    """The node has started; carries its hard states by key and its recovered partitions."""

    hard_states: dict[str, bytes]
    partitions: tuple[Recovered, ...]


class ProposeTopic(Value, frozen=True):
    """Creates a topic with `replicas` replicas of each partition; 0 means the fabric's default."""

    token: int
    spec: TopicSpec
    segment_bytes: int
    replicas: int = 0


class ProposeDrop(Value, frozen=True):
    token: int
    topic: TopicId


class ProposeSettings(Value, frozen=True):
    """Replaces the topic's settings; its numbers of partitions and replicas stay."""

    token: int
    topic: TopicId
    settings: bytes
    segment_bytes: int


class QueryHeldByAll(Value, frozen=True):
    """Asks how far every replica has a partition this node owns. Answered in the same step by `HeldByAll`."""

    partition: Partition


class Readers(Value, frozen=True):
    """Local subscribers of this replica appeared (`present`) or left; they wait for commit offsets."""

    partition: Partition
    present: bool


class ProposeLogStart(Value, frozen=True):
    """Advances the partition's log start to this segment boundary below the commit offset, for retention."""

    partition: Partition
    first: int


class PeerReceived(Value, frozen=True):
    peer: NodeId
    message: object
    payload: bytearray | None


class PeerIdentified(Value, frozen=True):
    """A node contacted by address alone has sent its id: the answer to `Connect` with peer 0."""

    peer: NodeId
    address: str


class PeerLost(Value, frozen=True):
    peer: NodeId


class TimerFired(Value, frozen=True):
    timer: str


class Synced(Value, frozen=True):
    """Everything below `offset` is on stable storage, provided `generation` is still the log's current one."""

    partition: Partition
    generation: int
    offset: int


class WriteFailed(Value, frozen=True):
    """The disk refused the appends at `offset` and above; the log ends at `offset` now."""

    partition: Partition
    offset: int
    generation: int
    error: RostraError


class ReadDone(Value, frozen=True):
    """Whole, checked batches in order, from the one that contains the requested offset; empty at the log end."""

    token: int
    partition: Partition
    batches: bytes
    next: int


class ReadFailed(Value, frozen=True):
    token: int
    partition: Partition
    error: RostraError


class Confirm(Value, frozen=True):
    """Brings this node's knowledge of the topic (of all topics, if `name` is empty) up to date.

    Answered by `TopicOpened` and `TopicClosed` for what was missing, then `Confirmed`; or by `Refused` on timeout.
    """

    token: int
    name: str


class DiskUnusable(Value, frozen=True):
    """The disk failed: no `Synced` follows. The node should give up the partitions that it owns."""

    error: RostraError


class Echo(Value, frozen=True):
    """Comes back as an input: in the `then` of a `Persist` it reports that the state is durable."""

    key: str
    number: int


class TransferOwnership(Value, frozen=True):
    """Transfers ownership of the partition to this peer, at an operator's request.

    Answered by `OperationDone` once the peer is the owner, or by `Refused`; token 0 needs no answer.
    """

    partition: Partition
    peer: NodeId
    token: int = 0


class RemoveNode(Value, frozen=True):
    """Removes a member, alive or not. `OperationDone`: its replicas are being reassigned, then it leaves."""

    token: int
    node: NodeId


class Describe(Value, frozen=True):
    """Asks for the cluster's state. Any node answers by `Described`, from the replies of all nodes that are alive."""

    token: int


class PrepareStop(Value, frozen=True):
    """The node is stopping and has no pending requests: transfer what it owns, then answer `StopPrepared`.

    Peer messages and timers still arrive until then; proposals do not.
    """


FabricInput = (
    Started
    | ProposeTopic
    | ProposeDrop
    | ProposeSettings
    | ProposeLogStart
    | QueryHeldByAll
    | Readers
    | PeerReceived
    | PeerIdentified
    | PeerLost
    | TimerFired
    | Synced
    | WriteFailed
    | ReadDone
    | ReadFailed
    | Confirm
    | Forward
    | AwaitCoverage
    | ForwardDone
    | DiskUnusable
    | Echo
    | TransferOwnership
    | RemoveNode
    | Describe
    | PrepareStop
)

# --- effects the driver executes -------------------------------------------------------------------


class Open(Value, frozen=True):
    """Creates the partition's log, empty, starting at `first`. Idempotent.

    A replica that installs a snapshot starts at the sender's log start: `Drop`, then `Open` with `first`.
    """

    partition: Partition
    segment_bytes: int
    first: int = 0


class Drop(Value, frozen=True):
    """Deletes the partition's log."""

    partition: Partition


class Append(Value, frozen=True):
    """Writes a stamped batch at the end of the log. A checkpoint batch starts a new segment."""

    partition: Partition
    batch: bytearray
    sync: bool = False
    """Also syncs, like a following `Sync`, which would double the cost of publishing a single record."""


class Truncate(Value, frozen=True):
    """Truncates the log to `offset` (at or above commit) and raises its generation to `generation`."""

    partition: Partition
    offset: int
    generation: int


class Trim(Value, frozen=True):
    """Deletes whole segments below `first`."""

    partition: Partition
    first: int


class Sync(Value, frozen=True):
    """Makes what is written so far durable; answered by `Synced`. One fsync may serve several."""

    partition: Partition


class Read(Value, frozen=True):
    """Reads whole batches from `offset`, about `bytes_max` (at least one batch), none at or beyond `end`."""

    token: int
    partition: Partition
    offset: int
    end: int
    bytes_max: int


class Send(Value, frozen=True):
    peer: NodeId
    message: object
    payload: tuple[Buffer, ...] = ()


class Connect(Value, frozen=True):
    """Keeps a link to this peer at this address; repeated when the address changes. `PeerLost` reports a disconnect.

    `UNKNOWN_PEER` stands for a node whose id is unknown: `PeerIdentified` reports the id.
    """

    peer: NodeId
    address: str


class Disconnect(Value, frozen=True):
    """Closes the link to a peer that is no longer a member."""

    peer: NodeId


class SetTimer(Value, frozen=True):
    """Sets a timer to this monotonic time; setting it again moves it, `at_us` None cancels it."""

    timer: str
    at_us: int | None


class LogLine(Value, frozen=True):
    """A line for the structured log. This node's role in `METADATA` is its role in the cluster."""

    level: str
    event: str
    about: dict[str, int | str]


# --- effects the broker executes -------------------------------------------------------------------


class Refused(Value, frozen=True):
    token: int
    error: RostraError


class Confirmed(Value, frozen=True):
    token: int


class OperationDone(Value, frozen=True):
    """An operator's request is done, or will be completed without a further request."""

    token: int


class Described(Value, frozen=True):
    token: int
    state: ClusterState


class Committed(Value, frozen=True):
    """Records below `offset` may be delivered, and are never truncated."""

    partition: Partition
    offset: int


class HeldByAll(Value, frozen=True):
    """Every replica has the records below `offset` on stable storage: they will not be replicated again."""

    partition: Partition
    offset: int


class Covered(Value, frozen=True):
    """Every node of `view` has the records below `offset` on stable storage.

    Only where `AcksAll.VIEW` is promised: there a commit alone does not satisfy acks `all`. Elsewhere it does.
    """

    partition: Partition
    offset: int
    view: View


class Serving(Value, frozen=True):
    """This node owns the partition (`owner`) or holds a replica. Its log spans `first` to `end`.

    Repeated whenever that changes. `address` is the owner's if it is another node, empty if the owner is unknown.
    When this node stops being the owner, pending publishes fail with `Moved` or `Unavailable`. Their batches may still
    commit; the client sends them again to the new owner, which recognizes them by producer and sequence.
    """

    partition: Partition
    epoch: int
    owner: bool
    first: int
    end: int
    commit: int
    address: str = ""


class ServedElsewhere(Value, frozen=True):
    """This node has no replica of the partition; its owner is at `address`, empty if unknown."""

    partition: Partition
    epoch: int
    address: str


class Blocked(Value, frozen=True):
    """The partition accepts no proposals until the next `Serving`, for this reason; reads below commit go on."""

    partition: Partition
    error: RostraError


class Broken(Value, frozen=True):
    """Data that only this node has is damaged: it acknowledges nothing until it is restarted. Reads go on."""

    error: RostraError


class TopicOpened(Value, frozen=True):
    """A topic exists from now on; `token` answers the proposal, None if another node or the disk is the source."""

    token: int | None
    spec: TopicSpec


class TopicChanged(Value, frozen=True):
    """The topic's settings changed; `token` as in `TopicOpened`."""

    token: int | None
    spec: TopicSpec


class TopicClosed(Value, frozen=True):
    token: int | None
    topic: TopicId


class PartitionJoined(Value, frozen=True):
    """Adds a partition to an existing topic: the origin partition of one origin and incarnation.

    The origin draws `partition.topic` at random when it first publishes to the topic, so this one id stands for topic,
    origin and incarnation. `Serving` follows, with the incarnation as epoch.
    """

    topic: TopicId
    partition: Partition
    origin: NodeId


class KnownNodes(Value, frozen=True):
    """The client addresses of the other nodes, for failover; repeated whenever they change."""

    addresses: tuple[str, ...]


class StopPrepared(Value, frozen=True):
    """The answer to `PrepareStop`: this node may stop."""


class Ready(Value, frozen=True):
    """The fabric is ready to serve: the node opens its listener."""


class Persist(Value, frozen=True):
    """Writes hard state durably, then executes `then`. For hard state only; records use `Append` and `Sync`."""

    key: str
    state: bytes
    then: tuple[FabricEffect, ...] = ()


FabricEffect = (
    Open
    | Drop
    | Append
    | Truncate
    | Trim
    | Sync
    | Read
    | Send
    | Connect
    | Disconnect
    | SetTimer
    | Echo
    | LogLine
    | Refused
    | Forwarded
    | ForwardReceived
    | ProducerAdmitted
    | ProducerMigrated
    | Confirmed
    | OperationDone
    | Described
    | Committed
    | Covered
    | HeldByAll
    | Serving
    | ServedElsewhere
    | Blocked
    | Broken
    | TopicOpened
    | TopicChanged
    | TopicClosed
    | PartitionJoined
    | KnownNodes
    | StopPrepared
    | Ready
    | Persist
)


class Fabric(Protocol):
    """A pure state machine, stepped by the broker only."""

    guarantees: Guarantees

    def propose(
        self, now: Now, partition: Partition, batch: bytearray, owner_flags: int = 0
    ) -> tuple[BatchOffsets | RostraError, list[FabricEffect]]:
        """Appends this batch to the partition, stamped with these owner flags; returns its offsets or why not.

        The owner assigns offsets by itself, so there is nothing to wait for. The effects, `Append` among them, are to
        be executed like those of a step. The batch will commit at these offsets or be truncated.
        """

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]: ...

    def status(self) -> ClusterStatus | None:
        """Its members and partitions as this node knows them; None before it knows any."""
        return None

    def problem(self) -> str:
        """Why the node cannot serve with its cluster at the moment; empty if it can."""
        return ""
