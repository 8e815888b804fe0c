"""What publishers and subscribers write down as they go, each in a book of its own."""

from __future__ import annotations

from collections.abc import Sequence

from rostra.demo.expected import Acknowledgement, ExpectedSubscription, RecordName

FILLER = b"." * 64


def value_of(publisher: str, number: int) -> bytes:
    """About a hundred bytes that tell which record it is."""
    return b"%b %d %b" % (publisher.encode(), number, FILLER)


def name_of(value: bytes | None) -> RecordName:
    """The inverse of `value_of`. Anything else gets a name that nobody sent."""
    parts = (value or b"").split(b" ", 2)
    if len(parts) != 3 or not parts[1].isdigit() or parts[2] != FILLER:
        return RecordName("?", -1)
    return RecordName(parts[0].decode(errors="replace"), int(parts[1]))


class PublishedLog:
    """One publisher into one partition: there, acknowledgements come in the order of sending."""

    def __init__(self, publisher: str, topic: str, partition: int) -> None:
        self.publisher = publisher
        self.topic = topic
        self.partition = partition
        self.sent = 0
        self.acknowledged = 0
        self.acknowledgements: list[Acknowledgement] = []

    def next_values(self, count: int) -> list[bytes]:
        first = self.sent
        self.sent += count
        return [value_of(self.publisher, number) for number in range(first, first + count)]

    def acknowledge(self, records: int) -> None:
        ack = Acknowledgement(self.publisher, self.topic, self.acknowledged, records)
        self.acknowledged += records
        self.acknowledgements.append(ack)


class ReceivedLog:
    """One subscription: every record that came, in the order of coming."""

    def __init__(self, interest: ExpectedSubscription) -> None:
        self.interest = interest
        self.names: list[RecordName] = []

    def take(self, values: Sequence[bytes | None]) -> None:
        self.names += map(name_of, values)
