"""What is served where: topics and partitions as the fabric announces them, and what becomes of those who wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rostra.broker.api import Boot, LogInspected, RecoveredLog
from rostra.broker.partition.control_batch import read_epochs
from rostra.broker.partition.log_derived_state import LogDerivedState
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.publish.producer_table import ProducerTable
from rostra.broker.topics.topic_table import KnownTopic
from rostra.errors import CorruptLog, Moved, RostraError, TopicDeleted, Unavailable
from rostra.fabric.api import (
    Blocked,
    Delivers,
    Drop,
    EpochStart,
    LogLine,
    Open,
    PartitionJoined,
    ReadFailed,
    ServedElsewhere,
    Serving,
    Started,
    TopicChanged,
    TopicClosed,
    TopicOpened,
)
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.wire.messages import Topic, TopicSettings

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


OWNER_PATIENCE_MS = 2_000
"""So long whoever made a topic waits for its owners; then the answer says that none is known."""


class PendingCreate(NamedTuple):
    """A new topic whose maker waits for the answer."""

    token: int
    known: KnownTopic
    until_us: int


class TopicPlacement:
    """Keeps the catalogue in step with the fabric's word."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._logs: dict[Partition, RecoveredLog] = {}
        """What the disk had, until the fabric serves it or drops it; that may be long after the start."""
        self.opened_now: list[PendingCreate] = []

    def boot(self, given: Boot) -> None:
        logs = [_with_earlier_epoch(recovered) for recovered in given.logs]
        self._logs = {recovered.log.partition: recovered for recovered in logs}
        self._broker.ask_fabric(Started(given.hard, tuple(recovered.log for recovered in logs)))

    # --- topics ---

    def topic_opened(self, effect: TopicOpened) -> None:
        spec = effect.spec
        settings = msgspec.msgpack.decode(spec.settings, type=TopicSettings)
        known = KnownTopic(Topic(spec.topic, spec.name, settings))
        for index in range(spec.partitions):
            known.partitions.append(self._served(Partition(spec.topic, PartitionIndex(index)), known.topic))
        self._broker.catalogue.add(known)
        self._broker.watching.appeared(known.topic)
        self._broker.coordinator.topic_changed(spec.name)
        if effect.token is not None:
            until_us = self._broker.now.mono_us + OWNER_PATIENCE_MS * 1000
            self.opened_now.append(PendingCreate(effect.token, known, until_us))

    def topic_changed(self, effect: TopicChanged) -> None:
        spec = effect.spec
        topic = Topic(spec.topic, spec.name, msgspec.msgpack.decode(spec.settings, type=TopicSettings))
        known = self._broker.catalogue.known(spec.topic)
        if known is not None:
            known.topic = topic
            for served in known.partitions:
                served.settle_on(topic.settings)
        self._broker.topics.altered(effect.token, topic)

    def answer_openers(self) -> None:
        """Only when every partition has its owner, who is elected first: the answer says where the topic is served."""
        now_us = self._broker.now.mono_us
        opened, self.opened_now = self.opened_now, []
        for one in opened:
            is_there = self._broker.catalogue.known(TopicId(one.known.topic.topic)) is not None
            waits = any(not _has_owner(it) and not _is_joined(one.known, it) for it in one.known.partitions)
            if is_there and now_us < one.until_us and waits:
                self.opened_now.append(one)
            else:
                self._broker.topics.opened(one.token, one.known)
                self._broker.coordinator.places.opened(one.token)

    def topic_closed(self, effect: TopicClosed) -> None:
        broker = self._broker
        known = broker.catalogue.drop(effect.topic)
        if known is not None:
            error = TopicDeleted(known.topic.name)
            for served in known.partitions:
                broker.ownership.disowned(served.partition)
                broker.fail(served.close(), error)
                self._end_readers(served, error)
            broker.watching.gone(known.topic)
            broker.coordinator.topic_changed(known.topic.name)
        broker.topics.closed(effect.token, effect.topic)

    def joined(self, effect: PartitionJoined) -> None:
        known = self._broker.catalogue.known(effect.topic)
        if known is not None:
            served = self._served(effect.partition, known.topic)
            self._broker.catalogue.join(known, served)
            self._broker.topics.joined(known, served)
            self._broker.coordinator.topic_changed(known.topic.name)

    def _served(self, partition: Partition, topic: Topic) -> ServedPartition:
        broker = self._broker
        table = ProducerTable(broker.settings.producers_per_partition_max, broker.without)
        return ServedPartition(partition, topic, LogDerivedState(table, broker.without), broker.tails)

    # --- partitions ---

    def opened(self, effect: Open) -> None:
        """An empty log: at a topic's making, or because this copy is filled anew from others."""
        served = self._broker.catalogue.served.get(effect.partition)
        if served is not None:
            served.emptied(effect.first)

    def dropped(self, effect: Drop) -> None:
        """What the disk had of it is gone: a copy that begins anew must not be taken for it."""
        self._logs.pop(effect.partition, None)

    def serving(self, effect: Serving) -> None:
        served = self._broker.catalogue.served.get(effect.partition)
        if served is None:
            return
        recovered = self._logs.pop(effect.partition, None)
        if recovered is not None:
            served.recovered(recovered)
            served.commit_is_old = effect.commit < effect.end
        begins = effect.owner and (not served.owner or served.epoch != effect.epoch)
        served.copy, served.owner = True, effect.owner
        served.epoch, served.address = effect.epoch, effect.address
        served.first, served.end, served.commit = effect.first, effect.end, effect.commit
        served.synced = min(served.synced, effect.end)
        served.tail.next = effect.end
        served.books.commit(effect.commit)
        served.blocked = served.unsure
        if begins:
            self._broker.ownership.owned(served)
        if not effect.owner:
            self._turn_away(served)
        self._broker.coordinator.serving(served)

    def recalled(self, given: LogInspected) -> None:
        """A log was looked at again. If it was cut once more meanwhile, or filled anew, this says nothing of it."""
        served = self._broker.catalogue.served.get(given.partition)
        if served is None or served.unsure is None or given.generation != served.generation:
            return
        if not isinstance(given.log, RostraError):
            served.recalled(given.log)
            if served.owner:
                self._broker.ownership.owned(served)
            self._broker.coordinator.follow(served)
            return
        note = LogLine("error", "log not read again", {"partition": str(given.partition), "error": str(given.log)})
        self._broker.out.append(note)
        if isinstance(given.log, CorruptLog):
            # The fabric knows whether others have it whole. Anything else is tried again with the next survey.
            self._broker.ask_fabric(ReadFailed(0, given.partition, given.log))

    def elsewhere(self, effect: ServedElsewhere) -> None:
        served = self._broker.catalogue.served.get(effect.partition)
        if served is not None:
            served.copy = served.owner = False
            served.epoch, served.address = effect.epoch, effect.address
            self._turn_away(served)
            self._broker.coordinator.serving(served)

    def blocked(self, effect: Blocked) -> None:
        served = self._broker.catalogue.served.get(effect.partition)
        if served is not None:
            served.blocked = effect.error
            note = LogLine("error", "partition blocked", {"topic": served.topic, "error": str(effect.error)})
            self._broker.out.append(note)

    def _turn_away(self, served: ServedPartition) -> None:
        """This node does not own it any more. What was ordered here may still commit: the new owner will know it."""
        self._broker.ownership.disowned(served.partition)
        self._broker.fail(served.give_up(), self.not_owner(served))
        error = self.no_reading(served)
        if error is not None:
            self._end_readers(served, error)

    def _end_readers(self, served: ServedPartition, error: RostraError) -> None:
        for reader in list(served.readers.values()):
            self._broker.delivery.end(reader, error, self._broker.out)

    def not_owner(self, served: ServedPartition) -> RostraError:
        """Where a publish belongs that does not belong here."""
        if served.address:
            return Moved(served.address, served.epoch)
        return Unavailable(served.topic, served.partition.index, "no owner is known yet")

    def no_reading(self, served: ServedPartition) -> RostraError | None:
        """Why a subscription is not served here, if it is not."""
        match self._broker.fabric.guarantees.delivers:
            case Delivers.OWNER:
                here = served.owner
            case Delivers.REPLICA:
                # A copy that knows no owner may be cut off with its readers while the others go on without it.
                here = served.copy and (served.owner or bool(served.address))
            case Delivers.HERE:
                here = True
        return None if here else self.not_owner(served)


def _has_owner(served: ServedPartition) -> bool:
    return served.owner or bool(served.address)


def _is_joined(known: KnownTopic, served: ServedPartition) -> bool:
    """Whether the partition has an id of its own, given to it by another node."""
    return served.partition.topic != known.topic.topic


def _with_earlier_epoch(recovered: RecoveredLog) -> RecoveredLog:
    """Adds the row of the epoch before log start, which retention took from the log but the checkpoint remembers."""
    log = recovered.log
    if recovered.checkpoint is None:
        return recovered
    rows = read_epochs(recovered.checkpoint)
    earlier = [EpochStart(epoch, offset) for epoch, offset in rows if offset < log.first]
    if not earlier:
        return recovered
    found = [row for row in log.epochs if row.epoch != earlier[-1].epoch]
    whole = msgspec.structs.replace(log, epochs=(earlier[-1], *found))
    return msgspec.structs.replace(recovered, log=whole)
