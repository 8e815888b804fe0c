"""Messages that describe consumer groups, for members and for operators."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

from rostra.broker.groups.group_table import ConsumerGroup, GroupPartition, GroupPartitionKey, GroupTable
from rostra.broker.groups.group_topics import topic_of
from rostra.broker.topics.topic_table import TopicTable
from rostra.safeguards import Safeguard, Without
from rostra.wire.groups import (
    PARTITIONS_PER_PAGE_MAX,
    DescribeGroup,
    GroupDescribed,
    GroupMember,
    GroupPage,
    GroupStart,
    GroupSummary,
    HeldPartition,
    ListGroups,
    MemberAssignment,
    PartitionPosition,
)


def shares(group: ConsumerGroup) -> dict[int, list[GroupPartitionKey]]:
    """By member, the partitions that it holds and that are not revoked."""
    held: dict[int, list[GroupPartitionKey]] = defaultdict(list)
    for key in sorted(group.partitions):
        row = group.partitions[key]
        if not row.revoked:
            held[row.holder].append(key)
    return held


def assigned(
    topic_table: TopicTable, group: ConsumerGroup, member: int, share: Sequence[GroupPartitionKey], without: Without
) -> list[MemberAssignment]:
    partitions: list[PartitionPosition] = []
    for key in share:
        row, topic = group.partitions[key], topic_of(topic_table, key)
        if topic is not None:
            start, value = _start(row, without)
            partitions.append(PartitionPosition(key.topic, topic, key.partition, start, value, row.tries, row.since))
    name, generation = group.settings.name, group.generation
    pages = [
        partitions[at : at + PARTITIONS_PER_PAGE_MAX] for at in range(0, len(partitions), PARTITIONS_PER_PAGE_MAX)
    ] or [[]]
    return [
        MemberAssignment(name, member, generation, tuple(page), more=number < len(pages))
        for number, page in enumerate(pages, start=1)
    ]


def _start(row: GroupPartition, without: Without) -> tuple[GroupStart, int]:
    if Safeguard.UNACKED_REDELIVERY in without and row.start == "offset":
        return "latest", 0
    return row.start, row.value


def page(table: GroupTable, message: ListGroups) -> GroupPage:
    names = sorted(table.groups)
    start = bisect_right(names, message.after)
    shown = names[start : start + message.limit]
    summaries = tuple(
        GroupSummary(name, group.generation, len(group.members), len(group.partitions))
        for name, group in ((name, table.groups[name]) for name in shown)
    )
    return GroupPage(message.request, summaries, start + message.limit < len(names))


def described(topic_table: TopicTable, group: ConsumerGroup, message: DescribeGroup) -> GroupDescribed:
    held = Counter(row.holder for row in group.partitions.values())
    members = tuple(
        GroupMember(member, joined.client, joined.lease_ms, held[member])
        for member, joined in sorted(group.members.items())
    )
    named = [(key, topic) for key in sorted(group.partitions) if (topic := topic_of(topic_table, key)) is not None]
    after = GroupPartitionKey(message.after_topic, message.after_partition)
    start = bisect_right(named, after, key=lambda row: row[0])
    shown: list[HeldPartition] = []
    for key, topic in named[start : start + message.limit]:
        row = group.partitions[key]
        place = (key.topic, topic, key.partition)
        shown.append(HeldPartition(*place, row.start, row.value, row.tries, row.since, row.holder))
    settings = group.settings
    return GroupDescribed(
        message.request,
        settings.name,
        group.generation,
        settings.patterns,
        settings.tries_max,
        settings.dead_letter,
        members,
        tuple(shown),
        start + message.limit < len(named),
    )
