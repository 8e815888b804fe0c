"""A broker with one exclusive topic, driven by hand, and its log told in words."""

from __future__ import annotations

from typing import Any

from rostra.broker.partition.control_batch import read_control
from rostra.broker.publish.ownership import LEASES
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft
from rostra.fabric.api import TimerFired
from rostra.model.batch import LEDGER, SUPPRESSED, read_header
from rostra.model.decode import iterate
from rostra.wire.messages import Ping, Register, Resign
from tests.unit.broker.desk import Desk, part

LEASE_MS = 900
STRONG, WEAK, THIRD = 30, 20, 10
"""Publishers; of equal strength the last of them would be delivered."""


class Exclusive(Desk):
    """A node with one exclusive topic and one subscriber to it, and publishers on connections of their own."""

    def begin(self, **settings: Any) -> Exclusive:
        self.start()
        self.connect(1)
        self.topic = self.make_topic(1, ownership="exclusive", **settings)
        self.subscribe(1, self.topic)
        self.settle()
        self.sequences: dict[int, int] = {}
        return self

    def register(self, conn: int, publisher: int, strength: int, lease_ms: int = LEASE_MS) -> None:
        if conn not in self.greeted:
            self.connect(conn)
        self.say(conn, Register(self.request(), self.topic, 0, publisher, strength, lease_ms))
        self.settle()

    def resign(self, conn: int, publisher: int) -> None:
        self.say(conn, Resign(self.request(), self.topic, 0, publisher))
        self.settle()

    def write(self, conn: int, publisher: int, *values: bytes) -> None:
        sequence = self.sequences.get(publisher, 0)
        self.sequences[publisher] = sequence + len(values)
        self.publish(conn, self.topic, *values, producer=publisher, sequence=sequence)
        self.settle()

    def pass_ms(self, elapsed_ms: int, *heard: int) -> None:
        """In steps of a few milliseconds; these connections are heard all the while."""
        until_us = self.now.mono_us + elapsed_ms * 1000
        while self.now.mono_us < until_us:
            self.after_ms(10)
            for conn in heard:
                self.say(conn, Ping(self.request()))
            due_us = self.timers.get(LEASES)
            if due_us is not None and due_us <= self.now.mono_us:
                del self.timers[LEASES]
                self.step(TimerFired(LEASES))
            self.settle()

    def story(self) -> list[str]:
        """The log in words: who came, who went, what was delivered and what was not."""
        told: list[str] = []
        for batch in self.logs[part(self.topic)].batches:
            header = read_header(batch)
            if header.owner_flags & LEDGER:
                for entry in read_control(batch):
                    match entry:
                        case PublisherJoined():
                            told.append(f"{entry.publisher} has {entry.strength}")
                        case PublisherLeft():
                            told.append(f"{entry.publisher} went: {entry.reason}")
                        case _:
                            raise AssertionError(entry)
            elif not header.is_control:
                mark = "-" if header.owner_flags & SUPPRESSED else "+"
                values = [value or b"" for found in iterate(bytes(batch)) for value in found.values()]
                told += [f"{mark}{value.decode()}" for value in values]
        return told

    def delivered(self) -> list[bytes | None]:
        """To the subscriber, as its client shows them: what is suppressed is left out there."""
        return [
            value
            for effect in self.effects
            for batch in getattr(effect, "batches", ())
            for found in iterate(bytes(batch))
            if not found.header.is_control and not found.header.owner_flags
            for value in found.values()
        ]
