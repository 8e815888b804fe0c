"""The metadata group at one node: the catalogue it applies, and those who wait for an entry of it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never

import msgspec

from rostra.errors import RostraError, Unavailable, UnknownTopic, from_wire
from rostra.fabric.api import (
    METADATA,
    Append,
    Buffer,
    Confirmed,
    FabricEffect,
    Open,
    OperationDone,
    Read,
    Refused,
    Send,
    TopicChanged,
    TopicClosed,
    Truncate,
)
from rostra.fabric.raft.consensus.membership import MembershipChange
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import (
    AlterTopicRequest,
    CreateTopicRequest,
    DropTopicRequest,
    JoinReply,
    JoinRequest,
    RemoveNodeRequest,
    RequestRefused,
)
from rostra.fabric.raft.metadata.metadata_state import (
    META,
    REPLICAS,
    ClusterMember,
    Entry,
    MetadataSnapshot,
    MetadataState,
    NodeJoined,
    NodeLeaving,
    Requester,
    TopicAdded,
    TopicRemoved,
    TopicSettingsChanged,
    entry_batch,
    read_metadata_entry,
)
from rostra.model.batch import CHECKPOINT, batch_length, last_offset
from rostra.model.ids import TopicId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

Ask = CreateTopicRequest | DropTopicRequest | AlterTopicRequest | RemoveNodeRequest

REPLAY_BYTES = 1 << 20
ASK_AGAIN_US = 500_000
GIVE_UP_US = 10_000_000
GONE_MAX = 256
"""Topics deleted last, whose ids are remembered."""


class PendingProposal(msgspec.Struct):
    ask: Ask
    again_us: int
    give_up_us: int


class PendingConfirmation(msgspec.Struct):
    """`commit` once it is known what must be applied."""

    again_us: int
    give_up_us: int
    commit: int | None = None


class MetadataGroup:
    def __init__(self, raft: Raft, group: RaftGroup) -> None:
        self._raft = raft
        self.group = group
        self.catalogue = MetadataState()
        self._entries: deque[tuple[int, Entry | None]] = deque()
        """What the log holds beyond what is applied, with where each ends."""
        self.applied = group.copy.first
        self._anew = False
        self._compares = False
        """The catalogue was begun anew: what is in it says nothing of what is not there any more."""
        self._grown_bytes = 0
        """How much the log has grown since its last snapshot, and how large that was."""
        self._snapshot_bytes = 0
        self._gone: dict[TopicId, None] = {}
        self._waiting: dict[int, PendingProposal] = {}
        self._confirming: dict[int, PendingConfirmation] = {}
        # A damaged log will come from the others; one that nobody else has is read as far as it goes.
        alone = [row.config.voters for row in group.hard.configs[-1:]] == [(group.me,)]
        self.replaying = group.copy.end > group.copy.first and (group.complete or alone)

    # --- the log, as it is written and read ---

    def replay_from(self, offset: int) -> Read:
        return Read(0, META, offset, self.group.copy.end, REPLAY_BYTES)

    def replayed(self, batches: bytes, following: int) -> Read | None:
        """Takes in what the disk had; the next read, if that was not all."""
        view = memoryview(batches)
        at = 0
        while at < len(view):
            length = batch_length(view, at)
            self._found(view[at : at + length])
            at += length
        if batches and following < self.group.copy.end:
            return self.replay_from(following)
        self.replaying = False
        return None

    def watch(self, effects: list[FabricEffect]) -> None:
        """What the group does to its log, which is where the entries are."""
        for effect in effects:
            if isinstance(effect, Append):
                self._found(effect.batch)
            elif isinstance(effect, Truncate):
                self.cut(effect.offset)
            elif isinstance(effect, Open):
                # The copy is filled anew: what it says will be applied when it is whole, and to an empty catalogue.
                self._entries.clear()
                self._anew = True

    def _found(self, batch: Buffer) -> None:
        entry = read_metadata_entry(batch)
        self._entries.append((last_offset(batch) + 1, entry))
        self._grown_bytes += len(batch)
        if isinstance(entry, MetadataSnapshot):
            self._grown_bytes, self._snapshot_bytes = 0, len(batch)

    def cut(self, offset: int) -> None:
        while self._entries and self._entries[-1][0] > offset:
            self._entries.pop()

    def apply(self) -> list[FabricEffect]:
        """Everything committed takes effect; first in the catalogue, then at once in what this node does."""
        if not self._entries:
            return []
        if not self.group.complete and not self.group.stranded:
            return []
        applied: list[tuple[Entry, RostraError | None]] = []
        while self._entries and self._entries[0][0] <= self.group.commit:
            if self._anew:
                self._anew = False
                self._compares = True
                self.catalogue = MetadataState()
            self.applied, entry = self._entries.popleft()
            if entry is not None:
                applied.append((entry, self.catalogue.apply(entry)))
                self._trim(entry)
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
                self._forget(entry.topic)
                effects += self._raft.hosting.close_topic(entry.topic)
                effects.append(TopicClosed(token, entry.topic))
            elif isinstance(entry, TopicSettingsChanged) and token is not None:
                changed.append(self._changed(token, entry.topic))
            elif isinstance(entry, NodeLeaving) and token is not None:
                effects.append(OperationDone(token))
            elif isinstance(entry, MetadataSnapshot):
                tokens = {made.spec.topic: self._token_of(made) for made in entry.topics}
                answered |= {topic: token for topic, token in tokens.items() if token is not None}
        entries = [entry for entry, _ in applied]
        anew = self._compares or any(isinstance(entry, MetadataSnapshot) for entry in entries)
        self._compares = False
        return [*effects, *self._raft.hosting.follow_catalogue(answered, entries, anew=anew), *changed]

    def _changed(self, token: int, topic: TopicId) -> FabricEffect:
        made = self.catalogue.topics.get(topic)
        return TopicChanged(token, made.spec) if made is not None else Refused(token, UnknownTopic(str(topic)))

    def _forget(self, topic: TopicId) -> None:
        """A wish to make it that was under way for long must not bring it back."""
        self._gone[topic] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def _token_of(self, entry: Entry) -> int | None:
        """The token of this node's own client, if it still waits for the entry."""
        if not isinstance(entry, TopicAdded | TopicRemoved | TopicSettingsChanged | NodeLeaving):
            return None
        asker = entry.asker
        if asker.node != self._raft.node or asker.boot != self._raft.boot:
            return None
        return asker.token if self._waiting.pop(asker.token, None) is not None else None

    # --- its length ---

    def condense(self) -> None:
        """Writes a snapshot when the log has grown enough, and nothing is under way that would not be in it."""
        group = self.group
        enough = self._grown_bytes > max(self._raft.settings.catalogue_bytes, 2 * self._snapshot_bytes)
        if enough and self.leads and self.applied == group.copy.end:
            snapshot = self.catalogue.snapshot(group.copy.epochs())
            group.write(self._raft.now, entry_batch(snapshot, self._raft.now.wall_us), CHECKPOINT)

    def _trim(self, entry: Entry) -> None:
        """A snapshot that is committed stands for all before it; followers trim as their leader does."""
        if isinstance(entry, MetadataSnapshot):
            self.group.advance_start(self._raft.now, self.applied - 1)

    # --- asking ---

    def ask(self, ask: Ask) -> list[FabricEffect]:
        if self.group.stranded:
            return [Refused(ask.token, self.group.damage)]
        now_us = self._raft.now.mono_us
        self._waiting[ask.token] = PendingProposal(ask, now_us + ASK_AGAIN_US, now_us + GIVE_UP_US)
        return self._pass_on(ask)

    def _pass_on(self, ask: Ask) -> list[FabricEffect]:
        """To the leader of the catalogue, wherever it is; without one it is asked again later."""
        leader = self.group.leader
        if leader == self._raft.node:
            return self.asked(ask)
        return [Send(leader, ask)] if leader is not None else []

    def remind(self) -> list[FabricEffect]:
        """Asks may be lost with a leader or on the way. Repeating one is harmless: it names the topic by its id."""
        now_us = self._raft.now.mono_us
        effects: list[FabricEffect] = []
        for token, waiting in list(self._waiting.items()):
            if now_us >= waiting.give_up_us:
                del self._waiting[token]
                effects.append(Refused(token, _no_answer()))
            elif now_us >= waiting.again_us:
                waiting.again_us = now_us + ASK_AGAIN_US
                effects += self._pass_on(waiting.ask)
        return effects + self._ask_again()

    def refused(self, message: RequestRefused) -> list[FabricEffect]:
        waiting = self._waiting.get(message.token) if message.boot == self._raft.boot else None
        if waiting is None:
            return []
        if isinstance(waiting.ask, DropTopicRequest) and waiting.ask.topic in self.catalogue.topics:
            # It is gone where the leader is, because this was asked twice: the entry that says so is on its way.
            return []
        del self._waiting[message.token]
        return [Refused(message.token, from_wire(message.code, dict(message.carried)))]

    def give_up(self, error: RostraError) -> list[FabricEffect]:
        """This node will not hear of anything that it waits for."""
        tokens = [*self._waiting, *self._confirming]
        self._waiting.clear()
        self._confirming.clear()
        return [Refused(token, error) for token in tokens]

    # --- reading ---

    def confirm(self, token: int) -> None:
        now_us = self._raft.now.mono_us
        self._confirming[token] = PendingConfirmation(now_us + ASK_AGAIN_US, now_us + GIVE_UP_US)
        self.group.ask_read(self._raft.now, self._raft.since_boot(token))

    @property
    def awaits_word(self) -> bool:
        return bool(self._confirming or self.group.reading.told)

    def confirmed(self) -> list[FabricEffect]:
        """Those whose question is answered, and the answer applied."""
        told, self.group.reading.told = self.group.reading.told, []
        for since_boot, commit in told:
            token = since_boot % (1 << 40)
            if token in self._confirming and commit is not None and since_boot == self._raft.since_boot(token):
                self._confirming[token].commit = commit
        # Applied, not committed: a copy that is being refilled learns the commit before it can apply anything.
        known = [t for t, c in self._confirming.items() if c.commit is not None and c.commit <= self.applied]
        for token in known:
            del self._confirming[token]
        return [Confirmed(token) for token in known]

    def _ask_again(self) -> list[FabricEffect]:
        now_us = self._raft.now.mono_us
        effects: list[FabricEffect] = []
        for token, confirming in list(self._confirming.items()):
            if now_us >= confirming.give_up_us:
                del self._confirming[token]
                effects.append(Refused(token, _no_answer()))
            elif confirming.commit is None and now_us >= confirming.again_us:
                confirming.again_us = now_us + ASK_AGAIN_US
                self.group.ask_read(self._raft.now, self._raft.since_boot(token))
        return effects

    # --- as the leader ---

    @property
    def leads(self) -> bool:
        """Whether this node may decide: it leads, and knows all that was decided before."""
        return self.group.role is Role.LEADER and self.group.is_current and self.group.complete

    @property
    def under_way(self) -> bool:
        """Whether something was decided that has not taken effect."""
        return bool(self._entries)

    def write(self, entry: Entry) -> bool:
        """Whether the entry is in the log now; one that is on its way is not written twice."""
        if any(entry == other for _, other in self._entries):
            return True
        return self.group.write(self._raft.now, entry_batch(entry, self._raft.now.wall_us)) is None

    def asked(self, ask: Ask) -> list[FabricEffect]:
        if not self.leads:
            return []
        asker = Requester(ask.origin, ask.boot, ask.token)
        match ask:
            case CreateTopicRequest():
                entry, error = self._make(ask, asker)
            case DropTopicRequest():
                entry, error = self._drop(ask, asker)
            case AlterTopicRequest():
                # An unknown one too, as with a drop: the log answers.
                entry, error = TopicSettingsChanged(ask.topic, ask.settings, ask.segment_bytes, asker), None
            case RemoveNodeRequest():
                entry, error = self._remove(ask, asker)
            case _:
                assert_never(ask)
        if error is not None:
            return self._answer(ask, error)
        if entry is not None:
            self.write(entry)
        return []

    def _make(self, ask: CreateTopicRequest, asker: Requester) -> tuple[Entry | None, RostraError | None]:
        topic = self.catalogue.names.get(ask.spec.name)
        under_way = [entry for _, entry in self._entries if isinstance(entry, TopicAdded)]
        known = topic == ask.spec.topic or any(entry.spec.topic == ask.spec.topic for entry in under_way)
        if known or not self.catalogue.staying:
            # Asked again: the catalogue will answer, or nobody can be chosen yet.
            return None, None
        if ask.spec.topic in self.catalogue.topics or ask.spec.topic in self._gone:
            # Said twice. It was made, which its asker will see when it has applied as much.
            return None, None
        # Of a name that is taken too: that it is, may not be committed yet, so the log answers.
        away = tuple(node for node in self.catalogue.staying if not self._raft.peers.is_there(node))
        replicas = self.catalogue.place(ask.spec.partitions, ask.replicas or REPLICAS, away)
        return TopicAdded(ask.spec, ask.segment_bytes, replicas, asker, ask.replicas), None

    def _drop(self, ask: DropTopicRequest, asker: Requester) -> tuple[Entry | None, RostraError | None]:
        if any(isinstance(entry, TopicRemoved) and entry.topic == ask.topic for _, entry in self._entries):
            return None, None
        # An unknown one too: its asker may not have applied yet that its own wish was fulfilled, so the log answers.
        return TopicRemoved(ask.topic, asker), None

    def _remove(self, ask: RemoveNodeRequest, asker: Requester) -> tuple[Entry | None, RostraError | None]:
        catalogue = self.catalogue
        if ask.node not in catalogue.leaving and ask.node not in catalogue.removed:
            error = self._raft.placing.no_removal(ask.node)
            if error is not None:
                return None, error
        # Written also if it was said before: whoever asks is answered by an entry.
        return NodeLeaving(ask.node, asker), None

    def _answer(self, ask: Ask, error: RostraError) -> list[FabricEffect]:
        answer = RequestRefused(ask.token, type(error).__name__, error.carried(), ask.boot)
        return self.refused(answer) if ask.origin == self._raft.node else [Send(ask.origin, answer)]

    def joining(self, message: JoinRequest) -> list[FabricEffect]:
        """First the member is in the catalogue, so that everybody can reach it; then it is a learner, then a voter."""
        group = self.group
        raft = self._raft
        if group.role is not Role.LEADER:
            return [Send(group.leader, message)] if group.leader not in (None, message.node) else []
        if not self.leads or message.node in self.catalogue.leaving:
            return []
        if message.node in self.catalogue.removed:
            raft.peers.tell_removed(message.node, message.peer_address)
            return []
        member = ClusterMember(message.node, message.address, message.peer_address)
        if self.catalogue.members.get(message.node) != member:
            self.write(NodeJoined(member))
            return []
        if message.node not in group.config.everyone:
            group.change(raft.now, MembershipChange.ADD, message.node)
        if message.node == raft.node:
            return []
        return [Send(message.node, JoinReply(raft.node, raft.peer_address))]

    def lacks(self, founders: tuple[ClusterMember, ...]) -> bool:
        """Whether this node is to enter the founders, whom nobody else announces."""
        known, removed = self.catalogue.members, self.catalogue.removed
        for founder in founders:
            if founder.node not in known and founder.node not in removed:
                return self.leads
        return False

    def enter(self, founders: tuple[ClusterMember, ...]) -> list[FabricEffect]:
        effects: list[FabricEffect] = []
        for founder in founders:
            if founder.node not in self.catalogue.members:
                effects += self.joining(JoinRequest(founder.node, founder.address, founder.peer_address))
        return effects


def _no_answer() -> RostraError:
    return Unavailable(METADATA, 0, "its leader did not answer in time")
