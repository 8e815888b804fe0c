"""The replicas on this node: creates and drops groups, routes to other partitions, balances leaders."""

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
from rostra.fabric.consensus.hard_state import GroupConfig, HardState, key_of, pack_hard_state
from rostra.fabric.consensus.roles import Role
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
    from rostra.fabric.consensus.raft_group import RaftGroup
    from rostra.fabric.raft.machine import Raft

RETIRED = "retired/"


class Replicas:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
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
        raft = self._raft
        state = raft.metadata.state
        before, raft.out = raft.out, []
        raft.peers.update_links()
        for topic in [topic for topic in self.topics if topic not in state.topics] if reset else ():
            raft.out += [*self.close_topic(topic), TopicClosed(None, topic)]
        for entry in entries:
            if isinstance(entry, TopicAdded) and entry.spec.topic in answered and entry.spec.topic not in state.topics:
                # Created and deleted within these entries: its creation is still answered.
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
        """Creates or drops the local replica as the metadata says; without one, reports its address."""
        raft = self._raft
        topic_entry = self.topics[partition.topic]
        placed = raft.metadata.state.replica_assignment(partition)
        if raft.node not in placed.holders:
            self._retire(partition)
            self._route(partition)
            return
        if partition in raft.groups or partition in self._retiring:
            return
        self._routes.pop(partition, None)
        # A first member that never took part starts with the first configuration, even if a reassignment is planned by
        # now: all first members may have learned of both at once, and no other node could start the group.
        born = topic_entry.replicas[partition.index]
        late = partition in raft.metadata.state.assignments and (raft.node not in born or raft.was_member(partition))
        config = None if late else GroupConfig(tuple(sorted(born)))
        group = raft.create_group(partition, topic_entry.segment_bytes, config, late=late)
        group.name = topic_entry.spec.name
        group.start(raft.now)
        if group.term == 0 and placed.replicas[0] == raft.node and not late:
            # The preferred leader of a new partition starts the election at once.
            group.deadline_us = raft.now.mono_us
        raft.collect(group)
        raft.router.deliver_early()

    def _retire(self, partition: Partition) -> None:
        """Drops the local replica. Term, vote and incompleteness are persisted before the log is deleted.

        Otherwise a node that returns to the group could vote twice, or for a candidate that lacks what it once had.
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
        """The replica's log is deleted; a new assignment may have come meanwhile."""
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
        """Updates reported addresses after nodes became alive or failed."""
        for partition in list(self._routes):
            self._route(partition)

    def _replica_address(self, partition: Partition) -> str:
        raft = self._raft
        replicas = [node for node in raft.metadata.state.replica_assignment(partition).replicas if node != raft.node]
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
        """Redirects clients of all partitions: this node was removed."""
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
            else Unavailable(topic_entry.spec.name, partition.index, "no replica is reachable")
        )

    def became_leader(self, group: RaftGroup) -> None:
        """This node became leader. If it won the first election, leadership returns to the preferred leader later."""
        raft, partition = self._raft, group.partition
        if not group.commit and partition.topic in self.topics:
            preferred = raft.metadata.state.replica_assignment(partition).replicas[0]
            if preferred != raft.node:
                self.returned_nodes[preferred] = None

    def balance_leaders(self) -> None:
        """Transfers partitions back to preferred leaders that returned and have caught up.

        Once per return, and not immediately: a transfer interrupts proposals, the preferred leader may be unable to
        lead, and an operator's transfer should last.
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
            preferred = raft.metadata.state.replica_assignment(partition).replicas[0] if known else raft.node
            progress = group.sender.progress.get(preferred)
            if preferred not in self.returned_nodes or group.role is not Role.LEADER or progress is None:
                continue
            if group.knows_commit and progress.match == group.log.end:
                group.transfer_leadership(raft.now, preferred)
                raft.collect(group)
            else:
                lagging[preferred] = None
        self.returned_nodes = {node: None for node in lagging if raft.peers.liveness.is_alive(node)}


def _topics_in(entries: list[MetadataEntry], state: MetadataState) -> list[TopicId]:
    """Topics that these entries created or changed and that still exist, each once."""
    topic_entry = [entry.spec.topic for entry in entries if isinstance(entry, TopicAdded)]
    changed = [entry.topic for entry in entries if isinstance(entry, TopicSettingsChanged)]
    return [topic for topic in dict.fromkeys([*topic_entry, *changed]) if topic in state.topics]


def _reassigned_in(entries: list[MetadataEntry], state: MetadataState) -> list[Partition]:
    """Partitions that these entries may have reassigned."""
    if any(isinstance(entry, MetadataSnapshot) for entry in entries):
        return list(state.assignments)
    return [entry.partition for entry in entries if isinstance(entry, ReassignmentStarted | ReassignmentDone)]
