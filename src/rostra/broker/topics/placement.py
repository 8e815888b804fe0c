"""Applies the fabric's announcements of topics and partitions: which exist, which this node serves or owns."""

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


OWNER_WAIT_MS = 2_000
"""How long the reply to a creation waits for the partitions' owners; then it says that none is known."""


class PendingCreate(NamedTuple):
    """A new topic whose creator waits for the reply."""

    token: int
    known: KnownTopic
    until_us: int


class TopicPlacement:
    """Keeps the topic table in step with the fabric."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._logs: dict[Partition, RecoveredLog] = {}
        """Logs found on disk that the fabric has neither served nor dropped yet; that may take long after the start."""
        self.pending_creates: list[PendingCreate] = []

    def boot(self, given: Boot) -> None:
        logs = [_with_earlier_epoch(recovered) for recovered in given.logs]
        self._logs = {recovered.log.partition: recovered for recovered in logs}
        self._broker.step_fabric(Started(given.hard, tuple(recovered.log for recovered in logs)))

    # --- topics ---

    def topic_opened(self, effect: TopicOpened) -> None:
        spec = effect.spec
        settings = msgspec.msgpack.decode(spec.settings, type=TopicSettings)
        known = KnownTopic(Topic(spec.topic, spec.name, settings))
        for index in range(spec.partitions):
            known.partitions.append(self._served(Partition(spec.topic, PartitionIndex(index)), known.topic))
        self._broker.topic_table.add(known)
        self._broker.pattern_watches.topic_added(known.topic)
        self._broker.coordinator.topic_changed(spec.name)
        if effect.token is not None:
            until_us = self._broker.now.mono_us + OWNER_WAIT_MS * 1000
            self.pending_creates.append(PendingCreate(effect.token, known, until_us))

    def topic_changed(self, effect: TopicChanged) -> None:
        spec = effect.spec
        topic = Topic(spec.topic, spec.name, msgspec.msgpack.decode(spec.settings, type=TopicSettings))
        known = self._broker.topic_table.by_id(spec.topic)
        if known is not None:
            known.topic = topic
            for served in known.partitions:
                served.apply_settings(topic.settings)
        self._broker.topic_requests.altered(effect.token, topic)

    def answer_creates(self) -> None:
        """Replies once every partition has elected its owner, since the reply says where the topic is served."""
        now_us = self._broker.now.mono_us
        opened, self.pending_creates = self.pending_creates, []
        for one in opened:
            is_there = self._broker.topic_table.by_id(TopicId(one.known.topic.topic)) is not None
            waits = any(not _has_owner(it) and not _is_joined(one.known, it) for it in one.known.partitions)
            if is_there and now_us < one.until_us and waits:
                self.pending_creates.append(one)
            else:
                self._broker.topic_requests.opened(one.token, one.known)
                self._broker.coordinator.locator.opened(one.token)
                self._broker.sink_locator.opened(one.token)

    def topic_closed(self, effect: TopicClosed) -> None:
        broker = self._broker
        known = broker.topic_table.drop(effect.topic)
        if known is not None:
            error = TopicDeleted(known.topic.name)
            for served in known.partitions:
                broker.ownership.lost(served.partition)
                broker.fail(served.close(), error)
                self._end_readers(served, error)
            broker.pattern_watches.topic_removed(known.topic)
            broker.coordinator.topic_changed(known.topic.name)
        broker.topic_requests.closed(effect.token, effect.topic)

    def partition_joined(self, effect: PartitionJoined) -> None:
        known = self._broker.topic_table.by_id(effect.topic)
        if known is not None:
            served = self._served(effect.partition, known.topic)
            self._broker.topic_table.join(known, served)
            self._broker.topic_requests.joined(known, served)
            self._broker.coordinator.topic_changed(known.topic.name)

    def _served(self, partition: Partition, topic: Topic) -> ServedPartition:
        broker = self._broker
        table = ProducerTable(broker.settings.producers_per_partition_max, broker.without)
        return ServedPartition(partition, topic, LogDerivedState(table, broker.without), broker.tail_cache)

    # --- partitions ---

    def opened(self, effect: Open) -> None:
        """An empty log: the topic is new, or this copy is to be filled from other nodes."""
        served = self._broker.topic_table.served.get(effect.partition)
        if served is not None:
            served.reset(effect.first)

    def dropped(self, effect: Drop) -> None:
        """The log on disk is deleted: a copy created later must not be mistaken for it."""
        self._logs.pop(effect.partition, None)

    def serving(self, effect: Serving) -> None:
        served = self._broker.topic_table.served.get(effect.partition)
        if served is None:
            return
        recovered = self._logs.pop(effect.partition, None)
        if recovered is not None:
            served.recovered(recovered)
            served.commit_is_stale = effect.commit < effect.end
        begins = effect.owner and (not served.owner or served.epoch != effect.epoch)
        served.has_log, served.owner = True, effect.owner
        served.epoch, served.address = effect.epoch, effect.address
        served.first, served.end, served.commit = effect.first, effect.end, effect.commit
        served.synced = min(served.synced, effect.end)
        served.tail.next = effect.end
        served.derived.commit(effect.commit)
        served.blocked = served.rebuilding
        if begins:
            self._broker.ownership.gained(served)
        if not effect.owner:
            self._lost_ownership(served)
        self._broker.coordinator.serving(served)
        self._broker.sinks.serving(served)

    def log_inspected(self, given: LogInspected) -> None:
        """Rebuilds derived state from the log. Ignored if the log was truncated or replaced meanwhile."""
        served = self._broker.topic_table.served.get(given.partition)
        if served is None or served.rebuilding is None or given.generation != served.generation:
            return
        if not isinstance(given.log, RostraError):
            served.rebuilt(given.log)
            if served.owner:
                self._broker.ownership.gained(served)
            self._broker.coordinator.state_rewound(served)
            self._broker.sinks.state_rewound(served)
            return
        note = LogLine("error", "log inspection failed", {"partition": str(given.partition), "error": str(given.log)})
        self._broker.out.append(note)
        if isinstance(given.log, CorruptLog):
            # The fabric knows whether other nodes have it intact. Other errors are retried by the retention timer.
            self._broker.step_fabric(ReadFailed(0, given.partition, given.log))

    def served_elsewhere(self, effect: ServedElsewhere) -> None:
        served = self._broker.topic_table.served.get(effect.partition)
        if served is not None:
            served.has_log = served.owner = False
            served.epoch, served.address = effect.epoch, effect.address
            self._lost_ownership(served)
            self._broker.coordinator.serving(served)
            self._broker.sinks.serving(served)

    def blocked(self, effect: Blocked) -> None:
        served = self._broker.topic_table.served.get(effect.partition)
        if served is not None:
            served.blocked = effect.error
            note = LogLine("error", "partition blocked", {"topic": served.topic, "error": str(effect.error)})
            self._broker.out.append(note)

    def _lost_ownership(self, served: ServedPartition) -> None:
        """This node does not own the partition any more. Batches ordered here may still commit: the new owner knows."""
        self._broker.ownership.lost(served.partition)
        self._broker.fail(served.take_parked(), self.not_owner(served))
        error = self.read_error(served)
        if error is not None:
            self._end_readers(served, error)

    def _end_readers(self, served: ServedPartition, error: RostraError) -> None:
        for reader in list(served.readers.values()):
            self._broker.delivery.end(reader, error, self._broker.out)

    def not_owner(self, served: ServedPartition) -> RostraError:
        """Redirects a request to the owner, if it is known."""
        if served.address:
            return Moved(served.address, served.epoch)
        return Unavailable(served.topic, served.partition.index, "no owner is known yet")

    def read_error(self, served: ServedPartition) -> RostraError | None:
        """Why a subscription is not served here, if it is not."""
        match self._broker.fabric.guarantees.delivers:
            case Delivers.OWNER:
                here = served.owner
            case Delivers.REPLICA:
                # A copy without a known owner may be partitioned from the others while these go on.
                here = served.has_log and (served.owner or bool(served.address))
            case Delivers.HERE:
                here = True
        return None if here else self.not_owner(served)


def _has_owner(served: ServedPartition) -> bool:
    return served.owner or bool(served.address)


def _is_joined(known: KnownTopic, served: ServedPartition) -> bool:
    """Whether the partition was added by another node and has an id of its own."""
    return served.partition.topic != known.topic.topic


def _with_earlier_epoch(recovered: RecoveredLog) -> RecoveredLog:
    """Adds the epoch before log start, which retention removed from the log but the checkpoint holds."""
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
