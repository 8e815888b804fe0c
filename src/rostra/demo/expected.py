"""What every subscriber must get: from acknowledgements and subscriptions alone.

This module imports nothing and is given no delivery, so that what was delivered cannot colour what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class RecordName(NamedTuple):
    """Which record it is, as its value tells: the publisher, and its number there."""

    publisher: str
    number: int


class Acknowledgement(NamedTuple):
    """The node's word that these records of a publisher are stored: numbers from `first` on."""

    publisher: str
    topic: str
    first: int
    records: int


class ExpectedSubscription(NamedTuple):
    """A subscription from the earliest record of a topic on, whenever it was made."""

    subscriber: str
    topic: str


def acknowledged(acknowledgements: Iterable[Acknowledgement], topic: str) -> frozenset[RecordName]:
    """The records of a topic that the node vouches for. One that is vouched for twice is one record."""
    return frozenset(
        RecordName(ack.publisher, number)
        for ack in acknowledgements
        if ack.topic == topic
        for number in range(ack.first, ack.first + ack.records)
    )


def expect(
    acknowledgements: Iterable[Acknowledgement], interests: Iterable[ExpectedSubscription]
) -> dict[ExpectedSubscription, frozenset[RecordName]]:
    """For each subscription, every acknowledged record of its topic."""
    acks = tuple(acknowledgements)
    return {interest: acknowledged(acks, interest.topic) for interest in interests}
