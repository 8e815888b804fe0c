"""Drives a broker with one exclusive topic, and renders its log as text."""

from __future__ import annotations

from typing import Any

from rostra.broker.partition.control_batch import read_control
from rostra.broker.publish.ownership import LEASES
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft
from rostra.fabric.api import TimerFired
from rostra.model.batch import BROKER_STATE, SUPPRESSED, read_header
from rostra.model.decode import iterate
from rostra.wire.messages import Ping, Register, Unregister
from tests.unit.broker.broker_driver import BrokerDriver, partition_id

LEASE_MS = 900
STRONG, WEAK, THIRD = 30, 20, 10
"""Publishers; of equal strength the last of them would be delivered."""


class ExclusiveTopicDriver(BrokerDriver):
    """A node with one exclusive topic and one subscriber to it; each publisher has its own connection."""

    def begin(self, **settings: Any) -> ExclusiveTopicDriver:
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
        self.send(conn, Register(self.request(), self.topic, 0, publisher, strength, lease_ms))
        self.settle()

    def resign(self, conn: int, publisher: int) -> None:
        self.send(conn, Unregister(self.request(), self.topic, 0, publisher))
        self.settle()

    def write(self, conn: int, publisher: int, *values: bytes) -> None:
        sequence = self.sequences.get(publisher, 0)
        self.sequences[publisher] = sequence + len(values)
        self.publish(conn, self.topic, *values, producer=publisher, sequence=sequence)
        self.settle()

    def pass_ms(self, elapsed_ms: int, *heard: int) -> None:
        """Advances time in small steps; these connections send heartbeats."""
        until_us = self.now.mono_us + elapsed_ms * 1000
        while self.now.mono_us < until_us:
            self.advance_ms(10)
            for conn in heard:
                self.send(conn, Ping(self.request()))
            due_us = self.timers.get(LEASES)
            if due_us is not None and due_us <= self.now.mono_us:
                del self.timers[LEASES]
                self.step(TimerFired(LEASES))
            self.settle()

    def story(self) -> list[str]:
        """The log as text: registrations, departures, delivered and suppressed records."""
        lines: list[str] = []
        for batch in self.logs[partition_id(self.topic)].batches:
            header = read_header(batch)
            if header.owner_flags & BROKER_STATE:
                for entry in read_control(batch):
                    match entry:
                        case PublisherJoined():
                            lines.append(f"{entry.publisher} has {entry.strength}")
                        case PublisherLeft():
                            lines.append(f"{entry.publisher} went: {entry.reason}")
                        case _:
                            raise AssertionError(entry)
            elif not header.is_control:
                mark = "-" if header.owner_flags & SUPPRESSED else "+"
                values = [value or b"" for found in iterate(bytes(batch)) for value in found.values()]
                lines += [f"{mark}{value.decode()}" for value in values]
        return lines

    def delivered(self) -> list[bytes | None]:
        """Records delivered to the subscriber, without suppressed ones."""
        return [
            value
            for effect in self.effects
            for batch in getattr(effect, "batches", ())
            for found in iterate(bytes(batch))
            if not found.header.is_control and not found.header.owner_flags
            for value in found.values()
        ]
