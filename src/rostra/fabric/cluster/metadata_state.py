"""The replicated state of the metadata group: members and topics. Where partitions are is the fabric's part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from rostra.errors import RostraError, TopicExists, UnknownMember, UnknownTopic
from rostra.fabric.api import EpochStart
from rostra.fabric.cluster.metadata_entries import (
    ClusterMember,
    EntryCodec,
    MetadataEntry,
    MetadataSnapshot,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    TopicAdded,
    TopicRemoved,
    TopicSettingsChanged,
    partitions_of,
)
from rostra.model.ids import NodeId, Partition, TopicId, text

REMOVED_MAX = 1024
"""How many removed members are remembered, so that they can be notified."""


class MetadataState:
    """Deterministic: equal at all nodes that have applied the same entries."""

    codec: ClassVar[EntryCodec] = EntryCodec()

    def __init__(self) -> None:
        self.members: dict[NodeId, ClusterMember] = {}
        self.leaving: dict[NodeId, None] = {}
        self.removed: dict[NodeId, ClusterMember] = {}
        self.topics: dict[TopicId, TopicAdded] = {}
        self.names: dict[str, TopicId] = {}

    # --- of the fabric: where partitions are ---

    def replicas_of(self, partition: Partition) -> tuple[NodeId, ...]:
        """The nodes that should have a copy of the partition, the preferred owner first."""
        raise NotImplementedError

    def is_moving(self, partition: Partition) -> bool:
        """Whether the partition's copies are on their way to other nodes."""
        return False

    def apply_placement(self, entry: MetadataEntry) -> RostraError | None:
        """Applies an entry of the fabric's own."""
        raise NotImplementedError

    def topic_added(self, made: TopicAdded) -> None:
        """A topic was added."""

    def topic_removed(self, made: TopicAdded) -> None:
        """A topic will be removed."""

    def pack_placement(self) -> msgspec.Raw:
        """The fabric's part of a snapshot."""
        raise NotImplementedError

    def restore_placement(self, snapshot: MetadataSnapshot) -> None:
        """Members are as in the snapshot, and no topic is known: adds the topics and the fabric's part."""
        raise NotImplementedError

    # --- entries ---

    def apply(self, entry: MetadataEntry) -> RostraError | None:
        """Applies an entry; returns why it had no effect, if another entry made it invalid."""
        match entry:
            case TopicAdded(spec=spec):
                if spec.topic in self.topics:
                    # A repeated entry, as after a change of leaders.
                    return None
                if spec.name in self.names:
                    return TopicExists(spec.name)
                self.add_topic(entry)
            case TopicRemoved(topic=topic):
                return self._drop(topic)
            case TopicSettingsChanged(topic=topic):
                return self._change(topic, entry)
            case NodeJoined(member=member):
                if member.node not in self.removed:
                    self.members[member.node] = member
            case NodeLeaving(node=node):
                if node in self.members:
                    self.leaving[node] = None
                elif node not in self.removed:
                    return UnknownMember(text(node))
            case NodeLeft(node=node):
                self._remove(node)
            case MetadataSnapshot():
                self._restore(entry)
            case _:
                return self.apply_placement(entry)
        return None

    def add_topic(self, made: TopicAdded) -> None:
        self.topics[made.spec.topic] = made
        self.names[made.spec.name] = made.spec.topic
        self.topic_added(made)

    def _drop(self, topic: TopicId) -> RostraError | None:
        made = self.topics.get(topic)
        if made is None:
            return UnknownTopic(str(topic))
        self.topic_removed(made)
        del self.topics[topic]
        del self.names[made.spec.name]
        return None

    def _change(self, topic: TopicId, entry: TopicSettingsChanged) -> RostraError | None:
        made = self.topics.get(topic)
        if made is None:
            return UnknownTopic(str(topic))
        spec = msgspec.structs.replace(made.spec, settings=entry.settings)
        self.topics[topic] = msgspec.structs.replace(made, spec=spec, segment_bytes=entry.segment_bytes)
        return None

    def _remove(self, node: NodeId) -> None:
        self.leaving.pop(node, None)
        member = self.members.pop(node, None)
        if member is not None:
            self.removed[node] = member
        if len(self.removed) > REMOVED_MAX:
            del self.removed[next(iter(self.removed))]

    # --- snapshots ---

    def snapshot(self, epochs: tuple[EpochStart, ...]) -> MetadataSnapshot:
        return MetadataSnapshot(
            (),
            epochs,
            tuple(self.members.values()),
            tuple(self.leaving),
            tuple(self.removed.values()),
            tuple(self.topics.values()),
            self.pack_placement(),
        )

    def _restore(self, snapshot: MetadataSnapshot) -> None:
        self.members = {member.node: member for member in snapshot.members}
        self.leaving = dict.fromkeys(snapshot.leaving)
        self.removed = {member.node: member for member in snapshot.removed}
        self.topics, self.names = {}, {}
        self.restore_placement(snapshot)

    # --- questions ---

    @property
    def remaining(self) -> list[NodeId]:
        """Members that are not leaving."""
        return [node for node in sorted(self.members) if node not in self.leaving]

    def partitions(self) -> Iterator[Partition]:
        for made in self.topics.values():
            yield from partitions_of(made)
