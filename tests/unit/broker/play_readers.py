"""Moves of subscribers, from every kind of start, with much credit and with little."""

from __future__ import annotations

from typing import Any

from rostra.broker.api import Reply
from rostra.safeguards import ALL_ON, Without
from rostra.wire.messages import Credit, Ended, Failed, Subscribe, Subscribed, Unsubscribe, Unsubscribed
from tests.unit.broker.play import OPERATOR, PLENTY, Place, Play, move, records_of
from tests.unit.broker.reference import Part, Record


class Reading:
    """A subscription that has come to `at`; `due` is what it must get next, in order."""

    def __init__(self, place: Place, at: int, due: list[Record], thrifty: bool) -> None:
        self.place = place
        self.at = at
        self.due = due
        self.thrifty = thrifty
        """It has little credit and may be behind."""
        self.compacted: set[int] = set()
        """What it need not get any more."""


class ReadersPlay(Play):
    """Subscribers of one partition each."""

    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        super().__init__(seed, without)
        self.readings: dict[tuple[int, int], Reading] = {}
        """By connection and number."""

    def stored(self, place: Place, records: list[Record]) -> None:
        super().stored(place, records)
        for reading in self.readings.values():
            if reading.place == place:
                reading.due += records

    def follow_all(self) -> None:
        for number in sorted(self.readings):
            self.follow(number)

    def look(self, place: Place) -> list[Record]:
        """All that is left in the partition, which must be what the reference can explain."""
        number = self.next_number()
        begun = self.ask(self._subscribe(place, number, "earliest", 0), Subscribed)
        present = records_of(self.pushes.pop((OPERATOR, number), []), begun.next)
        self.ask(Unsubscribe(self.desk.request(), number), Unsubscribed)
        part, topic = self.part(place), self.reference.topics[place[0]]
        before = {record.offset for record in part.records}
        part.forget(present, begun.next, topic.settings, self.desk.now.wall_us)
        compacted = before - {record.offset for record in present}
        for reading in self.readings.values():
            if reading.place == place:
                reading.compacted |= {offset for offset in compacted if offset >= part.first}
        return present

    def _subscribe(self, place: Place, number: int, kind: Any, value: int, credit: int = PLENTY) -> Subscribe:
        self.moment()
        return Subscribe(self.desk.request(), number, self.topic_id(place), place[1], kind, value, credit)

    @move(place=9, kind=4, value=20, thrifty=1)
    def subscribe(self, *, place: int, kind: int, value: int, thrifty: int) -> None:
        where = self.place(place)
        self.look(where)
        part = self.part(where)
        start = ("earliest", "latest", "offset", "last", "time")[kind]
        asked = self._value_of_start(part, start, value)
        conn, number = self.desk.connect(self.next_number()), self.next_number()
        message = self._subscribe(where, number, start, asked, 700 if thrifty else PLENTY)
        self.desk.say(conn, message)
        self.desk.settle()
        begun = next(
            effect.message
            for effect in self.desk.effects
            if isinstance(effect, Reply) and isinstance(effect.message, Subscribed | Failed) and effect.conn == conn
        )
        if isinstance(begun, Failed):
            assert start == "offset" and begun.code == "OffsetOutOfRange", begun
            assert asked < part.first or asked > part.end
            self.listen()
            return
        assert start != "offset" or asked >= part.first
        depth = self.reference.topics[where[0]].settings.history_depth
        assert part.shown(begun.next) == part.shown(part.start(start, asked, depth)), begun
        due = [record for record in part.records if record.offset >= begun.next]
        self.readings[conn, number] = Reading(where, begun.next, due, bool(thrifty))
        self.listen()

    def _value_of_start(self, part: Part, start: str, drawn: int) -> int:
        if start == "offset":
            return (part.end + 3) * drawn // 20
        if start != "time":
            return drawn
        stamps = [record.stamp_us for record in part.records] or [self.desk.now.wall_us]
        return stamps[drawn * (len(stamps) - 1) // 20] + drawn % 2

    def follow(self, number: tuple[int, int]) -> None:
        """What a subscriber got is what was due, in order; only what was compacted away may be missing."""
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
            assert reading.thrifty and ended.code == "OffsetOutOfRange", ended
            assert reading.at < self.part(reading.place).first
        elif not reading.thrifty:
            missing = [record for record in reading.due if record.offset not in reading.compacted]
            assert not missing, f"{missing[0]} is missing"

    @move(which=9, gives_up=1)
    def grant(self, *, which: int, gives_up: int) -> None:
        """A subscriber with too little credit gets enough, or one goes."""
        if not self.readings:
            return
        conn, number = sorted(self.readings)[which % len(self.readings)]
        if gives_up:
            del self.readings[conn, number]
            self.desk.say(conn, Unsubscribe(self.desk.request(), number))
            return
        reading = self.readings[conn, number]
        self.look(reading.place)
        self.moment()
        self.desk.say(conn, Credit(number, PLENTY))
        self.desk.settle()
        reading.thrifty = (conn, number) in {
            (effect.conn, effect.message.subscription)
            for effect in self.desk.effects
            if isinstance(effect, Reply) and isinstance(effect.message, Ended)
        }
        self.listen()
