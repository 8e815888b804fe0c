"""Several model nodes that share their logs: partitions change owners, and some nodes do not know it yet."""

from __future__ import annotations

from typing import NamedTuple

from rostra.errors import MemberRemoved, Moved, NodeStopping, RostraError, Unavailable
from rostra.wire.features import FEATURES
from rostra.wire.messages import (
    Agreed,
    ClientMessage,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    Ended,
    Failed,
    Goodbye,
    Hello,
    ListTopics,
    NodeMessage,
    PartitionLocation,
    Ping,
    Publish,
    Published,
    PublisherRegistered,
    Register,
    Subscribe,
    Subscribed,
    Topic,
    TopicSettings,
    Unregister,
    Watch,
)
from tests.unit.client.model_node import ModelLog, ModelNode, Reply


class Owner(NamedTuple):
    address: str
    """Empty while there is no owner."""
    epoch: int


NOBODY = Owner("", 0)


class HeldMessage(NamedTuple):
    """An acknowledgement that waits for commit."""

    conn: int
    request: int
    offset: int
    end: int


class ModelMember(ModelNode):
    """A node of the cluster. It knows what it owns; the rest is what it was informed of last."""

    def __init__(self, cluster: ModelCluster, address: str, number: int) -> None:
        super().__init__(number)
        self.cluster = cluster
        self.address = address
        self.topics = cluster.topics
        self.logs = cluster.logs
        self.publishers = cluster.publishers
        self.features = FEATURES
        self.heartbeat_ms = 60_000
        self.believes: dict[tuple[int, int], Owner] = {}
        self.held: dict[tuple[int, int], list[HeldMessage]] = {}
        self.push_from_node: dict[int, list[Reply]] = {}
        self.stopping = False
        self.cut_off = False
        """Whether it cannot tell what the cluster has agreed on."""
        self.removed = False
        """Whether it was removed from the cluster, and answers so."""

    def _answer(self, conn: int, message: ClientMessage, payload: bytearray | None) -> list[NodeMessage]:
        if self.removed and not isinstance(message, Hello | Ping | Goodbye):
            raise MemberRemoved(1)
        if self.cut_off and isinstance(message, CreateTopic | DeleteTopic | DescribeTopic | ListTopics | Watch):
            raise Unavailable("metadata", 0, "its leader did not answer in time")
        return super()._answer(conn, message, payload)

    def _create(self, name: str, settings: TopicSettings) -> Topic:
        return self.cluster.create(name, settings)

    def partition_place(self, topic: Topic, partition: int) -> PartitionLocation:
        owner = self.believes.get((topic.topic, partition), NOBODY)
        here = owner.address == self.address
        return PartitionLocation(partition, "" if here else owner.address, owner.epoch, 0, owner != NOBODY)

    def _here(self, topic: int, partition: int) -> int:
        """The owner epoch under which this node serves it."""
        if self.stopping:
            raise NodeStopping()
        owner = self.cluster.owners[topic, partition]
        if owner.address == self.address:
            return owner.epoch
        raise self._elsewhere(topic, partition)

    def _elsewhere(self, topic: int, partition: int) -> RostraError:
        owner = self.believes.get((topic, partition), NOBODY)
        if owner.address in ("", self.address):
            return Unavailable("t", partition, "no owner is known yet")
        return Moved(owner.address, owner.epoch)

    def _publish(self, conn: int, message: Publish, payload: bytearray) -> list[NodeMessage]:
        epoch = self._here(message.topic, message.partition)
        offset, end = self._store(message, payload, epoch)
        if message.acks == "none":
            return []
        held = HeldMessage(conn, message.request, offset, end)
        self.held.setdefault((message.topic, message.partition), []).append(held)
        if self.cluster.commits:
            self.cluster.commit(message.topic, message.partition)
        return []

    def _subscribe(self, conn: int, message: Subscribe) -> Subscribed:
        self._here(message.topic, message.partition)
        return super()._subscribe(conn, message)

    def _register(self, message: Register) -> PublisherRegistered:
        self._here(message.topic, message.partition)
        return super()._register(message)

    def _resign(self, message: Unregister) -> Agreed:
        self._here(message.topic, message.partition)
        return super()._resign(message)

    def lost(self, conn: int) -> None:
        super().lost(conn)
        self.push_from_node.pop(conn, None)
        for place, held in self.held.items():
            self.held[place] = [reply for reply in held if reply.conn != conn]

    def say(self, conn: int, message: NodeMessage) -> None:
        self.push_from_node.setdefault(conn, []).append((message, None))

    def pushes(self, conn: int) -> list[Reply]:
        return [*self.push_from_node.pop(conn, []), *super().pushes(conn)]

    # --- the cluster's side --------------------------------------------------------------------------

    def committed(self, topic: int, partition: int, commit: int) -> None:
        held = self.held.pop((topic, partition), [])
        self.held[topic, partition] = [reply for reply in held if reply.end > commit]
        for reply in held:
            if reply.end <= commit:
                self.say(reply.conn, Published(reply.request, reply.offset))

    def deposed(self, topic: int, partition: int) -> None:
        """It no longer serves the partition: waiting and reading clients are redirected, as far as it knows."""
        error = self._elsewhere(topic, partition)
        code, carried = type(error).__name__, error.carried()
        for reply in self.held.pop((topic, partition), []):
            self.say(reply.conn, Failed(reply.request, code, carried))
        log = self.logs[topic, partition]
        for conn, feeds in self.feeds.items():
            for number in [number for number, feed in feeds.items() if feed.log is log]:
                del feeds[number]
                self.say(conn, Ended(number, code, carried))


class ModelCluster:
    """What the nodes agree on. What an owner has stored is committed at once unless `commits` is off."""

    def __init__(self, *addresses: str) -> None:
        self.topics: dict[str, Topic] = {}
        self.logs: dict[tuple[int, int], ModelLog] = {}
        self.publishers: dict[tuple[int, int], dict[int, int]] = {}
        self.owners: dict[tuple[int, int], Owner] = {}
        self.commits = True
        self.members = {address: ModelMember(self, address, number) for number, address in enumerate(addresses, 1)}

    def create(self, name: str, settings: TopicSettings) -> Topic:
        topic = self.topics[name] = Topic(len(self.logs) + 100, name, settings)
        addresses = list(self.members)
        for partition in range(settings.partitions):
            self.logs[topic.topic, partition] = ModelLog()
            self.owners[topic.topic, partition] = Owner(addresses[partition % len(addresses)], 1)
        self.tell()
        return topic

    def tell(self, *addresses: str) -> None:
        """Inform these nodes, by default all, of the owners."""
        for address in addresses or self.members:
            self.members[address].believes = dict(self.owners)

    def commit(self, topic: int, partition: int) -> None:
        owner = self.owners[topic, partition]
        log = self.logs[topic, partition]
        if owner.address:
            log.commit = log.end
            self.members[owner.address].committed(topic, partition, log.commit)

    def move(self, name: str, partition: int, address: str, *, cut: bool = False, told: bool = True) -> None:
        """Give the partition to another node, or to none; uncommitted records are kept, or cut."""
        topic = self.topics[name].topic
        before = self.owners[topic, partition]
        if before.address == address:
            return
        now = self.owners[topic, partition] = Owner(address, before.epoch + 1)
        if cut:
            self.logs[topic, partition].cut()
        if address:
            self.members[address].believes[topic, partition] = now
        if told:
            self.tell()
        if before.address:
            self.members[before.address].deposed(topic, partition)

    def values(self, name: str, partition: int = 0) -> list[bytes | None]:
        return self.logs[self.topics[name].topic, partition].values()
