"""The smallest fabric that passes publishes on to an owner: the founder owns every partition and alone has its log.

It is for tests of what the broker, the client and both drivers do for such a fabric; it replicates nothing. The node
that joined first is told where the owner is. All later ones believe that the owner is that node, as if they had an old
view: a client that asks them is led to a node that passes its publishes on.

The founder sends each member a message in the step in which it asks for the link. Such a message is dropped by every
driver: `early` counts those that arrived.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rostra.errors import RostraError, TopicExists, Unavailable, UnsupportedByFabric, from_wire
from rostra.fabric.api import (
    AcksAll,
    Append,
    Committed,
    Confirm,
    Confirmed,
    Connect,
    Delivers,
    Describe,
    Described,
    Fabric,
    FabricEffect,
    FabricInput,
    Forward,
    ForwardDone,
    Forwarded,
    ForwardReceived,
    Guarantees,
    Now,
    Open,
    Order,
    PeerIdentified,
    PeerLost,
    PeerReceived,
    PrepareStop,
    ProposeTopic,
    PublishPath,
    Ready,
    Refused,
    Send,
    ServedElsewhere,
    Serving,
    SetTimer,
    SplitBehaviour,
    Started,
    StopPrepared,
    Survives,
    Sync,
    Synced,
    TimerFired,
    TopicOpened,
    TopicSpec,
)
from rostra.fabric.registry import FabricKind, NodeSetup, PartitionColumns
from rostra.model.batch import stamp
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition
from rostra.model.ids import NodeId, Partition, PartitionIndex
from rostra.wire.fields import Carried, Message

NAME = "passing"
TICK = "passing/tick"
TICK_US = 50_000
PATIENCE_US = 1_000_000
"""How long an answer is waited for; then the request is refused, and nothing is passed on before it may be repeated."""
OLD_EPOCH, OWNER_EPOCH = 1, 2

GUARANTEES = Guarantees(
    fabric=NAME,
    order=Order.PARTITION,
    acks_all=AcksAll.CONFIGURATION,
    delivers=Delivers.OWNER,
    split=SplitBehaviour.REFUSES,
    survives=Survives.MEMBERS,
    groups_span_nodes=True,
    exactly_once_sink=False,
    publishes=PublishPath.PASSED_ONCE,
)


class Member(Message, frozen=True, array_like=True):
    """From a member to the founder, each tick."""

    kind: ClassVar[int] = 224
    node: NodeId
    address: str
    peer_address: str


class Early(Message, frozen=True, array_like=True):
    """From the founder, before the link can be up."""

    kind: ClassVar[int] = 225


class View(Message, frozen=True, array_like=True):
    """From the founder, each tick: the members in the order in which they joined, and the topics."""

    kind: ClassVar[int] = 226
    members: tuple[Member, ...]
    topics: tuple[tuple[TopicSpec, int], ...]


class Create(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 227
    token: int
    spec: TopicSpec
    segment_bytes: int


class Pass(Message, frozen=True, array_like=True):
    """A publish on its way to the founder."""

    kind: ClassVar[int] = 228
    payload: ClassVar[bool] = True
    token: int
    partition: Partition
    acks: str
    again: bool


class Answer(Message, frozen=True, array_like=True):
    """The answer to `Create` or `Pass`."""

    kind: ClassVar[int] = 229
    token: int
    base: int
    code: str = ""
    carried: Carried = msgspec.field(default_factory=dict)


class PassingSettings(msgspec.Struct, frozen=True):
    """Nothing can be set."""


class PassingFabric(Fabric):
    guarantees = GUARANTEES
    made: ClassVar[dict[str, PassingFabric]] = {}
    """The newest instance of each node, by its address for clients."""

    def __init__(self, setup: NodeSetup) -> None:
        self.founder = setup.bootstrap and not setup.join
        self.own = Member(setup.node, setup.address, setup.peer_address)
        self.members: dict[NodeId, Member] = {setup.node: self.own}
        self.topics: dict[str, tuple[TopicSpec, int]] = {}
        self.ends: dict[Partition, int] = {}
        self.commits: dict[Partition, int] = {}
        self.early = self.passed = self.views = 0
        self._join = setup.join
        self._leader = NodeId(0)
        self._waiting: dict[int, int] = {}
        """By token, when the request is given up."""
        self._creating: dict[str, int] = {}
        """By name, the token of its creation."""
        self._from: dict[int, tuple[NodeId, int]] = {}
        """Of publishes that came from members: the member and its token."""
        self._token = 1
        self._ready = False
        self.out: list[FabricEffect] = []
        self.made[setup.address] = self

    def propose(
        self, now: Now, partition: Partition, batch: bytearray, owner_flags: int = 0
    ) -> tuple[tuple[int, int] | RostraError, list[FabricEffect]]:
        base = self.ends[partition]
        last = stamp(batch, partition=partition, base_offset=base, owner_epoch=OWNER_EPOCH, owner_flags=owner_flags)
        self.ends[partition] = last + 1
        return (base, last), [Append(partition, batch), Sync(partition)]

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        self.out = []
        match given:
            case Started():
                self._started(given)
                self.out.append(SetTimer(TICK, now.mono_us + TICK_US))
            case TimerFired():
                self._tick(now)
            case PeerIdentified():
                self._leader = given.peer
                self.out.append(Connect(given.peer, given.address))
            case PeerReceived():
                self._received(given)
            case PeerLost():
                self._give_up(list(self._waiting))
            case ProposeTopic():
                self._create(now, given)
            case Synced():
                self.commits[given.partition] = given.offset
                self.out.append(Committed(given.partition, given.offset))
            case Forward():
                self.passed += 1
                self._ask(now, given.token, Pass(given.token, given.partition, given.acks, given.again), given.batch)
            case ForwardDone():
                peer, token = self._from.pop(given.token)
                answer = Answer(token, given.base) if given.error is None else _failed(token, given.error)
                self.out.append(Send(peer, answer))
            case Confirm():
                self.out.append(Confirmed(given.token))
            case Describe():
                self.out.append(Described(given.token, self._state()))
            case PrepareStop():
                self.out.append(StopPrepared())
            case _:
                if token := getattr(given, "token", 0):
                    self.out.append(Refused(token, UnsupportedByFabric(NAME, type(given).__name__)))
        return self.out

    def _started(self, given: Started) -> None:
        assert not given.partitions, "no test restarts a node of this fabric"
        if self.founder:
            self._ready = True
            self.out.append(Ready())
        self.out += [Connect(NodeId(0), address) for address in self._join]

    def _tick(self, now: Now) -> None:
        self.out.append(SetTimer(TICK, now.mono_us + TICK_US))
        if self.founder:
            view = View(tuple(self.members.values()), tuple(self.topics.values()))
            self.out += [Send(node, view) for node in self.members if node != self.own.node]
        elif self._leader:
            self.out.append(Send(self._leader, self.own))
        self._give_up([token for token, due_us in self._waiting.items() if due_us <= now.mono_us])

    def _give_up(self, tokens: list[int]) -> None:
        for token in tokens:
            del self._waiting[token]
            self.out.append(Refused(token, Unavailable("", 0, "its owner does not answer")))

    def _ask(self, now: Now, token: int, message: Create | Pass, batch: bytearray | None = None) -> None:
        self._waiting[token] = now.mono_us + PATIENCE_US
        self.out.append(Send(self._leader, message, (batch,) if batch is not None else ()))

    def _received(self, given: PeerReceived) -> None:
        match given.message:
            case Member() as member:
                if member.node not in self.members:
                    self.members[member.node] = member
                    self.out += [Connect(member.node, member.peer_address), Send(member.node, Early())]
            case Early():
                self.early += 1
            case View() as view:
                self._viewed(view)
            case Create() as create:
                error = self._open(None, create.spec, create.segment_bytes)
                answer = Answer(create.token, 0) if error is None else _failed(create.token, error)
                self.out.append(Send(given.peer, answer))
            case Pass() as passed:
                assert given.payload is not None
                self._token += 2
                self._from[self._token] = given.peer, passed.token
                acks = passed.acks
                assert acks in ("none", "owner", "all")
                self.out.append(
                    ForwardReceived(self._token, passed.partition, given.payload, acks, passed.again)  # type: ignore[arg-type]
                )
            case Answer() as answer:
                self._answered(answer)
            case other:
                raise AssertionError(other)

    def _answered(self, answer: Answer) -> None:
        if self._waiting.pop(answer.token, None) is None:
            return
        if answer.code:
            self.out.append(Refused(answer.token, from_wire(answer.code, answer.carried)))
        elif answer.token not in self._creating.values():
            self.out.append(Forwarded(answer.token, answer.base))

    # --- topics and members ---

    def _create(self, now: Now, given: ProposeTopic) -> None:
        if self.founder:
            error = self._open(given.token, given.spec, given.segment_bytes)
            if error is not None:
                self.out.append(Refused(given.token, error))
        else:
            self._creating[given.spec.name] = given.token
            self._ask(now, given.token, Create(given.token, given.spec, given.segment_bytes))

    def _open(self, token: int | None, spec: TopicSpec, segment_bytes: int) -> RostraError | None:
        if spec.name in self.topics:
            return TopicExists(spec.name)
        self.topics[spec.name] = spec, segment_bytes
        self.out.append(TopicOpened(token, spec))
        for partition in _partitions(spec):
            self.ends[partition] = self.commits[partition] = 0
            self.out += [Open(partition, segment_bytes), Serving(partition, OWNER_EPOCH, True, 0, 0, 0)]
        return None

    def _viewed(self, view: View) -> None:
        self.views += 1
        self.members = {member.node: member for member in view.members}
        if self.own.node in self.members and not self._ready:
            self._ready = True
            self.out.append(Ready())
        founder, first, *_ = view.members
        knows = first.node == self.own.node
        address, epoch = (founder.address, OWNER_EPOCH) if knows else (first.address, OLD_EPOCH)
        for spec, segment_bytes in view.topics:
            if spec.name not in self.topics:
                self.topics[spec.name] = spec, segment_bytes
                token = self._creating.pop(spec.name, None)
                if token is not None:
                    self._waiting.pop(token, None)
                self.out.append(TopicOpened(token, spec))
                self.out += [ServedElsewhere(partition, epoch, address) for partition in _partitions(spec)]

    def _state(self) -> ClusterState:
        members = self.members.values()
        owner = next(iter(self.members))
        nodes = tuple(
            NodeState(member.node, member.address, member.peer_address, True, True, False, 0, 0) for member in members
        )
        placed = tuple(
            PlacedPartition(
                spec.name, partition.index, owner, OWNER_EPOCH, 0, end, commit, (CopyState(owner, end, True),)
            )
            for spec, _ in self.topics.values()
            for partition in _partitions(spec)
            for end, commit in [(self.ends.get(partition, 0), self.commits.get(partition, 0))]
        )
        return ClusterState(NAME, nodes, placed, (self.own.node,))


def _failed(token: int, error: RostraError) -> Answer:
    return Answer(token, -1, type(error).__name__, error.carried())


def _partitions(spec: TopicSpec) -> list[Partition]:
    return [Partition(spec.topic, PartitionIndex(index)) for index in range(spec.partitions)]


PASSING = FabricKind(
    NAME,
    GUARANTEES,
    PassingFabric,
    (Member, Early, View, Create, Pass, Answer),
    PassingSettings,
    PartitionColumns("epoch", lambda copies: copies),
)
