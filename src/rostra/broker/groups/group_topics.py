"""The topics of consumer groups: which partitions match the patterns of their members, and where reading begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rostra.broker.groups.assignor import Members
from rostra.broker.groups.group_table import GroupConfigured, GroupPartition, GroupPartitionKey, MemberJoined
from rostra.broker.topics.topic_table import KnownTopic, TopicTable
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.model.patterns import Pattern, PatternTrie
from rostra.wire.messages import TOPICS_PER_PAGE_MAX


class PatternIndex:
    """The groups with members here, by their patterns: a new topic finds the groups that want it."""

    def __init__(self) -> None:
        self._trie: PatternTrie[str] = PatternTrie()
        self._patterns: dict[str, tuple[str, ...]] = {}

    def set(self, name: str, patterns: tuple[str, ...]) -> None:
        """Replaces the group's patterns; none removes it."""
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


def wanted(topic_table: TopicTable, members: Mapping[int, MemberJoined]) -> dict[GroupPartitionKey, Members]:
    """Every partition that matches a member's patterns, with the members that want it."""
    by_pattern: dict[str, list[int]] = {}
    for member in sorted(members):
        for pattern in members[member].patterns:
            by_pattern.setdefault(pattern, []).append(member)
    by_topic: dict[int, tuple[KnownTopic, list[int]]] = {}
    for pattern, those in by_pattern.items():
        for known in _matching(topic_table, Pattern.parse(pattern)):
            by_topic.setdefault(known.topic.topic, (known, []))[1].extend(those)
    alike: dict[Members, Members] = {}
    partitions: dict[GroupPartitionKey, Members] = {}
    for known, those in by_topic.values():
        kind = tuple(sorted(set(those)))
        kind = alike.setdefault(kind, kind)
        for served in known.partitions:
            partitions[GroupPartitionKey(served.partition.topic, served.partition.index)] = kind
    return partitions


def _matching(topic_table: TopicTable, pattern: Pattern) -> Iterator[KnownTopic]:
    after, more = "", True
    while more:
        topics, after = topic_table.matching((pattern,), after, TOPICS_PER_PAGE_MAX)
        more = bool(after)
        for topic in topics:
            known = topic_table.by_name(topic.name)
            if known is not None:
                yield known


def topic_of(topic_table: TopicTable, key: GroupPartitionKey) -> str | None:
    """The name of the partition's topic; None if that was deleted."""
    served = topic_table.served.get(Partition(TopicId(key.topic), PartitionIndex(key.partition)))
    return served.topic if served is not None else None


def present(
    topic_table: TopicTable, partitions: Mapping[GroupPartitionKey, GroupPartition]
) -> dict[GroupPartitionKey, GroupPartition]:
    return {key: row for key, row in partitions.items() if topic_of(topic_table, key) is not None}


class StartOffsets:
    """Where a group begins in a partition that is new to it.

    A topic that matches the group's earlier patterns was created since: it is read from its first record.
    """

    def __init__(self, topic_table: TopicTable, settings: GroupConfigured, before: Iterable[str]) -> None:
        self._topic_table = topic_table
        self._first = GroupPartition(start=settings.start, value=settings.value)
        self._before = [Pattern.parse(pattern) for pattern in before]

    def of(self, key: GroupPartitionKey) -> GroupPartition:
        topic = topic_of(self._topic_table, key) or ""
        return GroupPartition() if any(pattern.matches(topic) for pattern in self._before) else self._first
