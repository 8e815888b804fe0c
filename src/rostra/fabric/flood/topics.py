"""The topics of this broker, by name, and the parts of them that it knows: its own and those of the others.

Every broker has topics of its own. Whoever asks for one makes it here, and so does a record of it that comes along the
ring. A topic's id is the id of the part that this broker publishes to it, drawn anew with each incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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
from rostra.fabric.flood.origin_partition import OriginLog, OriginPartition, VectorEntry
from rostra.model.ids import Partition, PartitionIndex, TopicId, random_id

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood

TOPIC = "flood/topic/"


class StoredTopic(msgspec.Struct, frozen=True, array_like=True):
    """What is on stable storage of a topic. Without `own` the topic was deleted here.

    `floors` say how much of each part was there at that time: nobody needs to send it again, and nobody is shown it.
    """

    own: OriginPartition | None
    parts: tuple[OriginPartition, ...]
    floors: tuple[VectorEntry, ...]


class FloodTopic:
    """`own` and `parts` are as they will be when what is being written down is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.own: OriginPartition | None = None
        self.parts: dict[Partition, OriginPartition] = {}
        self.floors: dict[Partition, int] = {}
        self.open = False
        """Whether the broker above knows it."""
        self.version = 0
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        """What is done when this version is on stable storage."""

    def everything(self) -> list[OriginPartition]:
        own = [self.own] if self.own is not None else []
        return [*own, *(self.parts[partition] for partition in sorted(self.parts))]

    def packed(self) -> bytes:
        floors = tuple(VectorEntry(partition, self.floors[partition]) for partition in sorted(self.floors))
        return msgspec.msgpack.encode(StoredTopic(self.own, tuple(self.parts.values()), floors))


class FloodTopics:
    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self.named: dict[str, FloodTopic] = {}
        self._of_part: dict[Partition, FloodTopic] = {}

    def recall(self, hard: dict[str, bytes]) -> None:
        for key in sorted(hard):
            if key.startswith(TOPIC) and hard[key]:
                kept = msgspec.msgpack.decode(hard[key], type=StoredTopic)
                topic = self.named[key.removeprefix(TOPIC)] = FloodTopic(key.removeprefix(TOPIC))
                topic.own = kept.own
                topic.parts = {part.partition: part for part in kept.parts}
                topic.floors = {entry.partition: entry.end for entry in kept.floors}
                self._of_part.update((part.partition, topic) for part in topic.everything())

    def of_part(self, partition: Partition) -> FloodTopic | None:
        return self._of_part.get(partition)

    def named_by(self, topic: TopicId) -> FloodTopic | None:
        """The one that the broker above knows under this id."""
        found = self._of_part.get(Partition(topic, PartitionIndex(0)))
        own = found.own if found is not None else None
        return found if own is not None and own.partition.topic == topic else None

    # --- writing down --------------------------------------------------------------------------------

    def _write_down(self, topic: FloodTopic, then: Callable[[], None]) -> None:
        topic.version += 1
        topic.waiting.append((topic.version, then))
        for part in topic.everything():
            self._of_part[part.partition] = topic
        key = TOPIC + topic.name
        self._flood.out.append(Persist(key, topic.packed(), (Echo(key, topic.version),)))

    def written(self, name: str, version: int) -> None:
        topic = self.named.get(name)
        if topic is None:
            return
        done = [act for waiting, act in topic.waiting if waiting <= version]
        topic.waiting = [one for one in topic.waiting if one[0] > version]
        for act in done:
            act()

    def draw_own(self, name: str, segment_bytes: int, settings: bytes, topic: TopicId | None = None) -> OriginPartition:
        flood = self._flood
        drawn = topic if topic is not None else TopicId(random_id(flood.random))
        partition = Partition(drawn, PartitionIndex(0))
        return OriginPartition(partition, name, flood.node, flood.boot, segment_bytes, settings)

    # --- making --------------------------------------------------------------------------------------

    def propose(self, given: ProposeTopic) -> None:
        spec, token = given.spec, given.token
        topic = self.named.get(spec.name)
        if spec.partitions != 1:
            reason = "here a topic has one for each broker that publishes to it; leave it at 1"
            self._flood.out.append(Refused(token, InvalidSetting("partitions", reason)))
        elif topic is not None and topic.own is not None:
            self._refuse_existing(topic, token)
        elif topic is not None and topic.open:
            self._flood.out.append(Refused(token, Unavailable(spec.name, 0, "its deletion is being written down")))
        else:
            topic = self.named.setdefault(spec.name, FloodTopic(spec.name))
            topic.own = self.draw_own(spec.name, given.segment_bytes, spec.settings, spec.topic)
            self._write_down(topic, lambda: self.show(topic, token))

    def _refuse_existing(self, topic: FloodTopic, token: int) -> None:
        """Not before the broker knows the topic: one that arrived from another broker may still be being persisted."""
        refused = Refused(token, TopicExists(topic.name))
        if topic.open:
            self._flood.out.append(refused)
        else:
            topic.waiting.append((topic.version, lambda: self._flood.out.append(refused)))

    def renew(self, topic: FloodTopic) -> None:
        """A new incarnation publishes to a part of its own; what the one before had published is like another's."""
        before = topic.own
        assert before is not None
        topic.parts[before.partition] = before
        topic.own = self.draw_own(topic.name, before.segment_bytes, before.settings)
        self._write_down(topic, lambda: self.show(topic, None))

    def hear_of(self, parts: tuple[OriginPartition, ...]) -> list[OriginPartition]:
        """Of these parts, those whose records can be taken at once; the others will be, in a moment."""
        ready: list[OriginPartition] = []
        for part in parts:
            topic = self.named.setdefault(part.name, FloodTopic(part.name))
            if part.partition in self._flood.copies:
                ready.append(part)
            elif part.partition in topic.parts and topic.own is not None:
                continue
            elif topic.own is None and topic.open:
                # Its deletion is being written down; the neighbour will offer it again.
                continue
            else:
                self._take_in(topic, part)
        return ready

    def _take_in(self, topic: FloodTopic, part: OriginPartition) -> None:
        topic.parts[part.partition] = part
        if topic.own is None:
            topic.own = self.draw_own(topic.name, part.segment_bytes, part.settings)

        def taken_in() -> None:
            self.show(topic, None)
            self._flood.taken_in(part.partition)

        self._write_down(topic, taken_in)

    def show(self, topic: FloodTopic, token: int | None) -> None:
        """The broker above learns of the topic, and of the parts that have joined it."""
        flood, own = self._flood, topic.own
        if own is None:
            return
        if not topic.open:
            topic.open = True
            flood.out.append(TopicOpened(token, own.spec()))
        for part in topic.everything():
            if part.partition not in flood.shown:
                flood.shown[part.partition] = None
                if part is not own:
                    flood.out.append(PartitionJoined(own.partition.topic, part.partition, part.origin))
                self._serve(topic, part)

    def _serve(self, topic: FloodTopic, part: OriginPartition) -> None:
        flood = self._flood
        copy = flood.copies.get(part.partition)
        if copy is None:
            first = topic.floors.get(part.partition, 0)
            copy = flood.copies[part.partition] = OriginLog(part, first, first, own=part is topic.own)
            flood.out.append(Open(part.partition, part.segment_bytes, first))
        self.announce(copy)

    def announce(self, copy: OriginLog) -> None:
        flood, part = self._flood, copy.part
        flood.out.append(Serving(part.partition, part.epoch, copy.own, copy.first, copy.end, copy.synced))
        if copy.damaged_at is not None:
            error = PartitionDamaged(part.name, part.partition.index, copy.damaged_at)
            flood.out.append(Blocked(part.partition, error))

    def alter(self, given: ProposeSettings) -> None:
        """Here alone: each broker keeps what it has as it likes."""
        flood = self._flood
        topic = self.named_by(given.topic)
        if topic is None or topic.own is None or not topic.open:
            flood.out.append(Refused(given.token, UnknownTopic(str(given.topic))))
            return
        topic.own = replace(topic.own, settings=given.settings, segment_bytes=given.segment_bytes)
        copy = flood.copies.get(topic.own.partition)
        if copy is not None:
            copy.part = topic.own
        spec = topic.own.spec()
        self._write_down(topic, lambda: flood.out.append(TopicChanged(given.token, spec)))

    # --- deleting ------------------------------------------------------------------------------------

    def drop(self, given: ProposeDrop) -> None:
        """Here, and nowhere else; a record of it that comes along the ring makes it anew."""
        flood = self._flood
        topic = self.named_by(given.topic)
        if topic is None or not topic.open:
            flood.out.append(Refused(given.token, UnknownTopic(str(given.topic))))
            return
        parts = topic.everything()
        for part in parts:
            topic.parts[part.partition] = part
            copy = flood.copies.pop(part.partition, None)
            if copy is not None:
                topic.floors[part.partition] = copy.end
        topic.own = None

        def dropped() -> None:
            topic.open = False
            flood.out.append(TopicClosed(given.token, given.topic))
            for part in parts:
                flood.shown.pop(part.partition, None)
                flood.out.append(Drop(part.partition))

        self._write_down(topic, dropped)

    def vector(self) -> list[VectorEntry]:
        """What this broker needs not be sent: what it has, and what it has deleted; not what it keeps for itself."""
        floors = {
            partition: floor
            for topic in self.named.values()
            if topic.own is None
            for partition, floor in topic.floors.items()
        }
        copies = self._flood.copies.items()
        whole = {partition: copy for partition, copy in copies if copy.damaged_at is None and not copy.part.local}
        deleted = [
            VectorEntry(partition, floor) for partition, floor in sorted(floors.items()) if partition not in whole
        ]
        return deleted + [copy.entry() for _, copy in sorted(whole.items())]
