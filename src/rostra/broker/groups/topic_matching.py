"""Which parts the patterns of a named subscription stand for, and which names care for a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rostra.broker.groups.assignor import Members
from rostra.broker.groups.group_table import GroupConfigured, GroupPartition, GroupPartitionKey, MemberJoined
from rostra.broker.topics.topic_table import KnownTopic, TopicTable
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.model.patterns import Pattern, PatternTrie
from rostra.wire.messages import TOPICS_PER_PAGE_MAX


class PatternIndex:
    """Names with members here, by their patterns: a new topic finds those that want it without asking the others."""

    def __init__(self) -> None:
        self._trie: PatternTrie[str] = PatternTrie()
        self._patterns: dict[str, tuple[str, ...]] = {}

    def set(self, name: str, patterns: tuple[str, ...]) -> None:
        """In place of what it was before; none: the name cares for nothing."""
        before = self._patterns.pop(name, ())
        for pattern in before:
            if pattern not in patterns:
                self._trie.remove(Pattern.parse(pattern), name)
        for pattern in patterns:
            if pattern not in before:
                self._trie.add(Pattern.parse(pattern), name)
        if patterns:
            self._patterns[name] = patterns

    def match(self, topic: str) -> list[str]:
        return self._trie.match(topic) if self._patterns else []


def patterns_of(members: Iterable[MemberJoined]) -> tuple[str, ...]:
    return tuple(sorted({pattern for member in members for pattern in member.patterns}))


def wanted(catalogue: TopicTable, members: Mapping[int, MemberJoined]) -> dict[GroupPartitionKey, Members]:
    """Every part that a member's patterns stand for, with those members; once, although patterns overlap."""
    by_pattern: dict[str, list[int]] = {}
    for member in sorted(members):
        for pattern in members[member].patterns:
            by_pattern.setdefault(pattern, []).append(member)
    by_topic: dict[int, tuple[KnownTopic, list[int]]] = {}
    for pattern, those in by_pattern.items():
        for known in _matching(catalogue, Pattern.parse(pattern)):
            by_topic.setdefault(known.topic.topic, (known, []))[1].extend(those)
    alike: dict[Members, Members] = {}
    parts: dict[GroupPartitionKey, Members] = {}
    for known, those in by_topic.values():
        kind = tuple(sorted(set(those)))
        kind = alike.setdefault(kind, kind)
        for served in known.partitions:
            parts[GroupPartitionKey(served.partition.topic, served.partition.index)] = kind
    return parts


def _matching(catalogue: TopicTable, pattern: Pattern) -> Iterator[KnownTopic]:
    after, more = "", True
    while more:
        topics, after = catalogue.matching((pattern,), after, TOPICS_PER_PAGE_MAX)
        more = bool(after)
        for topic in topics:
            known = catalogue.named(topic.name)
            if known is not None:
                yield known


def topic_of(catalogue: TopicTable, key: GroupPartitionKey) -> str | None:
    """The name of the topic that a part belongs to; None if there is no such topic any more."""
    served = catalogue.served.get(Partition(TopicId(key.topic), PartitionIndex(key.partition)))
    return served.topic if served is not None else None


def present(
    catalogue: TopicTable, parts: Mapping[GroupPartitionKey, GroupPartition]
) -> dict[GroupPartitionKey, GroupPartition]:
    return {key: part for key, part in parts.items() if topic_of(catalogue, key) is not None}


class StartOffsets:
    """Where a subscription begins in a part that is new to it.

    A topic that matches what the name had before was made meanwhile: nothing of it may be missed.
    """

    def __init__(self, catalogue: TopicTable, settings: GroupConfigured, before: Iterable[str]) -> None:
        self._catalogue = catalogue
        self._first = GroupPartition(start=settings.start, value=settings.value)
        self._before = [Pattern.parse(pattern) for pattern in before]

    def of(self, key: GroupPartitionKey) -> GroupPartition:
        topic = topic_of(self._catalogue, key) or ""
        return GroupPartition() if any(pattern.matches(topic) for pattern in self._before) else self._first
