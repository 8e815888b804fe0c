"""The positions of a stream: the offset that Spark keeps in its log, as canonical JSON with a version.

    {"v": 1, "topics": {"orders": {"0": 23, "1": 7}}, "ids": {"orders": "3f…"}}

`ids` distinguishes a topic from a later one of the same name. The start that a stream chose for itself is marked
`initial`; Spark asks for it again when the first batch is repeated, and then `latest` would be another key. So the
end of the first batch carries in `from` the start that belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import msgspec

from rostra.errors import InvalidSetting
from rostra.model.ids import parse_id, text
from rostra.spark.source.bounds import TopicPartition

VERSION = 1


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON in Spark's log."""

    v: Literal[1]
    topics: dict[str, dict[str, int]]
    ids: dict[str, str]
    initial: bool = False
    started: dict[str, dict[str, int]] | None = msgspec.field(name="from", default=None)


class Positions(msgspec.Struct, frozen=True):
    """The positions of a stream: by partition, the next offset to read."""

    offsets: dict[TopicPartition, int]
    ids: dict[str, int]
    initial: bool = False
    started: dict[TopicPartition, int] | None = None

    def to_json(self) -> dict[str, Any]:
        written: dict[str, Any] = {
            "v": VERSION,
            "topics": _nested(self.offsets),
            "ids": {topic: text(self.ids[topic]) for topic in sorted(self.ids)},
        }
        if self.initial:
            written["initial"] = True
        if self.started is not None:
            written["from"] = _nested(self.started)
        return written

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Parses positions; raises `InvalidSetting` for JSON that this version did not write."""
        try:
            written = msgspec.convert(dict(given), _Written)
            offsets = _flat(written.topics)
            ids = {topic: parse_id(number) for topic, number in written.ids.items()}
            started = None if written.started is None else _flat(written.started)
        except (msgspec.ValidationError, ValueError) as error:
            raise InvalidSetting("checkpointLocation", f"its offsets are not of this version ({error})") from None
        return cls(offsets, ids, written.initial, started)

    def topics(self) -> set[str]:
        return {topic for topic, _ in self.offsets}

    def reached_from(self, start: Positions) -> Positions:
        """These positions as the end of the batch that begins at `start`. Equal JSON means that there is no batch."""
        if self.offsets == start.offsets and self.ids == start.ids:
            return start
        return Positions(self.offsets, self.ids, started=start.offsets if start.initial else None)

    def start_of(self, start: Positions) -> Positions:
        """The start of the batch that ends here, given the start that Spark passes."""
        if start.initial and self.started is not None:
            return Positions(self.started, self.ids)
        return start


def lags_of(reached: Mapping[str, Any], latest: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The number of offsets of each partition between two positions as Spark reports them."""
    here, there = Positions.from_json(reached), Positions.from_json(latest)
    return {key: max(end - here.offsets.get(key, 0), 0) for key, end in there.offsets.items()}


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        nested.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {(topic, int(partition)): n for topic, by in nested.items() for partition, n in by.items()}
