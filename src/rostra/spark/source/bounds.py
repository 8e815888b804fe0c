"""Resolves the start and end of a read, as the user gives them, to offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

import msgspec

from rostra.errors import InvalidSetting, OffsetOutOfRange

BEGINNING = -2
END = -1
"""In key of an offset, as in Spark's Kafka source."""

TopicPartition = tuple[str, int]
"""Topic and partition."""
AtTime = Callable[[TopicPartition, int], int]
"""The offset of the first record of a partition that is not earlier than these microseconds; the end without one."""


class Extent(msgspec.Struct, frozen=True):
    """The committed offsets of a partition, from `first` to just before `end`."""

    first: int
    end: int


class Earliest(msgspec.Struct, frozen=True, tag=True):
    pass


class Latest(msgspec.Struct, frozen=True, tag=True):
    pass


class AtOffsets(msgspec.Struct, frozen=True, tag=True):
    """Offsets by topic and partition; -2 is the log start, -1 the end."""

    offsets: dict[str, dict[int, int]]


class AtTimes(msgspec.Struct, frozen=True, tag=True):
    """Times by topic and partition, in microseconds since 1970, or one time for all."""

    moments: dict[str, dict[int, int]]
    for_all_us: int = -1


Bound = Earliest | Latest | AtOffsets | AtTimes
EARLIEST = Earliest()
LATEST = Latest()


def resolve(
    bound: Bound, extents: Mapping[TopicPartition, Extent], at_time: AtTime, option: str
) -> dict[TopicPartition, int]:
    """Returns the offset of every partition. `option` is the name of the user's option, for errors."""
    return {key: _resolved(bound, key, extent, at_time, option) for key, extent in sorted(extents.items())}


def _resolved(bound: Bound, key: TopicPartition, extent: Extent, at_time: AtTime, option: str) -> int:
    match bound:
        case Earliest():
            return extent.first
        case Latest():
            return extent.end
        case AtOffsets(offsets):
            offset = _given(offsets, key, option)
            if offset == BEGINNING:
                return extent.first
            if offset == END:
                return extent.end
            if offset > extent.end:
                raise OffsetOutOfRange(*key, offset, extent.first, extent.end)
            return offset
        case AtTimes(moments, for_all_us):
            moment_us = for_all_us if for_all_us >= 0 else _given(moments, key, option)
            return at_time(key, moment_us)
        case _:
            assert_never(bound)


def _given(by_topic: Mapping[str, Mapping[int, int]], key: TopicPartition, option: str) -> int:
    topic, partition = key
    given = by_topic.get(topic, {}).get(partition)
    if given is None:
        raise InvalidSetting(option, f"it says nothing of {topic}/{partition}; it must name every partition")
    return given
