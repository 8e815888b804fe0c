"""Administration of named subscriptions."""

from __future__ import annotations

import pytest

from rostra.client.core.effects import SubscriptionDescription, SubscriptionList
from rostra.client.core.options import Offset, Start
from rostra.errors import GroupBusy, OffsetOutOfRange, UnknownGroup, UnknownTopic
from tests.unit.client.core_harness import CoreHarness
from tests.unit.client.member_harness import MemberDriver, advance, group_harness, position, publish


def known(harness: CoreHarness) -> MemberDriver:
    """Three records, of which one is acknowledged; the member has left."""
    publish(harness, b"a", b"b", b"c", partition=0)
    handler = MemberDriver(harness)
    advance(harness)
    handler.take().ack()
    handler.leave()
    advance(harness)
    return handler


def test_all_names_are_listed_however_many_pages_and_partitions_that_takes() -> None:
    harness = group_harness()
    call = harness.call()
    harness.core.groups.list_all(harness.now_us, call)
    harness.run()
    advance(harness)
    assert harness.results[call] == SubscriptionList(())
    for name in ("one", "two", "three", "four", "eleven"):
        MemberDriver(harness, name=name)
        advance(harness)
    call = harness.call()
    harness.core.groups.list_all(harness.now_us, call)
    harness.run()
    advance(harness)
    listed = harness.results[call]
    assert isinstance(listed, SubscriptionList)
    assert [group.name for group in listed.subscriptions] == ["eleven", "four", "one", "three", "two"]


def test_a_description_tells_the_lag_of_each_partition() -> None:
    harness = group_harness(partitions=2)
    known(harness)
    publish(harness, b"d", partition=1)
    call = harness.call()
    harness.core.groups.describe(harness.now_us, call, "billing")
    harness.run()
    advance(harness)
    described = harness.results[call]
    assert isinstance(described, SubscriptionDescription)
    assert [(part.topic, part.partition, part.offset, part.end, part.lag) for part in described.partitions] == [
        ("t", 0, 1, 3, 2),
        ("t", 1, 0, 1, 1),
    ]
    assert described.lag == 3 and described.members == ()


@pytest.mark.parametrize(("start", "expected"), [("earliest", 0), ("latest", 3), (Offset(2), 2)])
def test_positions_are_set_to_where_a_start_leads(start: Start, expected: int) -> None:
    harness = group_harness()
    known(harness)
    call = harness.call()
    harness.core.groups.reset(harness.now_us, call, "billing", start)
    harness.run()
    advance(harness)
    assert call in harness.results
    assert position(harness) == (expected, 0)


def test_what_cannot_be_reset_says_why() -> None:
    harness = group_harness()
    known(harness)
    errors: list[type] = []
    for name, start, topic in (
        ("nobody", "earliest", None),
        ("billing", Offset(9), None),
        ("billing", "earliest", "other"),
    ):
        call = harness.call()
        harness.core.groups.reset(harness.now_us, call, name, start, topic)
        harness.run()
        advance(harness, 100)
        errors.append(type(harness.errors[call]))
    assert errors == [UnknownGroup, OffsetOutOfRange, UnknownTopic]


def test_while_there_are_members_nothing_is_reset_or_deleted() -> None:
    harness = group_harness()
    handler = MemberDriver(harness)
    advance(harness)
    reset, delete = harness.call(), harness.call()
    harness.core.groups.reset(harness.now_us, reset, "billing", "earliest")
    harness.core.groups.delete(harness.now_us, delete, "billing")
    harness.run()
    advance(harness, 100)
    assert isinstance(harness.errors[reset], GroupBusy) and isinstance(harness.errors[delete], GroupBusy)
    handler.leave()
    advance(harness)
    delete = harness.call()
    harness.core.groups.delete(harness.now_us, delete, "billing")
    harness.run()
    advance(harness)
    assert delete in harness.results and not harness.node.coordinator.groups
