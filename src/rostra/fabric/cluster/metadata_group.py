"""The metadata group at one node: a replicated state machine for members, topics and replica assignments.

Every node is a member of this group and applies its committed entries to a `MetadataState`, so that all nodes go
through the same states. A node that receives a request (create, drop, alter a topic; remove a node) forwards it to the
group's leader and repeats it until it is answered; the leader checks it and appends an entry that names the requester,
and the requester answers its client when it applies that entry. Requests are idempotent: they carry the topic's id.
`confirm` is a linearizable read: it gets the commit offset by ReadIndex and waits until that is applied. When the log
has grown enough the leader writes a `MetadataSnapshot`, and every node trims its log to it.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar, assert_never

import msgspec

from rostra.errors import RostraError, Unavailable, UnknownTopic, from_wire
from rostra.fabric.api import (
    METADATA,
    Append,
    Blocked,
    Buffer,
    Committed,
    Confirmed,
    FabricEffect,
    Open,
    OperationDone,
    Read,
    Refused,
    Send,
    ServedElsewhere,
    Serving,
    TopicChanged,
    TopicClosed,
    Truncate,
)
from rostra.fabric.cluster.messages import (
    AlterTopicRequest,
    CreateTopicRequest,
    DropTopicRequest,
    JoinReply,
    JoinRequest,
    MetadataRequest,
    RemoveNodeRequest,
    RequestReply,
)
from rostra.fabric.cluster.metadata_entries import (
    METADATA_PARTITION,
    ClusterMember,
    MetadataEntry,
    MetadataSnapshot,
    NodeJoined,
    NodeLeaving,
    Requester,
    TopicAdded,
    TopicRemoved,
    TopicSettingsChanged,
)
from rostra.fabric.cluster.metadata_state import MetadataState
from rostra.fabric.cluster.settings import ClusterSettings
from rostra.fabric.consensus.membership import MembershipChange
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.links.node_context import NodeContext
from rostra.model.batch import CHECKPOINT, batch_length, last_offset
from rostra.model.ids import NodeId, TopicId

S = TypeVar("S", bound=MetadataState)

BROKER_EFFECTS = (Serving, ServedElsewhere, Blocked, Committed)
"""Effects about a partition that are for the broker; the broker does not know the metadata partition."""

REPLAY_BYTES = 1 << 20
RETRY_US = 500_000
REQUEST_TIMEOUT_US = 10_000_000
DELETED_TOPICS_MAX = 256
"""How many ids of deleted topics are remembered."""


class PendingProposal(msgspec.Struct):
    request: MetadataRequest
    retry_us: int
    deadline_us: int


class PendingConfirmation(msgspec.Struct):
    """`commit` is set when the read index is known."""

    retry_us: int
    deadline_us: int
    commit: int | None = None


class Placement(Protocol):
    """What the fabric decides about partitions, as the metadata leader."""

    def place_topic(self, request: CreateTopicRequest) -> tuple[tuple[NodeId, ...], ...]:
        """The nodes of each partition of a new topic, the preferred owner first."""

    def removal_error(self, node: NodeId) -> RostraError | None:
        """Returns why this member cannot be removed now, or None."""


class MetadataObserver(Protocol):
    """What the fabric does on this node when the metadata changes."""

    def apply_metadata(
        self, answered: dict[TopicId, int], entries: list[MetadataEntry], *, reset: bool = False
    ) -> list[FabricEffect]:
        """Makes topics, replicas and members follow the metadata. `answered`: tokens by created topic.

        `reset`: the state was replaced, so everything must be compared.
        """

    def close_topic(self, topic: TopicId) -> list[FabricEffect]:
        """The topic was deleted."""


class FormerMembers(Protocol):
    def notify_removed(self, node: NodeId, peer_address: str = "") -> None:
        """Notifies a former member that it was removed."""


class MetadataGroup(Generic[S]):
    """`open` gives it the group, after the node has started; `attach` the parts of the fabric that it calls."""

    group: RaftGroup
    _placement: Placement
    _observer: MetadataObserver
    _former_members: FormerMembers

    def __init__(self, context: NodeContext, settings: ClusterSettings, state: type[S]) -> None:
        self._context = context
        self._settings = settings
        self._new_state = state
        self.state = state()
        self.loaded = False
        """Whether the log has been read, so that this node can answer its peers."""
        self.changed = False
        """The group did something in this step: entries may be committed."""
        self.replaying = False
        self._unapplied: deque[tuple[int, MetadataEntry | None]] = deque()
        """Entries in the log that are not applied yet, each with its end."""
        self.applied = 0
        self._resets_state = False
        self._state_was_reset = False
        """The state was rebuilt from a snapshot: compare all of it with what the broker knows, also deletions."""
        self._log_bytes = 0
        """Bytes of the log since its last snapshot; and the size of that snapshot."""
        self._snapshot_bytes = 0
        self._deleted_topics: dict[TopicId, None] = {}
        self._proposals: dict[int, PendingProposal] = {}
        self._confirmations: dict[int, PendingConfirmation] = {}

    def attach(self, placement: Placement, observer: MetadataObserver, former_members: FormerMembers) -> None:
        self._placement = placement
        self._observer = observer
        self._former_members = former_members

    def open(self, group: RaftGroup) -> None:
        self.group = group
        self.applied = group.log.first
        group.observer = self._observe
        # A damaged log is replaced by the leader's; the only copy is read as far as possible.
        alone = [row.config.voters for row in group.configs[-1:]] == [(group.node,)]
        self.replaying = group.log.end > group.log.first and (group.complete or alone)

    # --- reading the log ---

    def replay_from(self, offset: int) -> Read:
        return Read(0, METADATA_PARTITION, offset, self.group.log.end, REPLAY_BYTES)

    def replayed(self, batches: bytes, following: int) -> Read | None:
        """Takes batches read from disk; returns the next read, or None at the end."""
        view = memoryview(batches)
        at = 0
        while at < len(view):
            length = batch_length(view, at)
            self._entry_appended(view[at : at + length])
            at += length
        if batches and following < self.group.log.end:
            return self.replay_from(following)
        self.replaying = False
        return None

    def _observe(self, effects: list[FabricEffect]) -> list[FabricEffect]:
        """Follows the group's changes to its log; keeps effects from the broker, which does not know this partition."""
        self.changed = True
        for effect in effects:
            if isinstance(effect, Append):
                self._entry_appended(effect.batch)
            elif isinstance(effect, Truncate):
                self.truncate(effect.offset)
            elif isinstance(effect, Open):
                # A snapshot is being installed: its entries are applied to an empty state once the replica is complete.
                self._unapplied.clear()
                self._resets_state = True
        return [effect for effect in effects if not isinstance(effect, BROKER_EFFECTS)]

    def _entry_appended(self, batch: Buffer) -> None:
        entry = self.state.codec.read(batch)
        self._unapplied.append((last_offset(batch) + 1, entry))
        self._log_bytes += len(batch)
        if isinstance(entry, MetadataSnapshot):
            self._log_bytes, self._snapshot_bytes = 0, len(batch)

    def truncate(self, offset: int) -> None:
        while self._unapplied and self._unapplied[-1][0] > offset:
            self._unapplied.pop()

    def apply(self) -> list[FabricEffect]:
        """Applies committed entries to the state, then makes this node follow it."""
        if not self._unapplied:
            return []
        if not self.group.complete and not self.group.only_copy_damaged:
            return []
        applied: list[tuple[MetadataEntry, RostraError | None]] = []
        while self._unapplied and self._unapplied[0][0] <= self.group.commit:
            if self._resets_state:
                self._resets_state = False
                self._state_was_reset = True
                self.state = self._new_state()
            self.applied, entry = self._unapplied.popleft()
            if entry is not None:
                applied.append((entry, self.state.apply(entry)))
                self._trim_log(entry)
        if not applied:
            return []
        effects: list[FabricEffect] = []
        answered: dict[TopicId, int] = {}
        changed: list[FabricEffect] = []
        for entry, error in applied:
            token = self._token_of(entry)
            if token is not None and error is not None:
                effects.append(Refused(token, error))
            elif isinstance(entry, TopicAdded) and token is not None:
                answered[entry.spec.topic] = token
            elif isinstance(entry, TopicRemoved) and error is None:
                self._remember_deleted(entry.topic)
                effects += self._observer.close_topic(entry.topic)
                effects.append(TopicClosed(token, entry.topic))
            elif isinstance(entry, TopicSettingsChanged) and token is not None:
                changed.append(self._changed(token, entry.topic))
            elif isinstance(entry, NodeLeaving) and token is not None:
                effects.append(OperationDone(token))
            elif isinstance(entry, MetadataSnapshot):
                tokens = {made.spec.topic: self._token_of(made) for made in entry.topics}
                answered |= {topic: token for topic, token in tokens.items() if token is not None}
        entries = [entry for entry, _ in applied]
        reset = self._state_was_reset or any(isinstance(entry, MetadataSnapshot) for entry in entries)
        self._state_was_reset = False
        return [*effects, *self._observer.apply_metadata(answered, entries, reset=reset), *changed]

    def _changed(self, token: int, topic: TopicId) -> FabricEffect:
        made = self.state.topics.get(topic)
        return TopicChanged(token, made.spec) if made is not None else Refused(token, UnknownTopic(str(topic)))

    def _remember_deleted(self, topic: TopicId) -> None:
        """Remembers a deleted topic, so that a delayed request to create it does not bring it back."""
        self._deleted_topics[topic] = None
        if len(self._deleted_topics) > DELETED_TOPICS_MAX:
            del self._deleted_topics[next(iter(self._deleted_topics))]

    def _token_of(self, entry: MetadataEntry) -> int | None:
        """The token of the local request that the entry answers, if it is still pending."""
        if not isinstance(entry, TopicAdded | TopicRemoved | TopicSettingsChanged | NodeLeaving):
            return None
        requester = entry.requester
        if requester.node != self._context.node or requester.boot != self._context.boot:
            return None
        return requester.token if self._proposals.pop(requester.token, None) is not None else None

    # --- snapshots ---

    def write_snapshot(self) -> None:
        """Writes a snapshot when the log has grown enough and everything in it is applied."""
        group = self.group
        enough = self._log_bytes > max(self._settings.metadata_log_bytes, 2 * self._snapshot_bytes)
        if enough and self.may_decide and self.applied == group.log.end:
            snapshot = self.state.snapshot(group.log.epochs())
            group.propose(self._context.now, self.state.codec.batch(snapshot, self._context.now.wall_us), CHECKPOINT)

    def _trim_log(self, entry: MetadataEntry) -> None:
        """Trims the log to a committed snapshot; followers trim as their leader does."""
        if isinstance(entry, MetadataSnapshot):
            self.group.advance_log_start(self._context.now, self.applied - 1)

    # --- requests of this node ---

    def request(self, request: MetadataRequest) -> list[FabricEffect]:
        if self.group.only_copy_damaged:
            return [Refused(request.token, self.group.damage_error)]
        now_us = self._context.now.mono_us
        self._proposals[request.token] = PendingProposal(request, now_us + RETRY_US, now_us + REQUEST_TIMEOUT_US)
        return self._forward(request)

    def _forward(self, request: MetadataRequest) -> list[FabricEffect]:
        """Sends the request to the metadata leader; without one it is retried later."""
        leader = self.group.leader
        if leader == self._context.node:
            return self.request_received(request)
        return [Send(leader, request)] if leader is not None else []

    def retry_requests(self) -> list[FabricEffect]:
        """Repeats pending requests, which may be lost; they are idempotent because they carry the topic's id."""
        now_us = self._context.now.mono_us
        effects: list[FabricEffect] = []
        for token, proposal in list(self._proposals.items()):
            if now_us >= proposal.deadline_us:
                del self._proposals[token]
                effects.append(Refused(token, _no_answer()))
            elif now_us >= proposal.retry_us:
                proposal.retry_us = now_us + RETRY_US
                effects += self._forward(proposal.request)
        return effects + self._retry_confirmations()

    def request_refused(self, message: RequestReply) -> list[FabricEffect]:
        proposal = self._proposals.get(message.token) if message.boot == self._context.boot else None
        if proposal is None:
            return []
        if isinstance(proposal.request, DropTopicRequest) and proposal.request.topic in self.state.topics:
            # A repeated request found the topic deleted at the leader; the entry that deleted it will answer.
            return []
        del self._proposals[message.token]
        return [Refused(message.token, from_wire(message.code, dict(message.carried)))]

    def refuse_all(self, error: RostraError) -> list[FabricEffect]:
        """Refuses all pending requests and confirmations."""
        tokens = [*self._proposals, *self._confirmations]
        self._proposals.clear()
        self._confirmations.clear()
        return [Refused(token, error) for token in tokens]

    # --- confirmations ---

    def confirm(self, token: int) -> None:
        now_us = self._context.now.mono_us
        self._confirmations[token] = PendingConfirmation(now_us + RETRY_US, now_us + REQUEST_TIMEOUT_US)
        self.group.request_read_index(self._context.now, self._context.boot_token(token))

    @property
    def awaits_confirmation(self) -> bool:
        return bool(self._confirmations or self.group.read_index.results)

    def take_confirmed(self) -> list[FabricEffect]:
        """Answers the confirmations whose read index is applied."""
        results, self.group.read_index.results = self.group.read_index.results, []
        for since_boot, commit in results:
            token = self._context.own_token(since_boot)
            if token in self._confirmations and commit is not None:
                self._confirmations[token].commit = commit
        # Applied, not committed: a replica that installs a snapshot knows the commit before it applies anything.
        known = [t for t, c in self._confirmations.items() if c.commit is not None and c.commit <= self.applied]
        for token in known:
            del self._confirmations[token]
        return [Confirmed(token) for token in known]

    def _retry_confirmations(self) -> list[FabricEffect]:
        now_us = self._context.now.mono_us
        effects: list[FabricEffect] = []
        for token, confirmation in list(self._confirmations.items()):
            if now_us >= confirmation.deadline_us:
                del self._confirmations[token]
                effects.append(Refused(token, _no_answer()))
            elif confirmation.commit is None and now_us >= confirmation.retry_us:
                confirmation.retry_us = now_us + RETRY_US
                self.group.request_read_index(self._context.now, self._context.boot_token(token))
        return effects

    # --- as the leader ---

    @property
    def may_decide(self) -> bool:
        """Whether this node may append entries: it leads and knows all committed entries."""
        return self.group.is_owner and self.group.knows_commit and self.group.complete

    @property
    def has_unapplied(self) -> bool:
        """Whether the log has entries that are not applied."""
        return bool(self._unapplied)

    def append(self, entry: MetadataEntry) -> bool:
        """Appends an entry unless it is in the log unapplied; returns whether it is in the log."""
        if any(entry == other for _, other in self._unapplied):
            return True
        batch = self.state.codec.batch(entry, self._context.now.wall_us)
        return not isinstance(self.group.propose(self._context.now, batch), RostraError)

    def request_received(self, request: MetadataRequest) -> list[FabricEffect]:
        if not self.may_decide:
            return []
        requester = Requester(request.origin, request.boot, request.token)
        match request:
            case CreateTopicRequest():
                entry, error = self._create_topic(request, requester)
            case DropTopicRequest():
                entry, error = self._drop_topic(request, requester)
            case AlterTopicRequest():
                # Also for an unknown topic, as with a drop: the entry answers.
                entry, error = (
                    TopicSettingsChanged(request.topic, request.settings, request.segment_bytes, requester),
                    None,
                )
            case RemoveNodeRequest():
                entry, error = self._remove_node(request, requester)
            case _:
                assert_never(request)
        if error is not None:
            return self._refuse(request, error)
        if entry is not None:
            self.append(entry)
        return []

    def _create_topic(
        self, request: CreateTopicRequest, requester: Requester
    ) -> tuple[MetadataEntry | None, RostraError | None]:
        topic = self.state.names.get(request.spec.name)
        unapplied = [entry for _, entry in self._unapplied if isinstance(entry, TopicAdded)]
        known = topic == request.spec.topic or any(entry.spec.topic == request.spec.topic for entry in unapplied)
        if known or not self.state.remaining:
            # A repeated request, which its entry will answer; or no node can be assigned yet.
            return None, None
        if request.spec.topic in self.state.topics or request.spec.topic in self._deleted_topics:
            # A repeated request: the requester sees the topic when it applies the entry.
            return None, None
        # Also if the name is taken: that may not be committed yet, so the entry answers.
        replicas = self._placement.place_topic(request)
        return TopicAdded(request.spec, request.segment_bytes, replicas, requester, request.replicas), None

    def _drop_topic(
        self, request: DropTopicRequest, requester: Requester
    ) -> tuple[MetadataEntry | None, RostraError | None]:
        if any(isinstance(entry, TopicRemoved) and entry.topic == request.topic for _, entry in self._unapplied):
            return None, None
        # Also for an unknown topic: it may have been dropped by this same request, so the entry answers.
        return TopicRemoved(request.topic, requester), None

    def _remove_node(
        self, request: RemoveNodeRequest, requester: Requester
    ) -> tuple[MetadataEntry | None, RostraError | None]:
        state = self.state
        if request.node not in state.leaving and request.node not in state.removed:
            error = self._placement.removal_error(request.node)
            if error is not None:
                return None, error
        # Appended also if the node is leaving already: an entry answers every request.
        return NodeLeaving(request.node, requester), None

    def _refuse(self, request: MetadataRequest, error: RostraError) -> list[FabricEffect]:
        answer = RequestReply(request.token, type(error).__name__, error.carried(), request.boot)
        return self.request_refused(answer) if request.origin == self._context.node else [Send(request.origin, answer)]

    def join_requested(self, message: JoinRequest) -> list[FabricEffect]:
        """Adds the node to the metadata, so that every node can reach it; then to the group, as learner, then voter."""
        group = self.group
        if not group.is_owner:
            return [Send(group.leader, message)] if group.leader not in (None, message.node) else []
        if not self.may_decide or message.node in self.state.leaving:
            return []
        if message.node in self.state.removed:
            self._former_members.notify_removed(message.node, message.peer_address)
            return []
        member = ClusterMember(message.node, message.address, message.peer_address, message.name)
        if self.state.members.get(message.node) != member:
            self.append(NodeJoined(member))
            return []
        if message.node not in group.config.members:
            group.change_membership(self._context.now, MembershipChange.ADD, message.node)
        if message.node == self._context.node:
            return []
        return [Send(message.node, JoinReply(self._context.node, self._context.peer_address))]

    def lacks_founders(self, founders: tuple[ClusterMember, ...]) -> bool:
        """Whether this leader has yet to add the founders, which do not send JoinRequest."""
        known, removed = self.state.members, self.state.removed
        for founder in founders:
            if founder.node not in known and founder.node not in removed:
                return self.may_decide
        return False

    def add_founders(self, founders: tuple[ClusterMember, ...]) -> list[FabricEffect]:
        effects: list[FabricEffect] = []
        for founder in founders:
            if founder.node not in self.state.members:
                effects += self.join_requested(JoinRequest(founder.node, founder.address, founder.peer_address))
        return effects


def _no_answer() -> RostraError:
    return Unavailable(METADATA, 0, "its leader did not answer in time")
