"""Partitions at this node: which have a copy here, where the others are, and who should lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.errors import Moved, RostraError, Unavailable, UnknownPartition
from rostra.fabric.api import Drop, Elsewhere, FabricEffect, Persist, TopicClosed, TopicOpened
from rostra.fabric.raft.catalogue import Made
from rostra.fabric.raft.hard import Config, key_of
from rostra.fabric.raft.roles import Role
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft


class Hosting:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.opened: dict[TopicId, Made] = {}
        """Topics that the broker was told of."""
        self._routes: dict[Partition, str] = {}
        """Where partitions without a copy here were last said to be."""
        self.returned: dict[NodeId, None] = {}
        """Nodes that came back, until they lead again what they should."""
        self._spreads_us = 0

    def follow_catalogue(self, answered: dict[TopicId, int]) -> list[FabricEffect]:
        """Topics that are new here; links to members that are. `answered` are the tokens that wait for a topic."""
        raft = self._raft
        before, raft.out = raft.out, []
        raft.peers.meet_all()
        for topic in [topic for topic in self.opened if topic not in raft.meta.catalogue.topics]:
            raft.out += [*self.close_topic(topic), TopicClosed(None, topic)]
        for topic, made in raft.meta.catalogue.topics.items():
            if topic not in self.opened:
                self._open_topic(answered.get(topic), made)
        effects, raft.out = raft.out, before
        return effects

    def _open_topic(self, token: int | None, made: Made) -> None:
        raft = self._raft
        self.opened[made.spec.topic] = made
        raft.out.append(TopicOpened(token, made.spec))
        for index, replicas in enumerate(made.replicas):
            partition = Partition(made.spec.topic, PartitionIndex(index))
            if raft.node not in replicas:
                self._route(partition, replicas)
                continue
            group = raft.make_group(partition, made.segment_bytes, Config(tuple(sorted(replicas))))
            group.name = made.spec.name
            group.start(raft.now)
            if group.term == 0 and replicas[0] == raft.node:
                # The preferred leader of a new partition need not wait for a silence.
                group.deadline_us = raft.now.mono_us
            raft.touch(group)
            early, raft.early = raft.early, []
            for peer, message, payload in early:
                raft.pass_on(peer, message, payload)

    def _route(self, partition: Partition, replicas: tuple[NodeId, ...]) -> None:
        raft = self._raft
        address = self._somewhere(replicas)
        if self._routes.get(partition) != address:
            self._routes[partition] = address
            raft.out.append(Elsewhere(partition, 0, address))

    def reroute(self) -> None:
        """Nodes came or went: what has no copy here may be better asked for elsewhere."""
        for partition in list(self._routes):
            self._route(partition, self.opened[partition.topic].replicas[partition.index])

    def _somewhere(self, replicas: tuple[NodeId, ...]) -> str:
        raft = self._raft
        there = [node for node in replicas if raft.peers.pairs.is_there(node)] or list(replicas)
        return raft.address_of(there[0]) if there else ""

    def close_topic(self, topic: TopicId) -> list[FabricEffect]:
        raft = self._raft
        made = self.opened.pop(topic, None)
        effects: list[FabricEffect] = []
        for index in range(made.spec.partitions if made is not None else 0):
            partition = Partition(topic, PartitionIndex(index))
            self._routes.pop(partition, None)
            if raft.groups.pop(partition, None) is not None:
                raft.beating.pop(partition, None)
                raft.alarms.forget(partition)
                raft.keys.pop(key_of(partition), None)
                effects += [Drop(partition), Persist(key_of(partition), b"")]
        return effects

    def nowhere(self, partition: Partition) -> RostraError:
        made = self.opened.get(partition.topic)
        if made is None or partition.index >= len(made.replicas):
            return UnknownPartition("", partition.index)
        address = self._somewhere(made.replicas[partition.index])
        return Moved(address, 0) if address else Unavailable(made.spec.name, partition.index, "no copy is reachable")

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
            made = self.opened.get(partition.topic)
            preferred = made.replicas[partition.index][0] if made is not None else raft.node
            progress = group.replication.peers.get(preferred)
            if preferred not in self.returned or group.role is not Role.LEADER or progress is None:
                continue
            if group.is_current and progress.match == group.copy.end:
                group.transfer(raft.now, preferred)
                raft.touch(group)
            else:
                behind[preferred] = None
        self.returned = {node: None for node in behind if raft.peers.pairs.is_there(node)}
