"""Partitions at this node: which have a copy here, where the others are, and who should lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from rostra.fabric.raft.consensus.hard_state import GroupConfig, HardState, key_of, pack_hard_state
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.metadata.metadata_state import (
    METADATA_PARTITION,
    MetadataEntry,
    MetadataSnapshot,
    MetadataState,
    NodeJoined,
    NodeLeft,
    ReassignmentDone,
    ReassignmentStarted,
    TopicAdded,
    TopicSettingsChanged,
    partitions_of,
)
from rostra.model.ids import NodeId, Partition, TopicId

if TYPE_CHECKING:
    from rostra.fabric.raft.consensus.raft_group import RaftGroup
    from rostra.fabric.raft.machine import Raft

RETIRED = "retired/"


class Replicas:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.topics: dict[TopicId, TopicAdded] = {}
        """Topics that the broker was told of."""
        self._routes: dict[Partition, str] = {}
        """Where partitions without a copy here were last said to be."""
        self.returned_nodes: dict[NodeId, None] = {}
        """Nodes that came back, until they lead again what they should."""
        self._known_nodes: tuple[str, ...] = ()
        """As the broker was last told."""
        self._next_balance_us = 0
        self._retiring: dict[Partition, str] = {}
        """Copies that are given up, until their logs are gone."""

    def apply_metadata(
        self, answered: dict[TopicId, int], entries: list[MetadataEntry], *, reset: bool = False
    ) -> list[FabricEffect]:
        """Topics that are new here, copies that come and go, members. `answered`: the tokens that wait for a topic.

        `anew`: the catalogue is not what it was with some entries more. Else only what these name is looked at: there
        may be thousands of topics, each of which was made.
        """
        raft = self._raft
        state = raft.metadata.state
        before, raft.out = raft.out, []
        raft.peers.update_links()
        for topic in [topic for topic in self.topics if topic not in state.topics] if reset else ():
            raft.out += [*self.close_topic(topic), TopicClosed(None, topic)]
        for entry in entries:
            if isinstance(entry, TopicAdded) and entry.spec.topic in answered and entry.spec.topic not in state.topics:
                # Made and deleted before this node heard of either: whoever asked for it is told that it was made.
                topic = entry.spec.topic
                raft.out += [TopicOpened(answered[topic], entry.spec), TopicClosed(None, topic)]
        new: set[TopicId] = set()
        for topic in list(state.topics) if reset else _topics_in(entries, state):
            topic_entry, opened = state.topics[topic], self.topics.get(topic)
            if opened is None:
                new.add(topic)
                self._open_topic(answered.get(topic), topic_entry)
            elif opened.spec != topic_entry.spec:
                self.topics[topic] = topic_entry
                raft.out.append(TopicChanged(None, topic_entry.spec))
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
        effects, raft.out = raft.out, before
        return effects

    def _report_known_nodes(self, state: MetadataState) -> None:
        others = [member.address for node, member in sorted(state.members.items()) if node != self._raft.node]
        known_nodes = tuple(filter(None, others))
        if known_nodes != self._known_nodes:
            self._known_nodes = known_nodes
            self._raft.out.append(KnownNodes(known_nodes))

    def _open_topic(self, token: int | None, topic_entry: TopicAdded) -> None:
        self.topics[topic_entry.spec.topic] = topic_entry
        self._raft.out.append(TopicOpened(token, topic_entry.spec))
        for partition in partitions_of(topic_entry):
            self.update_replica(partition)

    def update_replica(self, partition: Partition) -> None:
        """A copy here, or the way to one, as the catalogue has it."""
        raft = self._raft
        topic_entry = self.topics[partition.topic]
        placed = raft.metadata.state.assignment(partition)
        if raft.node not in placed.holders:
            self._retire(partition)
            self._route(partition)
            return
        if partition in raft.groups or partition in self._retiring:
            return
        self._routes.pop(partition, None)
        # One of the first members that never took part begins as such, whatever is planned for the partition by now:
        # perhaps all of them heard of the plan together with the topic, and nobody else could begin the group.
        born = topic_entry.replicas[partition.index]
        late = partition in raft.metadata.state.assignments and (raft.node not in born or raft.was_member(partition))
        config = None if late else GroupConfig(tuple(sorted(born)))
        group = raft.create_group(partition, topic_entry.segment_bytes, config, late=late)
        group.name = topic_entry.spec.name
        group.start(raft.now)
        if group.term == 0 and placed.replicas[0] == raft.node and not late:
            # The preferred leader of a new partition need not wait for a silence.
            group.deadline_us = raft.now.mono_us
        raft.collect(group)
        raft.router.deliver_early()

    def _retire(self, partition: Partition) -> None:
        """The group goes on without this copy. Its vote is remembered, and that it has nothing, before the log goes:

        else a node that comes back to the group could vote again, or for one that lacks what it once had.
        """
        raft = self._raft
        group = raft.remove_group(partition)
        if group is None:
            return
        kept = pack_hard_state(HardState(group.hard_state.term, group.hard_state.vote, complete=False))
        raft.hard_states[key_of(partition)] = kept
        self._retiring[partition] = RETIRED + key_of(partition)
        raft.out.append(Persist(key_of(partition), kept, (Drop(partition), Echo(self._retiring[partition], 0))))

    def replica_dropped(self, key: str) -> None:
        """The copy is gone; perhaps another one was wanted meanwhile."""
        for partition in [partition for partition, retiring in self._retiring.items() if retiring == key]:
            del self._retiring[partition]
            self.update_replica(partition)

    def _route(self, partition: Partition) -> None:
        raft = self._raft
        address = self._replica_address(partition)
        if self._routes.get(partition) != address:
            self._routes[partition] = address
            raft.out.append(ServedElsewhere(partition, 0, address))

    def reroute(self) -> None:
        """Nodes came or went: what has no copy here may be better asked for elsewhere."""
        for partition in list(self._routes):
            self._route(partition)

    def _replica_address(self, partition: Partition) -> str:
        raft = self._raft
        replicas = [node for node in raft.metadata.state.assignment(partition).replicas if node != raft.node]
        alive = [node for node in replicas if raft.peers.is_alive(node)] or replicas
        return raft.address_of(alive[0]) if alive else ""

    def close_topic(self, topic: TopicId) -> list[FabricEffect]:
        raft = self._raft
        topic_entry = self.topics.pop(topic, None)
        effects: list[FabricEffect] = []
        for partition in partitions_of(topic_entry) if topic_entry is not None else ():
            self._routes.pop(partition, None)
            self._retiring.pop(partition, None)
            group = raft.remove_group(partition)
            if group is not None:
                effects.append(Drop(partition))
            if raft.hard_states.pop(key_of(partition), None) is not None or group is not None:
                effects.append(Persist(key_of(partition), b""))
        return effects

    def redirect_all(self) -> None:
        """This node is no member any more: whoever asks is sent to one, as far as it was known."""
        for partition in list(self._raft.groups):
            if partition != METADATA_PARTITION and partition.topic in self.topics:
                self._raft.out.append(ServedElsewhere(partition, 0, self._replica_address(partition)))

    def no_replica_error(self, partition: Partition) -> RostraError:
        topic_entry = self.topics.get(partition.topic)
        if topic_entry is None or partition.index >= topic_entry.spec.partitions:
            return UnknownPartition("", partition.index)
        address = self._replica_address(partition)
        return (
            Moved(address, 0)
            if address
            else Unavailable(topic_entry.spec.name, partition.index, "no copy is reachable")
        )

    def became_leader(self, group: RaftGroup) -> None:
        """This node begins to lead. If it is the first to, its preferred leader was only slower, and gets it back."""
        raft, partition = self._raft, group.partition
        if not group.commit and partition.topic in self.topics:
            preferred = raft.metadata.state.assignment(partition).replicas[0]
            if preferred != raft.node:
                self.returned_nodes[preferred] = None

    def balance_leaders(self) -> None:
        """What is led here only because its preferred leader was away goes back to it when it has caught up.

        Once for each return, and not at once: while it is handed over nobody takes proposals, the preferred leader may
        be unable to lead, and what an operator gave away stays there.
        """
        raft = self._raft
        if (
            raft.now.mono_us < self._next_balance_us
            or raft.transfers.stop_deadline_us is not None
            or not self.returned_nodes
        ):
            return
        self._next_balance_us = raft.now.mono_us + raft.settings.leader_balance_ms * 1000
        lagging: dict[NodeId, None] = {}
        for partition, group in list(raft.groups.items()):
            known = partition.topic in self.topics
            preferred = raft.metadata.state.assignment(partition).replicas[0] if known else raft.node
            progress = group.replication.progress.get(preferred)
            if preferred not in self.returned_nodes or group.role is not Role.LEADER or progress is None:
                continue
            if group.knows_commit and progress.match == group.log.end:
                group.transfer_leadership(raft.now, preferred)
                raft.collect(group)
            else:
                lagging[preferred] = None
        self.returned_nodes = {node: None for node in lagging if raft.peers.liveness.is_alive(node)}


def _topics_in(entries: list[MetadataEntry], state: MetadataState) -> list[TopicId]:
    """Topics that these entries made or changed, as far as they are still there, each once."""
    topic_entry = [entry.spec.topic for entry in entries if isinstance(entry, TopicAdded)]
    changed = [entry.topic for entry in entries if isinstance(entry, TopicSettingsChanged)]
    return [topic for topic in dict.fromkeys([*topic_entry, *changed]) if topic in state.topics]


def _reassigned_in(entries: list[MetadataEntry], state: MetadataState) -> list[Partition]:
    """Partitions whose copies these entries may have moved."""
    if any(isinstance(entry, MetadataSnapshot) for entry in entries):
        return list(state.assignments)
    return [entry.partition for entry in entries if isinstance(entry, ReassignmentStarted | ReassignmentDone)]
