"""The topics that a broker knows, by id and by name, with their partitions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from rostra.broker.api import Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.errors import RostraError, TopicDeleted, TopicRecreated, UnknownPartition, UnknownTopic
from rostra.model.ids import Partition, PartitionIndex, TopicId, is_internal, text
from rostra.model.patterns import Pattern, PatternTrie
from rostra.wire.messages import Topic

DROPPED_REMEMBERED = 10_000
"""Deleted topics that are remembered, to tell a client why its topic id no longer works."""

NAMES_SCANNED_MAX = 10_000
"""Names matched against patterns in one step, so that other requests are not delayed."""


class TopicWaiter(NamedTuple):
    """A client that waits for a topic to be created or deleted; `lookup` is answered with its location."""

    conn: Conn
    request: int
    lookup: bool
    name: str = ""


class KnownTopic:
    __slots__ = ("listeners", "partitions", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.listeners: dict[Conn, None] = {}
        """Connections to notify of partitions that join."""
        self.partitions: list[ServedPartition] = []


class TopicTable:
    def __init__(self) -> None:
        self._by_id: dict[int, KnownTopic] = {}
        self.served: dict[Partition, ServedPartition] = {}
        self._by_name: dict[str, KnownTopic] = {}
        self._names: list[str] = []
        self._dropped: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, known: KnownTopic) -> None:
        self._by_id[known.topic.topic] = known
        self._by_name[known.topic.name] = known
        self.served |= {served.partition: served for served in known.partitions}
        insort(self._names, known.topic.name)

    def join(self, known: KnownTopic, served: ServedPartition) -> None:
        """Adds a partition with an id of its own in place of its topic's."""
        if served.partition not in self.served:
            known.partitions.append(served)
            self.served[served.partition] = served

    def drop(self, topic: TopicId) -> KnownTopic | None:
        known = self._by_id.pop(topic, None)
        if known is None:
            return None
        for served in known.partitions:
            del self.served[served.partition]
        name = known.topic.name
        if self._by_name.get(name) is known:
            del self._by_name[name]
            self._names.remove(name)
        self._dropped[topic] = name
        if len(self._dropped) > DROPPED_REMEMBERED:
            self._dropped.popitem(last=False)
        return known

    def by_name(self, name: str) -> KnownTopic | None:
        return self._by_name.get(name)

    def by_id(self, topic: TopicId) -> KnownTopic | None:
        return self._by_id.get(topic)

    def find(self, topic: int, partition: int) -> ServedPartition | RostraError:
        served = self.served.get(Partition(TopicId(topic), PartitionIndex(partition)))
        if served is not None:
            return served
        known = self._by_id.get(topic)
        if known is None:
            name = self._dropped.get(topic)
            if name is None:
                return UnknownTopic(text(TopicId(topic)))
            return TopicRecreated(name) if name in self._by_name else TopicDeleted(name)
        return UnknownPartition(known.topic.name, partition)

    def page(self, after: str, limit: int) -> tuple[tuple[Topic, ...], bool]:
        """Topics by name after `after`, at most `limit`, and whether there are more. Internal topics are left out."""
        behind = (self._names[at] for at in range(bisect_right(self._names, after), len(self._names)))
        shown = list(islice((name for name in behind if not is_internal(name)), limit + 1))
        return tuple(self._by_name[name].topic for name in shown[:limit]), len(shown) > limit

    def matching(self, patterns: Sequence[Pattern], after: str, limit: int) -> tuple[tuple[Topic, ...], str]:
        """Topics by name after `after` that match a pattern, at most `limit`; and the name to continue after, "" at the
        end.

        If every pattern begins with fixed levels, only names that begin with these are scanned.
        """
        trie: PatternTrie[None] = PatternTrie()
        for pattern in patterns:
            trie.add(pattern, None)
        found: list[Topic] = []
        scanned, last = 0, ""
        for name in merge(*(self._candidates(pattern, after) for pattern in patterns)):
            if name == last:
                continue
            if len(found) == limit or scanned == NAMES_SCANNED_MAX:
                return tuple(found), last
            scanned, last = scanned + 1, name
            if trie.match(name):
                found.append(self._by_name[name].topic)
        return tuple(found), ""

    def _candidates(self, pattern: Pattern, after: str) -> Iterator[str]:
        """Names in order after `after`; every name that matches is among them."""
        names, fixed = self._names, pattern.fixed
        if fixed > after and fixed in self._by_name:
            yield fixed
        if pattern.is_wild:
            beginning = f"{fixed}/" if fixed else ""
            at = max(bisect_left(names, beginning), bisect_right(names, after))
            while at < len(names) and names[at].startswith(beginning):
                yield names[at]
                at += 1

    def partitions(self) -> list[ServedPartition]:
        return [served for name in self._names for served in self._by_name[name].partitions]
