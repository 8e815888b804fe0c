"""The topics of this broker by name, with their origin partitions: its own and those of other brokers.

Topics are local to a broker: created by a request here or by a forwarded record. A topic's id is that of this broker's
own origin partition of it, drawn anew with each incarnation.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from rostra.errors import InvalidSetting, PartitionDamaged, TopicExists, Unavailable, UnknownTopic
from rostra.fabric.api import (
    Blocked,
    Drop,
    Echo,
    Open,
    PartitionJoined,
    Persist,
    ProposeDrop,
    ProposeSettings,
    ProposeTopic,
    Refused,
    Serving,
    TopicChanged,
    TopicClosed,
    TopicOpened,
)
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.origin_partition import OriginLog, OriginPartition, VectorEntry
from rostra.model.ids import Partition, PartitionIndex, TopicId, random_id

TOPIC = "flood/topic/"


class StoredTopic(msgspec.Struct, frozen=True, array_like=True):
    """The persisted form of a topic. Without `own` the topic was deleted here.

    `deleted_ends` are the ends of the partitions at deletion: records below are neither sent nor delivered again.
    """

    own: OriginPartition | None
    remote: tuple[OriginPartition, ...]
    deleted_ends: tuple[VectorEntry, ...]


class FloodTopic:
    """`own` and `remote` include changes that are still being persisted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.own: OriginPartition | None = None
        self.remote: dict[Partition, OriginPartition] = {}
        self.deleted_ends: dict[Partition, int] = {}
        self.open = False
        """Whether the topic was reported to the broker."""
        self.version = 0
        self.after_persist: list[tuple[int, Callable[[], None]]] = []
        """Actions to run when a version is on stable storage."""

    def all_partitions(self) -> list[OriginPartition]:
        own = [self.own] if self.own is not None else []
        return [*own, *(self.remote[partition] for partition in sorted(self.remote))]

    def packed(self) -> bytes:
        floors = tuple(VectorEntry(partition, self.deleted_ends[partition]) for partition in sorted(self.deleted_ends))
        return msgspec.msgpack.encode(StoredTopic(self.own, tuple(self.remote.values()), floors))


class FloodTopics:
    def __init__(self, context: FloodContext) -> None:
        self._context = context
        self.by_name: dict[str, FloodTopic] = {}
        self._by_partition: dict[Partition, FloodTopic] = {}
        self._served: dict[Partition, None] = {}
        """Partitions that were reported to the broker."""
        self.partition_added: Callable[[Partition], None] = lambda partition: None
        """Called when an offered partition can store records."""

    def restore(self, hard_states: dict[str, bytes]) -> None:
        for key in sorted(hard_states):
            if key.startswith(TOPIC) and hard_states[key]:
                stored = msgspec.msgpack.decode(hard_states[key], type=StoredTopic)
                topic = self.by_name[key.removeprefix(TOPIC)] = FloodTopic(key.removeprefix(TOPIC))
                topic.own = stored.own
                topic.remote = {origin_partition.partition: origin_partition for origin_partition in stored.remote}
                topic.deleted_ends = {entry.partition: entry.end for entry in stored.deleted_ends}
                self._by_partition.update(
                    (origin_partition.partition, topic) for origin_partition in topic.all_partitions()
                )

    def of_partition(self, partition: Partition) -> FloodTopic | None:
        return self._by_partition.get(partition)

    def by_id(self, topic: TopicId) -> FloodTopic | None:
        """The topic that the broker knows by this id."""
        found = self._by_partition.get(Partition(topic, PartitionIndex(0)))
        own = found.own if found is not None else None
        return found if own is not None and own.partition.topic == topic else None

    def has(self, partition: Partition, end: int) -> bool:
        """Whether this broker has an origin partition up to `end`, or had it and deleted the topic."""
        log = self._context.logs.get(partition)
        return (log.end if log is not None else self.deleted_end(partition)) >= end

    def deleted_end(self, partition: Partition) -> int:
        topic = self.of_partition(partition)
        return topic.deleted_ends.get(partition, 0) if topic is not None else 0

    # --- persisting --------------------------------------------------------------------------------

    def _persist(self, topic: FloodTopic, then: Callable[[], None]) -> None:
        topic.version += 1
        topic.after_persist.append((topic.version, then))
        for origin_partition in topic.all_partitions():
            self._by_partition[origin_partition.partition] = topic
        key = TOPIC + topic.name
        self._context.out.append(Persist(key, topic.packed(), (Echo(key, topic.version),)))

    def persisted(self, name: str, version: int) -> None:
        topic = self.by_name.get(name)
        if topic is None:
            return
        done = [action for waiting, action in topic.after_persist if waiting <= version]
        topic.after_persist = [one for one in topic.after_persist if one[0] > version]
        for action in done:
            action()

    def new_own_partition(
        self, name: str, segment_bytes: int, settings: bytes, topic: TopicId | None = None
    ) -> OriginPartition:
        context = self._context
        drawn = topic if topic is not None else TopicId(random_id(context.random))
        partition = Partition(drawn, PartitionIndex(0))
        return OriginPartition(partition, name, context.node, context.boot, segment_bytes, settings)

    # --- creating --------------------------------------------------------------------------------------

    def create(self, given: ProposeTopic) -> None:
        spec, token = given.spec, given.token
        topic = self.by_name.get(spec.name)
        if spec.partitions != 1:
            reason = "a topic has one partition per publishing broker here; leave it at 1"
            self._context.out.append(Refused(token, InvalidSetting("partitions", reason)))
        elif topic is not None and topic.own is not None:
            self._refuse_existing(topic, token)
        elif topic is not None and topic.open:
            self._context.out.append(Refused(token, Unavailable(spec.name, 0, "its deletion is being persisted")))
        else:
            topic = self.by_name.setdefault(spec.name, FloodTopic(spec.name))
            topic.own = self.new_own_partition(spec.name, given.segment_bytes, spec.settings, spec.topic)
            self._persist(topic, lambda: self.report(topic, token))

    def _refuse_existing(self, topic: FloodTopic, token: int) -> None:
        """Not before the broker knows the topic: one that arrived from another broker may still be being persisted."""
        refused = Refused(token, TopicExists(topic.name))
        if topic.open:
            self._context.out.append(refused)
        else:
            topic.after_persist.append((topic.version, lambda: self._context.out.append(refused)))

    def start_incarnation(self, topic: FloodTopic) -> None:
        """Gives a topic a new own partition; that of the previous incarnation is treated like another broker's."""
        before = topic.own
        assert before is not None
        topic.remote[before.partition] = before
        topic.own = self.new_own_partition(topic.name, before.segment_bytes, before.settings)
        self._persist(topic, lambda: self.report(topic, None))

    def add_offered(self, partitions: tuple[OriginPartition, ...]) -> list[OriginPartition]:
        """Adds offered partitions; returns those whose records can be stored now. The others are persisted first."""
        ready: list[OriginPartition] = []
        for origin_partition in partitions:
            topic = self.by_name.setdefault(origin_partition.name, FloodTopic(origin_partition.name))
            if origin_partition.partition in self._context.logs:
                ready.append(origin_partition)
            elif origin_partition.partition in topic.remote and topic.own is not None:
                continue
            elif topic.own is None and topic.open:
                # Its deletion is being persisted; the neighbour will offer it again.
                continue
            else:
                self._add_remote(topic, origin_partition)
        return ready

    def _add_remote(self, topic: FloodTopic, origin_partition: OriginPartition) -> None:
        topic.remote[origin_partition.partition] = origin_partition
        if topic.own is None:
            topic.own = self.new_own_partition(topic.name, origin_partition.segment_bytes, origin_partition.settings)

        def taken_in() -> None:
            self.report(topic, None)
            self.partition_added(origin_partition.partition)

        self._persist(topic, taken_in)

    def report(self, topic: FloodTopic, token: int | None) -> None:
        """Reports the topic and its new partitions to the broker."""
        context, own = self._context, topic.own
        if own is None:
            return
        if not topic.open:
            topic.open = True
            context.out.append(TopicOpened(token, own.spec()))
        for origin_partition in topic.all_partitions():
            if origin_partition.partition not in self._served:
                self._served[origin_partition.partition] = None
                if origin_partition is not own:
                    context.out.append(
                        PartitionJoined(own.partition.topic, origin_partition.partition, origin_partition.origin)
                    )
                self._serve(topic, origin_partition)

    def _serve(self, topic: FloodTopic, origin_partition: OriginPartition) -> None:
        context = self._context
        log = context.logs.get(origin_partition.partition)
        if log is None:
            first = topic.deleted_ends.get(origin_partition.partition, 0)
            log = context.logs[origin_partition.partition] = OriginLog(
                origin_partition, first, first, is_origin=origin_partition is topic.own
            )
            context.out.append(Open(origin_partition.partition, origin_partition.segment_bytes, first))
        self.announce(log)

    def announce(self, log: OriginLog) -> None:
        context, origin_partition = self._context, log.origin_partition
        context.out.append(
            Serving(origin_partition.partition, origin_partition.epoch, log.is_origin, log.first, log.end, log.synced)
        )
        if log.damaged_at is not None:
            error = PartitionDamaged(origin_partition.name, origin_partition.partition.index, log.damaged_at)
            context.out.append(Blocked(origin_partition.partition, error))

    def alter(self, given: ProposeSettings) -> None:
        """Changes the settings at this broker only."""
        context = self._context
        topic = self.by_id(given.topic)
        if topic is None or topic.own is None or not topic.open:
            context.out.append(Refused(given.token, UnknownTopic(str(given.topic))))
            return
        topic.own = replace(topic.own, settings=given.settings, segment_bytes=given.segment_bytes)
        log = context.logs.get(topic.own.partition)
        if log is not None:
            log.origin_partition = topic.own
        spec = topic.own.spec()
        self._persist(topic, lambda: context.out.append(TopicChanged(given.token, spec)))

    # --- deleting ------------------------------------------------------------------------------------

    def drop(self, given: ProposeDrop) -> None:
        """Deletes the topic at this broker only; a record forwarded from another broker creates it again."""
        context = self._context
        topic = self.by_id(given.topic)
        if topic is None or not topic.open:
            context.out.append(Refused(given.token, UnknownTopic(str(given.topic))))
            return
        partitions = topic.all_partitions()
        for origin_partition in partitions:
            topic.remote[origin_partition.partition] = origin_partition
            log = context.logs.pop(origin_partition.partition, None)
            if log is not None:
                topic.deleted_ends[origin_partition.partition] = log.end
        topic.own = None

        def dropped() -> None:
            topic.open = False
            context.out.append(TopicClosed(given.token, given.topic))
            for origin_partition in partitions:
                self._served.pop(origin_partition.partition, None)
                context.out.append(Drop(origin_partition.partition))

        self._persist(topic, dropped)

    def vector(self) -> list[VectorEntry]:
        """This broker's vector: what it has and what it has deleted, without internal partitions."""
        floors = {
            partition: floor
            for topic in self.by_name.values()
            if topic.own is None
            for partition, floor in topic.deleted_ends.items()
        }
        logs = self._context.logs.items()
        whole = {partition: log for partition, log in logs if log.damaged_at is None and not log.origin_partition.local}
        deleted = [
            VectorEntry(partition, floor) for partition, floor in sorted(floors.items()) if partition not in whole
        ]
        return deleted + [log.vector_entry() for _, log in sorted(whole.items())]
