"""What a fabric is to the broker above it: inputs and time in, effects out.

A fabric orders batches into partitions, decides what is committed, and keeps the catalogue of topics. It holds no bytes
of its own: it sees a batch when it is proposed or received, hands it on in an `Append`, and gets it back by `Read`.
`docs/decisions/0001-fabric-api.md` walks every fabric through these types.
"""

from __future__ import annotations

from typing import Literal, Protocol

from rostra.errors import RostraError
from rostra.fabric.guarantees import AcksAll, Delivers, Guarantees, Order, SplitBehaviour, Survives, TopicScope
from rostra.fabric.values import EpochStart, Now, Recovered, TopicSpec, Value
from rostra.model.cluster import ClusterState
from rostra.model.ids import NodeId, Partition, TopicId
from rostra.model.view import View

__all__ = [
    "AcksAll",
    "Delivers",
    "EpochStart",
    "Guarantees",
    "Now",
    "Order",
    "Recovered",
    "SplitBehaviour",
    "Survives",
    "TopicScope",
    "TopicSpec",
    "Value",
]

Buffer = bytes | bytearray | memoryview
Acks = Literal["none", "owner", "all"]

METADATA = "_catalogue"
"""In place of a topic: what the nodes agree on about topics and members."""

COORDINATION = NodeId(0)
"""The peer that is no node: a coordination service. Requests leave by `Send`; answers, watches and its loss arrive as
`PeerReceived` and `PeerLost`, under the same faults as any other link. No node has this id."""


# --- inputs ----------------------------------------------------------------------------------------


class Started(Value, frozen=True):
    """The node is up: its hard state by key, and its partitions."""

    hard_states: dict[str, bytes]
    partitions: tuple[Recovered, ...]


class Propose(Value, frozen=True):
    """Order this batch in the partition, stamped with these owner flags.

    Answered in the same step, by `Append` and `Accepted` or by `Refused`: only an owner orders, and it asks nobody.
    """

    token: int
    partition: Partition
    batch: bytearray
    owner_flags: int = 0


class ProposeTopic(Value, frozen=True):
    """`replicas` copies of each partition; 0 leaves it to the fabric."""

    token: int
    spec: TopicSpec
    segment_bytes: int
    replicas: int = 0


class ProposeDrop(Value, frozen=True):
    token: int
    topic: TopicId


class ProposeSettings(Value, frozen=True):
    """The topic's settings are these from now on; how many partitions and copies it has stays."""

    token: int
    topic: TopicId
    settings: bytes
    segment_bytes: int


class QueryHeldByAll(Value, frozen=True):
    """How much of a partition that this node owns does every copy have? Answered in the same step by `HeldByAll`."""

    partition: Partition


class Readers(Value, frozen=True):
    """Whether anybody reads this copy of a partition: they wait to hear what is committed."""

    partition: Partition
    present: bool


class ProposeLogStart(Value, frozen=True):
    """Retention: advance the partition's log start to this segment boundary below commit."""

    partition: Partition
    first: int


class PeerReceived(Value, frozen=True):
    peer: NodeId
    message: object
    payload: bytearray | None


class PeerIdentified(Value, frozen=True):
    """The node at an address that was known without an id says who it is: the answer to `Connect` of nobody."""

    peer: NodeId
    address: str


class PeerLost(Value, frozen=True):
    peer: NodeId


class TimerFired(Value, frozen=True):
    timer: str


class Synced(Value, frozen=True):
    """All of the partition below `offset` is on stable storage, if `generation` is still the partition's."""

    partition: Partition
    generation: int
    offset: int


class WriteFailed(Value, frozen=True):
    """What was appended at `offset` and above is not in the log: the disk refused it. The log ends at `offset` now."""

    partition: Partition
    offset: int
    generation: int
    error: RostraError


class ReadDone(Value, frozen=True):
    """Whole, checked batches in order, beginning with the one that holds the offset asked for; empty at the end."""

    token: int
    partition: Partition
    batches: bytes
    next: int


class ReadFailed(Value, frozen=True):
    token: int
    partition: Partition
    error: RostraError


class Confirm(Value, frozen=True):
    """Is what this node knows of the topic (of all topics, if `name` is empty) still so?

    Answered by `TopicOpened` and `TopicClosed` where it was not, then `Confirmed`; or by `Refused` if nobody can tell.
    """

    token: int
    name: str


class Forward(Value, frozen=True):
    """Take this publish to the partition's owner. Answered by `Forwarded` or `Refused`, whenever that is known.

    Where every node orders, this node is the owner: the producer comes from another, for the `moves`th time, and the
    answer is `ProducerAdmitted`.
    """

    token: int
    partition: Partition
    batch: bytearray
    acks: Acks
    moves: int = 0


class AwaitCoverage(Value, frozen=True):
    """Somebody waits until every node has so much of the partition, whoever ordered it: answered by `Covered`."""

    partition: Partition
    offset: int


class ForwardDone(Value, frozen=True):
    """The answer to `ForwardReceived`: stored from `base` on, as safely as was asked for; or refused."""

    token: int
    base: int
    error: RostraError | None = None


class DiskFailed(Value, frozen=True):
    """The disk is not to be trusted any more: no `Synced` follows. What this node owns is better owned by another."""

    error: RostraError


class Echo(Value, frozen=True):
    """An effect that comes back as an input: in a `Persist`'s `then` it tells the fabric that the state is durable."""

    key: str
    number: int


class TransferOwnership(Value, frozen=True):
    """An operator wishes that this peer orders the partition, whoever does now.

    Answered by `OperationDone` when it does, or by `Refused`; token 0: nobody waits for an answer.
    """

    partition: Partition
    peer: NodeId
    token: int = 0


class RemoveNode(Value, frozen=True):
    """An operator removes this member, there or not. `OperationDone`: its copies are being moved, then it leaves."""

    token: int
    node: NodeId


class Describe(Value, frozen=True):
    """What is the cluster like? Answered by `Described`, by any node, with what those tell that are there."""

    token: int


class PrepareStop(Value, frozen=True):
    """The node is stopping and nobody waits for an answer: give away what it owns, then say `StopPrepared`.

    Peers' messages and timers still arrive until then; no proposal does.
    """


FabricInput = (
    Started
    | Propose
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
    | DiskFailed
    | Echo
    | TransferOwnership
    | RemoveNode
    | Describe
    | PrepareStop
)

# --- effects the driver executes -------------------------------------------------------------------


class Open(Value, frozen=True):
    """Make the partition's log, empty, beginning at `first`. Idempotent.

    A copy that is filled from others begins at their log start: `Drop`, then `Open` with `first`.
    """

    partition: Partition
    segment_bytes: int
    first: int = 0


class Drop(Value, frozen=True):
    """Delete the partition's log."""

    partition: Partition


class Append(Value, frozen=True):
    """Write a stamped batch at the partition's end. A checkpoint batch begins a new segment."""

    partition: Partition
    batch: bytearray
    sync: bool = False
    """As with a `Sync` behind it, which would cost as much again on the way of a single record."""


class Truncate(Value, frozen=True):
    """Cut the partition's end to `offset` (at or above commit); raises its generation to `generation`."""

    partition: Partition
    offset: int
    generation: int


class Trim(Value, frozen=True):
    """Delete whole segments below `first`."""

    partition: Partition
    first: int


class Sync(Value, frozen=True):
    """Make what is written so far durable; answered by `Synced`. Several may be served by one fsync."""

    partition: Partition


class Read(Value, frozen=True):
    """Read whole batches from `offset`, about `bytes_max` (at least one batch), none at or beyond `end`."""

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
    """Keep a link to this peer, at this address; said again when the address changes. Its end is told by `PeerLost`.

    Peer 0 is whoever answers there: `PeerIdentified` says who.
    """

    peer: NodeId
    address: str


class Disconnect(Value, frozen=True):
    """The peer is no member any more: drop the link to it."""

    peer: NodeId


class SetTimer(Value, frozen=True):
    """Fire at this monotonic time; setting a timer again moves it, `at_us` None cancels it."""

    timer: str
    at_us: int | None


class LogLine(Value, frozen=True):
    """A line for the structured log. The role of this node in `METADATA` is its role in the cluster."""

    level: str
    event: str
    about: dict[str, int | str]


# --- effects the broker executes -------------------------------------------------------------------


class Accepted(Value, frozen=True):
    """The proposal has its place: it will commit there or be cut. `base` to `last` are its offsets."""

    token: int
    partition: Partition
    base: int
    last: int


class Refused(Value, frozen=True):
    token: int
    error: RostraError


class Forwarded(Value, frozen=True):
    token: int
    base: int


class ForwardReceived(Value, frozen=True):
    """A peer forwarded a publish to this owner. The broker orders it like its own and replies `ForwardDone`."""

    token: int
    partition: Partition
    batch: bytearray
    acks: Acks


class ProducerAdmitted(Value, frozen=True):
    """The answer to `Forward` where every node orders: all that any node had of the topic is in the logs here.

    So what the producer has stored anywhere is known. What surfaces later of it, it has sent to this node again.
    """

    token: int
    partition: Partition
    batch: bytearray


class ProducerMigrated(Value, frozen=True):
    """The producer has gone to another node, by its `moves`th move: what it sent here before that comes too late."""

    partition: Partition
    producer: int
    moves: int


class Confirmed(Value, frozen=True):
    token: int


class OperationDone(Value, frozen=True):
    """What an operator asked for is done, or will be done without further asking."""

    token: int


class Described(Value, frozen=True):
    token: int
    state: ClusterState


class Committed(Value, frozen=True):
    """Records below `offset` may be shown, and are never truncated."""

    partition: Partition
    offset: int


class HeldByAll(Value, frozen=True):
    """Every copy has the records below `offset` on stable storage: none will be sent them again."""

    partition: Partition
    offset: int


class Covered(Value, frozen=True):
    """Every node of `view` has the records below `offset` on stable storage.

    Only where `AcksAll.VIEW` is promised: there commit says less than acks `all` asks for. Elsewhere commit is enough.
    """

    partition: Partition
    offset: int
    view: View


class Serving(Value, frozen=True):
    """This node orders the partition (`owner`), or holds a copy. Its log spans `first` to `end`.

    Said again whenever that changes. `address` is the owner's if it is another node, empty if nobody is known to be
    it: replies that wait for a batch of this node's ordering then end with `Moved`, or `Unavailable`. Their batches may
    still commit; the client sends them again to the new owner, which knows them by producer and sequence.
    """

    partition: Partition
    epoch: int
    owner: bool
    first: int
    end: int
    commit: int
    address: str = ""


class ServedElsewhere(Value, frozen=True):
    """No copy of the partition is here: its owner is at `address`, empty if nobody is known to be it."""

    partition: Partition
    epoch: int
    address: str


class Blocked(Value, frozen=True):
    """The partition takes no proposals until `Serving` is said again, for this reason; reads below commit go on."""

    partition: Partition
    error: RostraError


class Broken(Value, frozen=True):
    """What only this node has is damaged: it acknowledges nothing any more until it is started anew. Reads go on."""

    error: RostraError


class TopicOpened(Value, frozen=True):
    """In the catalogue from now on; `token` answers the proposal, None when it came from elsewhere or from disk."""

    token: int | None
    spec: TopicSpec


class TopicChanged(Value, frozen=True):
    """Its settings are others from now on; `token` as in `TopicOpened`."""

    token: int | None
    spec: TopicSpec


class TopicClosed(Value, frozen=True):
    token: int | None
    topic: TopicId


class PartitionJoined(Value, frozen=True):
    """A partition that its topic was not made with: the part that an origin incarnation has of it.

    The origin draws `partition.topic` at random when it first publishes to the topic, so it names topic, origin and
    incarnation at once, in the width that ids have everywhere. `Serving` follows, with the incarnation as epoch.
    """

    topic: TopicId
    partition: Partition
    origin: NodeId


class KnownNodes(Value, frozen=True):
    """Where clients find the other nodes, in case this one dies; said whenever that changes."""

    addresses: tuple[str, ...]


class StopPrepared(Value, frozen=True):
    """The answer to `PrepareStop`: this node may go."""


class Ready(Value, frozen=True):
    """The fabric has learned enough to serve: the node opens its listener."""


class Persist(Value, frozen=True):
    """Write hard state durably, and only then carry out `then`. For hard state only; records use Append and Sync."""

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
    | Accepted
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
    """A pure machine. The broker steps it; nobody else does."""

    guarantees: Guarantees

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]: ...
