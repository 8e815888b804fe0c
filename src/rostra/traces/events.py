"""The rows of a trace. The columns are described in docs/formats/trace.md; a test compares the two."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

VERSION = 1


class TraceRole(StrEnum):
    CLIENT = "client"
    NODE = "node"


class TraceEvent(StrEnum):
    CREATED = "created"
    """A client created a topic."""
    SUBSCRIBED = "subscribed"
    """A subscription of this partition begins; it expects records from `first` on."""
    UNSUBSCRIBED = "unsubscribed"
    """The subscription ended; it expects no records from `end` on."""
    PUBLISHED = "published"
    """The batch was acknowledged to its publisher."""
    DELIVERED = "delivered"
    """The batch was delivered to the application."""
    STORED = "stored"
    """A node stored the batch; `hops` nodes had it before."""
    SERVED = "served"
    """A node sent the batches to a subscriber."""


class TraceRow(NamedTuple):
    """One event of a batch or a subscription. Columns that do not apply are zero."""

    number: int
    """Rises with every row of the same writer."""
    event: str
    time_us: int
    who: int
    """The client or node that wrote the row."""
    topic: str
    partition: int
    subscription: int = 0
    first: int = 0
    end: int = 0
    """Offsets from `first` to just before `end`; both −1 where they are not known."""
    records: int = 0
    bytes: int = 0
    epoch: int = 0
    """Owner epoch."""
    producer: int = 0
    sequence: int = 0
    born_us: int = 0
    """When the first record of the batch was made, by the publisher's clock."""
    hops: int = 0
    name: str = ""
    """The name of the node that wrote the row; empty for clients."""


COLUMNS = TraceRow._fields
