"""The replicas on this node: creates and drops groups, routes to other partitions, balances leaders."""

from __future__ import annotations

from collections.abc import Callable

from rostra.errors import Moved, RostraError, Unavailable, UnknownPartition
from rostra.fabric.api import (
    Drop,
    Echo,
    FabricEffect,
    KnownNodes,
    Persist,
    ServedElsewhere,
    TopicChanged,
    TopicClosed,
    TopicOpened,
)
from rostra.fabric.cluster.metadata_entries import (
    METADATA_PARTITION,
    MetadataEntry,
    MetadataSnapshot,
    NodeJoined,
    NodeLeft,
    TopicAdded,
    TopicSettingsChanged,
    partitions_of,
)
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.consensus.group_set import GroupSet
from rostra.fabric.consensus.hard_state import GroupConfig, HardState, key_of, pack_hard_state
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.raft.replica_assignments import ReassignmentDone, ReassignmentStarted, ReplicaAssignments
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId, Partition, TopicId

RETIRED = "retired/"


class Replicas:
    def __init__(
        self,
        context: NodeContext,
        settings: RaftSettings,
        groups: GroupSet,
        metadata: MetadataGroup[ReplicaAssignments],
        peers: PeerSet,
    ) -> None:
        self._context = context
        self._settings = settings
        self._groups = groups
        self._metadata = metadata
        self._peers = peers
        self.group_created: Callable[[], None] = lambda: None
        """Called when a group was created: messages may wait for it."""
        self.topics: dict[TopicId, TopicAdded] = {}
        """Topics that were reported to the broker."""
        self._routes: dict[Partition, str] = {}
        """Last reported addresses of partitions without a replica here."""
        self.returned_nodes: dict[NodeId, None] = {}
        """Nodes that returned and should lead their preferred partitions again."""
        self._known_nodes: tuple[str, ...] = ()
        """As last reported to the broker."""
        self._next_balance_us = 0
        self._retiring: dict[Partition, str] = {}
        """Replicas that are being dropped, until their logs are deleted."""

    def apply_metadata(
        self, answered: dict[TopicId, int], entries: list[MetadataEntry], *, reset: bool = False
    ) -> list[FabricEffect]:
        """Makes topics, replicas and members of this node follow the metadata. `answered`: tokens by created topic.

        `reset`: the state was replaced, so everything is compared. Otherwise only what the entries name is checked,
        since there may be thousands of topics.
        """
        state = self._metadata.state
        before, self._context.out = self._context.out, []
        self._peers.update_links()
        for topic in [topic for topic in self.topics if topic not in state.topics] if reset else ():
            self._context.out += [*self.close_topic(topic), TopicClosed(None, topic)]
        for entry in entries:
            if isinstance(entry, TopicAdded) and entry.spec.topic in answered and entry.spec.topic not in state.topics:
                # Created and deleted within these entries: its creation is still answered.
                topic = entry.spec.topic
                self._context.out += [TopicOpened(answered[topic], entry.spec), TopicClosed(None, topic)]
        new: set[TopicId] = set()
        for topic in list(state.topics) if reset else _topics_in(entries, state):
            topic_entry, opened = state.topics[topic], self.topics.get(topic)
            if opened is None:
                new.add(topic)
                self._open_topic(answered.get(topic), topic_entry)
            elif opened.spec != topic_entry.spec:
                self.topics[topic] = topic_entry
                self._context.out.append(TopicChanged(None, topic_entry.spec))
        for partition in _reassigned_in(entries, state):
            if partition.topic not in new and partition.topic in state.topics:
                self.update_replica(partition)
        for entry in entries:
            if isinstance(entry, ReassignmentDone):
                # The preferred leader may be another one now.
                self.returned_nodes[entry.replicas[0]] = None
        if any(isinstance(entry, NodeJoined | NodeLeft) for entry in entries):
            self.reroute()
        self._report_known_nodes(state)
        effects, self._context.out = self._context.out, before
        return effects

    def _report_known_nodes(self, state: ReplicaAssignments) -> None:
        others = [member.address for node, member in sorted(state.members.items()) if node != self._context.node]
        known_nodes = tuple(filter(None, others))
        if known_nodes != self._known_nodes:
            self._known_nodes = known_nodes
            self._context.out.append(KnownNodes(known_nodes))

    def _open_topic(self, token: int | None, topic_entry: TopicAdded) -> None:
        self.topics[topic_entry.spec.topic] = topic_entry
        self._context.out.append(TopicOpened(token, topic_entry.spec))
        for partition in partitions_of(topic_entry):
            self.update_replica(partition)

    def update_replica(self, partition: Partition) -> None:
        """Creates or drops the local replica as the metadata says; without one, reports its address."""
        topic_entry = self.topics[partition.topic]
        placed = self._metadata.state.replica_assignment(partition)
        if self._context.node not in placed.holders:
            self._retire(partition)
            self._route(partition)
            return
        if partition in self._groups.replicas or partition in self._retiring:
            return
        self._routes.pop(partition, None)
        # A first member that never took part starts with the first configuration, even if a reassignment is planned by
        # now: all first members may have learned of both at once, and no other node could start the group.
        born = topic_entry.replicas[partition.index]
        late = partition in self._metadata.state.assignments and (
            self._context.node not in born or self._groups.was_member(partition)
        )
        config = None if late else GroupConfig(tuple(sorted(born)))
        group = self._groups.create(partition, topic_entry.segment_bytes, config, late=late)
        group.name = topic_entry.spec.name
        group.start(self._context.now)
        if group.term == 0 and placed.replicas[0] == self._context.node and not late:
            # The preferred leader of a new partition starts the election at once.
            group.deadline_us = self._context.now.mono_us
        self._groups.collect(group)
        self.group_created()

    def _retire(self, partition: Partition) -> None:
        """Drops the local replica. Term, vote and incompleteness are persisted before the log is deleted.

        Otherwise a node that returns to the group could vote twice, or for a candidate that lacks what it once had.
        """
        group = self._groups.remove(partition)
        if group is None:
            return
        kept = pack_hard_state(HardState(group.term, group.vote, complete=False))
        self._groups.hard_states[key_of(partition)] = kept
        self._retiring[partition] = RETIRED + key_of(partition)
        self._context.out.append(
            Persist(key_of(partition), kept, (Drop(partition), Echo(self._retiring[partition], 0)))
        )

    def replica_dropped(self, key: str) -> None:
        """The replica's log is deleted; a new assignment may have come meanwhile."""
        for partition in [partition for partition, retiring in self._retiring.items() if retiring == key]:
            del self._retiring[partition]
            self.update_replica(partition)

    def _route(self, partition: Partition) -> None:
        address = self._replica_address(partition)
        if self._routes.get(partition) != address:
            self._routes[partition] = address
            self._context.out.append(ServedElsewhere(partition, 0, address))

    def peer_returned(self, peer: NodeId) -> None:
        self.returned_nodes[peer] = None
        self.reroute()

    def reroute(self) -> None:
        """Updates reported addresses after nodes became alive or failed."""
        for partition in list(self._routes):
            self._route(partition)

    def _replica_address(self, partition: Partition) -> str:
        replicas = [
            node for node in self._metadata.state.replica_assignment(partition).replicas if node != self._context.node
        ]
        alive = [node for node in replicas if self._peers.is_alive(node)] or replicas
        return self._peers.address_of(alive[0]) if alive else ""

    def close_topic(self, topic: TopicId) -> list[FabricEffect]:
        topic_entry = self.topics.pop(topic, None)
        effects: list[FabricEffect] = []
        for partition in partitions_of(topic_entry) if topic_entry is not None else ():
            self._routes.pop(partition, None)
            self._retiring.pop(partition, None)
            group = self._groups.remove(partition)
            if group is not None:
                effects.append(Drop(partition))
            if self._groups.hard_states.pop(key_of(partition), None) is not None or group is not None:
                effects.append(Persist(key_of(partition), b""))
        return effects

    def redirect_all(self) -> None:
        """Redirects clients of all partitions: this node was removed."""
        for partition in list(self._groups.replicas):
            if partition != METADATA_PARTITION and partition.topic in self.topics:
                self._context.out.append(ServedElsewhere(partition, 0, self._replica_address(partition)))

    def no_replica_error(self, partition: Partition) -> RostraError:
        topic_entry = self.topics.get(partition.topic)
        if topic_entry is None or partition.index >= topic_entry.spec.partitions:
            return UnknownPartition("", partition.index)
        address = self._replica_address(partition)
        return (
            Moved(address, 0)
            if address
            else Unavailable(topic_entry.spec.name, partition.index, "no replica is reachable")
        )

    def became_leader(self, group: RaftGroup) -> None:
        """This node became leader. If it won the first election, leadership returns to the preferred leader later."""
        partition = group.partition
        if not group.commit and partition.topic in self.topics:
            preferred = self._metadata.state.replica_assignment(partition).replicas[0]
            if preferred != self._context.node:
                self.returned_nodes[preferred] = None

    def balance_leaders(self) -> None:
        """Transfers partitions back to preferred leaders that returned and have caught up.

        Once per return, and not immediately: a transfer interrupts proposals, the preferred leader may be unable to
        lead, and an operator's transfer should last.
        """
        if self._context.now.mono_us < self._next_balance_us or not self.returned_nodes:
            return
        self._next_balance_us = self._context.now.mono_us + self._settings.leader_balance_ms * 1000
        lagging: dict[NodeId, None] = {}
        for partition, group in list(self._groups.replicas.items()):
            known = partition.topic in self.topics
            preferred = self._metadata.state.replica_assignment(partition).replicas[0] if known else self._context.node
            progress = group.sender.progress.get(preferred)
            if preferred not in self.returned_nodes or not group.is_owner or progress is None:
                continue
            if group.knows_commit and progress.match == group.log.end:
                group.transfer_leadership(self._context.now, preferred)
                self._groups.collect(group)
            else:
                lagging[preferred] = None
        self.returned_nodes = {node: None for node in lagging if self._peers.liveness.is_alive(node)}


def _topics_in(entries: list[MetadataEntry], state: ReplicaAssignments) -> list[TopicId]:
    """Topics that these entries created or changed and that still exist, each once."""
    topic_entry = [entry.spec.topic for entry in entries if isinstance(entry, TopicAdded)]
    changed = [entry.topic for entry in entries if isinstance(entry, TopicSettingsChanged)]
    return [topic for topic in dict.fromkeys([*topic_entry, *changed]) if topic in state.topics]


def _reassigned_in(entries: list[MetadataEntry], state: ReplicaAssignments) -> list[Partition]:
    """Partitions that these entries may have reassigned."""
    if any(isinstance(entry, MetadataSnapshot) for entry in entries):
        return list(state.assignments)
    return [entry.partition for entry in entries if isinstance(entry, ReassignmentStarted | ReassignmentDone)]
