"""Computes the records that every subscriber must get, from acknowledgements and subscriptions alone.

The module imports nothing and never sees deliveries, so that these cannot influence what is expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class RecordId(NamedTuple):
    """Identifies a record, whose value holds both: the publisher, and the number of the record there."""

    publisher: str
    number: int


class Acknowledgement(NamedTuple):
    """`records` records of a publisher were acknowledged, numbered from `first` on."""

    publisher: str
    topic: str
    first: int
    records: int


class ExpectedSubscription(NamedTuple):
    """A subscription to a topic from its earliest record."""

    subscriber: str
    topic: str


def acknowledged(acknowledgements: Iterable[Acknowledgement], topic: str) -> frozenset[RecordId]:
    """The acknowledged records of a topic; one that was acknowledged twice counts once."""
    return frozenset(
        RecordId(ack.publisher, number)
        for ack in acknowledgements
        if ack.topic == topic
        for number in range(ack.first, ack.first + ack.records)
    )


def expect(
    acknowledgements: Iterable[Acknowledgement], subscriptions: Iterable[ExpectedSubscription]
) -> dict[ExpectedSubscription, frozenset[RecordId]]:
    """For each subscription, every acknowledged record of its topic."""
    acks = tuple(acknowledgements)
    return {subscription: acknowledged(acks, subscription.topic) for subscription in subscriptions}
