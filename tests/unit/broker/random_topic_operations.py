"""Random operations on topics, and crashes of the node."""

from __future__ import annotations

import msgspec

from rostra.safeguards import ALL_ON, Without
from rostra.simulator.disk.faulty_files import SimulatedCrash
from rostra.wire.messages import (
    CreateTopic,
    DeleteTopic,
    Failed,
    Publish,
    Subscribe,
    Subscribed,
    TopicCreated,
    TopicDropped,
    TopicSettings,
    Unsubscribe,
    Unsubscribed,
)
from tests.unit.broker.random_operations import (
    OPERATOR,
    PLENTY,
    SEGMENT_BYTES,
    SentBatch,
    TopicPartition,
    operation,
    records_of,
)
from tests.unit.broker.random_reader_operations import RandomReaderOperations
from tests.unit.broker.reference_broker import ReferenceTopic


class RandomTopicOperations(RandomReaderOperations):
    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        super().__init__(seed, without)
        self.deleted: dict[str, int] = {}
        """The last deleted topic of each name."""

    # --- topics ---

    @operation(name=2, partitions=1, exclusive=2, compaction=1, retention=3)
    def make_or_delete(self, *, name: int, partitions: int, exclusive: int, compaction: int, retention: int) -> None:
        which = f"t/{name}"
        if which in self.reference.topics:
            if len(self.reference.topics) > 1:
                self.delete(which)
            return
        settings = TopicSettings(
            partitions=partitions + 1,
            segment_bytes=SEGMENT_BYTES,
            ownership="shared" if exclusive else "exclusive",
            compaction=bool(compaction),
            tombstone_ms=2000,
            retention_ms=3000 if retention == 1 else 0,
            retention_bytes=9000 if retention == 2 else 0,
        )
        made = self.ask(CreateTopic(self.driver.request(), which, settings), TopicCreated)
        self.reference.topics[which] = ReferenceTopic(made.topic.topic, made.topic.settings)
        assert msgspec.structs.replace(made.topic.settings, replicas=0) == settings

    def delete(self, name: str) -> None:
        self.driver.send(OPERATOR, DeleteTopic(request := self.driver.request(), name))
        self.driver.settle()
        over = [number for number, reading in self.readings.items() if reading.location[0] == name]
        for number in over:
            del self.readings[number]
        self.receive()
        assert isinstance(self.replies.pop(request), TopicDropped)
        for number in over:
            assert self.ended.pop(number).code == "TopicDeleted"
        self.deleted[name] = self.reference.delete(name)

    @operation(name=2)
    def subscribe_to_deleted(self, *, name: int) -> None:
        """A topic that was created again has another id."""
        which = f"t/{name}"
        if which in self.deleted:
            message = Subscribe(
                self.driver.request(), self.next_number(), self.deleted[which], 0, "earliest", 0, PLENTY
            )
            refused = self.ask(message, Failed)
            expected = ("TopicRecreated",) if which in self.reference.topics else ("TopicDeleted",)
            assert refused.code in (*expected, "UnknownTopic"), refused

    # --- crashes ---

    @operation(_settled=False, power=1, gives_up=1)
    def crash(self, *, power: int, gives_up: int) -> None:
        """Unacknowledged batches are sent again; if the producer gives up, some of the first ones may be stored."""
        if not power:
            self.driver.disk.flush()
        self.start_again(bool(power), bool(gives_up))

    @operation(_settled=False, operations=40, with_retention=1, power=1, gives_up=1)
    def crash_in_the_middle(self, *, operations: int, with_retention: int, power: int, gives_up: int) -> None:
        """The process ends between two changes to its files."""
        self.driver.files.faults.operations_left = operations
        try:
            if with_retention:
                self.run_retention_once()
            self.driver.settle()
        except SimulatedCrash:
            pass
        self.driver.files.faults.operations_left = None
        self.start_again(bool(power), bool(gives_up))

    def run_retention_once(self) -> None:
        """One run of retention and compaction."""

    def start_again(self, power: bool, gives_up: bool) -> None:
        # Records acknowledged until now must be stored.
        self.receive()
        self.driver = self.driver.after_a_crash(power=power)
        self.readings.clear()
        self.conns.clear()
        self.pushes.clear()
        self.ended.clear()
        self.replies.clear()
        self.driver.connect(OPERATOR)
        unacknowledged, self.unacknowledged = self.unacknowledged, []
        self.restarted()
        for sent in unacknowledged:
            if gives_up and self.reference.topics[sent.location[0]].settings.ownership == "shared":
                continue
            self.sent_again(sent)
        if gives_up:
            for location in self.topic_partitions():
                self.adopt(location, [sent for sent in unacknowledged if sent.location == location])
        for location in self.topic_partitions():
            self.read_all(location)

    def restarted(self) -> None:
        """Clients reconnect."""

    def sent_again(self, sent: SentBatch) -> None:
        topic, request = self.topic_id(sent.location), self.driver.request()
        self.expected_outcome(sent.location, sent.producer)
        self.driver.send(self.conn(sent.producer), Publish(request, topic, sent.location[1], "all", True), sent.batch)
        self.unacknowledged.append(sent._replace(request=request))
        self.settle()

    def adopt(self, location: TopicPartition, unacknowledged: list[SentBatch]) -> None:
        """Producers start a new epoch; of their unacknowledged batches the log has some of the first ones."""
        partition = self.partition(location)
        if self.reference.topics[location[0]].settings.ownership != "shared" or not unacknowledged:
            return
        number = self.next_number()
        begun = self.ask(self._subscribe(location, number, "offset", max(partition.end, partition.first)), Subscribed)
        found = records_of(self.pushes.pop((OPERATOR, number), []), begun.next)
        self.ask(Unsubscribe(self.driver.request(), number), Unsubscribed)
        for sent in unacknowledged:
            known = partition.producers[sent.producer]
            partition.producers[sent.producer] = known._replace(epoch=known.epoch + 1, expected=0, sent={})
            kept, found = found[: len(sent.rows)], found[len(sent.rows) :]
            if kept:
                assert [record._replace(offset=0) for record in kept] == sent.rows
                partition.append(kept)
            else:
                assert not found
