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
    META,
    Entry,
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
        self.opened: dict[TopicId, TopicAdded] = {}
        """Topics that the broker was told of."""
        self._routes: dict[Partition, str] = {}
        """Where partitions without a copy here were last said to be."""
        self.returned: dict[NodeId, None] = {}
        """Nodes that came back, until they lead again what they should."""
        self._neighbours: tuple[str, ...] = ()
        """As the broker was last told."""
        self._spreads_us = 0
        self._retiring: dict[Partition, str] = {}
        """Copies that are given up, until their logs are gone."""

    def follow_catalogue(
        self, answered: dict[TopicId, int], entries: list[Entry], *, anew: bool = False
    ) -> list[FabricEffect]:
        """Topics that are new here, copies that come and go, members. `answered`: the tokens that wait for a topic.

        `anew`: the catalogue is not what it was with some entries more. Else only what these name is looked at: there
        may be thousands of topics, each of which was made.
        """
        raft = self._raft
        catalogue = raft.meta.catalogue
        before, raft.out = raft.out, []
        raft.peers.follow_members()
        for topic in [topic for topic in self.opened if topic not in catalogue.topics] if anew else ():
            raft.out += [*self.close_topic(topic), TopicClosed(None, topic)]
        for entry in entries:
            if (
                isinstance(entry, TopicAdded)
                and entry.spec.topic in answered
                and entry.spec.topic not in catalogue.topics
            ):
                # Made and deleted before this node heard of either: whoever asked for it is told that it was made.
                topic = entry.spec.topic
                raft.out += [TopicOpened(answered[topic], entry.spec), TopicClosed(None, topic)]
        new: set[TopicId] = set()
        for topic in list(catalogue.topics) if anew else _named(entries, catalogue):
            made, opened = catalogue.topics[topic], self.opened.get(topic)
            if opened is None:
                new.add(topic)
                self._open_topic(answered.get(topic), made)
            elif opened.spec != made.spec:
                self.opened[topic] = made
                raft.out.append(TopicChanged(None, made.spec))
        for partition in _moved(entries, catalogue):
            if partition.topic not in new and partition.topic in catalogue.topics:
                self.host(partition)
        for entry in entries:
            if isinstance(entry, ReassignmentDone):
                # The preferred leader may be another one now.
                self.returned[entry.replicas[0]] = None
        if any(isinstance(entry, NodeJoined | NodeLeft) for entry in entries):
            self.reroute()
        self._tell_neighbours(catalogue)
        effects, raft.out = raft.out, before
        return effects

    def _tell_neighbours(self, catalogue: MetadataState) -> None:
        others = [member.address for node, member in sorted(catalogue.members.items()) if node != self._raft.node]
        neighbours = tuple(filter(None, others))
        if neighbours != self._neighbours:
            self._neighbours = neighbours
            self._raft.out.append(KnownNodes(neighbours))

    def _open_topic(self, token: int | None, made: TopicAdded) -> None:
        self.opened[made.spec.topic] = made
        self._raft.out.append(TopicOpened(token, made.spec))
        for partition in partitions_of(made):
            self.host(partition)

    def host(self, partition: Partition) -> None:
        """A copy here, or the way to one, as the catalogue has it."""
        raft = self._raft
        made = self.opened[partition.topic]
        placed = raft.meta.catalogue.placement(partition)
        if raft.node not in placed.holders:
            self._retire(partition)
            self._route(partition)
            return
        if partition in raft.groups or partition in self._retiring:
            return
        self._routes.pop(partition, None)
        # One of the first members that never took part begins as such, whatever is planned for the partition by now:
        # perhaps all of them heard of the plan together with the topic, and nobody else could begin the group.
        born = made.replicas[partition.index]
        late = partition in raft.meta.catalogue.placed and (raft.node not in born or raft.has_met(partition))
        config = None if late else GroupConfig(tuple(sorted(born)))
        group = raft.make_group(partition, made.segment_bytes, config, late=late)
        group.name = made.spec.name
        group.start(raft.now)
        if group.term == 0 and placed.replicas[0] == raft.node and not late:
            # The preferred leader of a new partition need not wait for a silence.
            group.deadline_us = raft.now.mono_us
        raft.touch(group)
        raft.post.give_early()

    def _retire(self, partition: Partition) -> None:
        """The group goes on without this copy. Its vote is remembered, and that it has nothing, before the log goes:

        else a node that comes back to the group could vote again, or for one that lacks what it once had.
        """
        raft = self._raft
        group = raft.forget_group(partition)
        if group is None:
            return
        kept = pack_hard_state(HardState(group.hard.term, group.hard.vote, complete=False))
        raft.hard[key_of(partition)] = kept
        self._retiring[partition] = RETIRED + key_of(partition)
        raft.out.append(Persist(key_of(partition), kept, (Drop(partition), Echo(self._retiring[partition], 0))))

    def retired(self, key: str) -> None:
        """The copy is gone; perhaps another one was wanted meanwhile."""
        for partition in [partition for partition, retiring in self._retiring.items() if retiring == key]:
            del self._retiring[partition]
            self.host(partition)

    def _route(self, partition: Partition) -> None:
        raft = self._raft
        address = self._somewhere(partition)
        if self._routes.get(partition) != address:
            self._routes[partition] = address
            raft.out.append(ServedElsewhere(partition, 0, address))

    def reroute(self) -> None:
        """Nodes came or went: what has no copy here may be better asked for elsewhere."""
        for partition in list(self._routes):
            self._route(partition)

    def _somewhere(self, partition: Partition) -> str:
        raft = self._raft
        replicas = [node for node in raft.meta.catalogue.placement(partition).replicas if node != raft.node]
        there = [node for node in replicas if raft.peers.is_there(node)] or replicas
        return raft.address_of(there[0]) if there else ""

    def close_topic(self, topic: TopicId) -> list[FabricEffect]:
        raft = self._raft
        made = self.opened.pop(topic, None)
        effects: list[FabricEffect] = []
        for partition in partitions_of(made) if made is not None else ():
            self._routes.pop(partition, None)
            self._retiring.pop(partition, None)
            group = raft.forget_group(partition)
            if group is not None:
                effects.append(Drop(partition))
            if raft.hard.pop(key_of(partition), None) is not None or group is not None:
                effects.append(Persist(key_of(partition), b""))
        return effects

    def turn_all_away(self) -> None:
        """This node is no member any more: whoever asks is sent to one, as far as it was known."""
        for partition in list(self._raft.groups):
            if partition != META and partition.topic in self.opened:
                self._raft.out.append(ServedElsewhere(partition, 0, self._somewhere(partition)))

    def nowhere(self, partition: Partition) -> RostraError:
        made = self.opened.get(partition.topic)
        if made is None or partition.index >= made.spec.partitions:
            return UnknownPartition("", partition.index)
        address = self._somewhere(partition)
        return Moved(address, 0) if address else Unavailable(made.spec.name, partition.index, "no copy is reachable")

    def led(self, group: RaftGroup) -> None:
        """This node begins to lead. If it is the first to, its preferred leader was only slower, and gets it back."""
        raft, partition = self._raft, group.partition
        if not group.commit and partition.topic in self.opened:
            preferred = raft.meta.catalogue.placement(partition).replicas[0]
            if preferred != raft.node:
                self.returned[preferred] = None

    def spread_leaders(self) -> None:
        """What is led here only because its preferred leader was away goes back to it when it has caught up.

        Once for each return, and not at once: while it is handed over nobody takes proposals, the preferred leader may
        be unable to lead, and what an operator gave away stays there.
        """
        raft = self._raft
        if raft.now.mono_us < self._spreads_us or raft.leaving.until_us is not None or not self.returned:
            return
        self._spreads_us = raft.now.mono_us + raft.settings.spread_ms * 1000
        behind: dict[NodeId, None] = {}
        for partition, group in list(raft.groups.items()):
            known = partition.topic in self.opened
            preferred = raft.meta.catalogue.placement(partition).replicas[0] if known else raft.node
            progress = group.replication.peers.get(preferred)
            if preferred not in self.returned or group.role is not Role.LEADER or progress is None:
                continue
            if group.is_current and progress.match == group.copy.end:
                group.transfer(raft.now, preferred)
                raft.touch(group)
            else:
                behind[preferred] = None
        self.returned = {node: None for node in behind if raft.peers.pairs.is_there(node)}


def _named(entries: list[Entry], catalogue: MetadataState) -> list[TopicId]:
    """Topics that these entries made or changed, as far as they are still there, each once."""
    made = [entry.spec.topic for entry in entries if isinstance(entry, TopicAdded)]
    changed = [entry.topic for entry in entries if isinstance(entry, TopicSettingsChanged)]
    return [topic for topic in dict.fromkeys([*made, *changed]) if topic in catalogue.topics]


def _moved(entries: list[Entry], catalogue: MetadataState) -> list[Partition]:
    """Partitions whose copies these entries may have moved."""
    if any(isinstance(entry, MetadataSnapshot) for entry in entries):
        return list(catalogue.placed)
    return [entry.partition for entry in entries if isinstance(entry, ReassignmentStarted | ReassignmentDone)]
