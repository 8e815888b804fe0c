"""Random operations of subscribers, with every kind of start, with much credit and with little."""

from __future__ import annotations

from typing import Any

from rostra.broker.api import Reply
from rostra.safeguards import ALL_ON, Without
from rostra.wire.messages import Credit, Ended, Failed, Subscribe, Subscribed, Unsubscribe, Unsubscribed
from tests.unit.broker.random_operations import (
    OPERATOR,
    PLENTY,
    RandomOperations,
    TopicPartition,
    operation,
    records_of,
)
from tests.unit.broker.reference_broker import Record, ReferencePartition


class ExpectedSubscription:
    """A subscription that has read up to `at`; `due` is what it must get next, in order."""

    def __init__(self, location: TopicPartition, at: int, due: list[Record], little_credit: bool) -> None:
        self.location = location
        self.at = at
        self.due = due
        self.little_credit = little_credit
        """It has little credit and may be behind."""
        self.compacted: set[int] = set()
        """Offsets that it may miss."""


class RandomReaderOperations(RandomOperations):
    """Subscribers of one partition each."""

    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        super().__init__(seed, without)
        self.readings: dict[tuple[int, int], ExpectedSubscription] = {}
        """By connection and number."""

    def stored(self, location: TopicPartition, records: list[Record]) -> None:
        super().stored(location, records)
        for reading in self.readings.values():
            if reading.location == location:
                reading.due += records

    def check_pushes(self) -> None:
        for number in sorted(self.readings):
            self.check_push(number)

    def read_all(self, location: TopicPartition) -> list[Record]:
        """Reads all that is left in the partition, which the reference must be able to explain."""
        number = self.next_number()
        begun = self.ask(self._subscribe(location, number, "earliest", 0), Subscribed)
        present = records_of(self.pushes.pop((OPERATOR, number), []), begun.next)
        self.ask(Unsubscribe(self.driver.request(), number), Unsubscribed)
        partition, topic = self.partition(location), self.reference.topics[location[0]]
        before = {record.offset for record in partition.records}
        partition.forget(present, begun.next, topic.settings, self.driver.now.wall_us)
        compacted = before - {record.offset for record in present}
        for reading in self.readings.values():
            if reading.location == location:
                reading.compacted |= {offset for offset in compacted if offset >= partition.first}
        return present

    def _subscribe(
        self, location: TopicPartition, number: int, kind: Any, value: int, credit: int = PLENTY
    ) -> Subscribe:
        self.wait_for_throttle()
        return Subscribe(self.driver.request(), number, self.topic_id(location), location[1], kind, value, credit)

    @operation(location=9, kind=4, value=20, little_credit=1)
    def subscribe(self, *, location: int, kind: int, value: int, little_credit: int) -> None:
        where = self.choose_partition(location)
        self.read_all(where)
        partition = self.partition(where)
        start = ("earliest", "latest", "offset", "last", "time")[kind]
        asked = self._value_of_start(partition, start, value)
        conn, number = self.driver.connect(self.next_number()), self.next_number()
        message = self._subscribe(where, number, start, asked, 700 if little_credit else PLENTY)
        self.driver.send(conn, message)
        self.driver.settle()
        begun = next(
            effect.message
            for effect in self.driver.effects
            if isinstance(effect, Reply) and isinstance(effect.message, Subscribed | Failed) and effect.conn == conn
        )
        if isinstance(begun, Failed):
            assert start == "offset" and begun.code == "OffsetOutOfRange", begun
            assert asked < partition.first or asked > partition.end
            self.receive()
            return
        assert start != "offset" or asked >= partition.first
        depth = self.reference.topics[where[0]].settings.history_depth
        assert partition.shown(begun.next) == partition.shown(partition.start(start, asked, depth)), begun
        due = [record for record in partition.records if record.offset >= begun.next]
        self.readings[conn, number] = ExpectedSubscription(where, begun.next, due, bool(little_credit))
        self.receive()

    def _value_of_start(self, partition: ReferencePartition, start: str, drawn: int) -> int:
        if start == "offset":
            return (partition.end + 3) * drawn // 20
        if start != "time":
            return drawn
        stamps = [record.stamp_us for record in partition.records] or [self.driver.now.wall_us]
        return stamps[drawn * (len(stamps) - 1) // 20] + drawn % 2

    def check_push(self, number: tuple[int, int]) -> None:
        """A subscriber gets what is due, in order; only compacted records may be missing."""
        reading = self.readings[number]
        for record in records_of(self.pushes.pop(number, []), reading.at):
            while reading.due[0].offset < record.offset and reading.due[0].offset in reading.compacted:
                del reading.due[0]
            assert reading.due[0] == record, f"{record} comes before {reading.due[0]}"
            del reading.due[0]
            reading.at = record.offset + 1
        ended = self.ended.pop(number, None)
        if ended is not None:
            del self.readings[number]
            assert reading.little_credit and ended.code == "OffsetOutOfRange", ended
            assert reading.at < self.partition(reading.location).first
        elif not reading.little_credit:
            missing = [record for record in reading.due if record.offset not in reading.compacted]
            assert not missing, f"{missing[0]} is missing"

    @operation(which=9, gives_up=1)
    def grant(self, *, which: int, gives_up: int) -> None:
        """Grants a subscriber more credit, or ends its subscription."""
        if not self.readings:
            return
        conn, number = sorted(self.readings)[which % len(self.readings)]
        if gives_up:
            del self.readings[conn, number]
            self.driver.send(conn, Unsubscribe(self.driver.request(), number))
            return
        reading = self.readings[conn, number]
        self.read_all(reading.location)
        self.wait_for_throttle()
        self.driver.send(conn, Credit(number, PLENTY))
        self.driver.settle()
        reading.little_credit = (conn, number) in {
            (effect.conn, effect.message.subscription)
            for effect in self.driver.effects
            if isinstance(effect, Reply) and isinstance(effect.message, Ended)
        }
        self.receive()
