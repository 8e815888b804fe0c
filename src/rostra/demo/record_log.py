"""What each publisher sent and each subscriber received."""

from __future__ import annotations

from collections.abc import Sequence

from rostra.demo.expected import Acknowledgement, ExpectedSubscription, RecordId

FILLER = b"." * 64


def record_value(publisher: str, number: int) -> bytes:
    """About a hundred bytes that identify the record."""
    return b"%b %d %b" % (publisher.encode(), number, FILLER)


def record_id_of(value: bytes | None) -> RecordId:
    """The inverse of `record_value`; any other value gives an id that no publisher uses."""
    parts = (value or b"").split(b" ", 2)
    if len(parts) != 3 or not parts[1].isdigit() or parts[2] != FILLER:
        return RecordId("?", -1)
    return RecordId(parts[0].decode(errors="replace"), int(parts[1]))


class PublishedLog:
    """One publisher to one partition, where acknowledgements come in the order of sending."""

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
        return [record_value(self.publisher, number) for number in range(first, first + count)]

    def acknowledge(self, records: int) -> None:
        ack = Acknowledgement(self.publisher, self.topic, self.acknowledged, records)
        self.acknowledged += records
        self.acknowledgements.append(ack)


class ReceivedLog:
    """The records that one subscription received, in order of arrival."""

    def __init__(self, subscription: ExpectedSubscription) -> None:
        self.subscription = subscription
        self.records: list[RecordId] = []

    def take(self, values: Sequence[bytes | None]) -> None:
        self.records += map(record_id_of, values)
