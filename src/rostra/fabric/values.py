"""What inputs and effects are made of."""

from __future__ import annotations

import msgspec

from rostra.model.ids import TopicId


class Now(msgspec.Struct, frozen=True, gc=False):
    """The time of a step: monotonic for timers, wall for timestamps."""

    mono_us: int
    wall_us: int


class Value(msgspec.Struct, frozen=True):
    """Base of all inputs and effects."""


class TopicSpec(Value, frozen=True, array_like=True):
    """A topic as the catalogue has it. `settings` is opaque here: the broker's own encoding of them."""

    topic: TopicId
    name: str
    partitions: int
    settings: bytes
