"""Named subscriptions as they are shown: to members, and to people who look."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

from rostra.broker.groups.group_table import ConsumerGroup, GroupPartition, GroupPartitionKey, GroupTable
from rostra.broker.groups.topic_matching import topic_of
from rostra.broker.topics.topic_table import TopicTable
from rostra.safeguards import Safeguard, Without
from rostra.wire.groups import (
    PARTS_PER_PAGE_MAX,
    Assignment,
    DescribeGroup,
    GroupDescribed,
    GroupMember,
    GroupPage,
    GroupPart,
    GroupStart,
    GroupSummary,
    HeldPart,
    ListGroups,
)


def shares(group: ConsumerGroup) -> dict[int, list[GroupPartitionKey]]:
    """By member, what it holds and was not told to let go of."""
    held: dict[int, list[GroupPartitionKey]] = defaultdict(list)
    for key in sorted(group.parts):
        part = group.parts[key]
        if not part.revoked:
            held[part.holder].append(key)
    return held


def assigned(
    catalogue: TopicTable, group: ConsumerGroup, member: int, share: Sequence[GroupPartitionKey], without: Without
) -> list[Assignment]:
    parts: list[GroupPart] = []
    for key in share:
        part, topic = group.parts[key], topic_of(catalogue, key)
        if topic is not None:
            start, value = _start(part, without)
            parts.append(GroupPart(key.topic, topic, key.partition, start, value, part.tries, part.since))
    name, generation = group.settings.name, group.generation
    pages = [parts[at : at + PARTS_PER_PAGE_MAX] for at in range(0, len(parts), PARTS_PER_PAGE_MAX)] or [[]]
    return [
        Assignment(name, member, generation, tuple(page), more=number < len(pages))
        for number, page in enumerate(pages, start=1)
    ]


def _start(part: GroupPartition, without: Without) -> tuple[GroupStart, int]:
    if Safeguard.UNACKED_REDELIVERY in without and part.start == "offset":
        return "latest", 0
    return part.start, part.value


def page(book: GroupTable, message: ListGroups) -> GroupPage:
    names = sorted(book.groups)
    start = bisect_right(names, message.after)
    shown = names[start : start + message.limit]
    summaries = tuple(
        GroupSummary(name, group.generation, len(group.members), len(group.parts))
        for name, group in ((name, book.groups[name]) for name in shown)
    )
    return GroupPage(message.request, summaries, start + message.limit < len(names))


def described(catalogue: TopicTable, group: ConsumerGroup, message: DescribeGroup) -> GroupDescribed:
    held = Counter(part.holder for part in group.parts.values())
    members = tuple(
        GroupMember(member, joined.client, joined.lease_ms, held[member])
        for member, joined in sorted(group.members.items())
    )
    named = [(key, topic) for key in sorted(group.parts) if (topic := topic_of(catalogue, key)) is not None]
    after = GroupPartitionKey(message.after_topic, message.after_partition)
    start = bisect_right(named, after, key=lambda row: row[0])
    shown: list[HeldPart] = []
    for key, topic in named[start : start + message.limit]:
        part = group.parts[key]
        place = (key.topic, topic, key.partition)
        shown.append(HeldPart(*place, part.start, part.value, part.tries, part.since, part.holder))
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
