"""Questions and orders about named subscriptions."""

from __future__ import annotations

import pytest

from rostra.client.core.effects import SubscriptionDescription, SubscriptionList
from rostra.client.core.options import Offset, Start
from rostra.errors import GroupBusy, OffsetOutOfRange, UnknownGroup, UnknownTopic
from tests.unit.client.member_play import Handler, a_play, live, position, publish
from tests.unit.client.play import Play


def known(play: Play) -> Handler:
    """Three records, of which one is acknowledged; nobody is there any more."""
    publish(play, b"a", b"b", b"c", partition=0)
    handler = Handler(play)
    live(play)
    handler.take().ack()
    handler.leave()
    live(play)
    return handler


def test_all_names_are_listed_however_many_pages_and_partitions_that_takes() -> None:
    play = a_play()
    call = play.call()
    play.core.groups.list_all(play.now_us, call)
    play.run()
    live(play)
    assert play.results[call] == SubscriptionList(())
    for name in ("one", "two", "three", "four", "eleven"):
        Handler(play, name=name)
        live(play)
    call = play.call()
    play.core.groups.list_all(play.now_us, call)
    play.run()
    live(play)
    listed = play.results[call]
    assert isinstance(listed, SubscriptionList)
    assert [group.name for group in listed.subscriptions] == ["eleven", "four", "one", "three", "two"]


def test_a_description_tells_the_lag_of_each_partition() -> None:
    play = a_play(partitions=2)
    known(play)
    publish(play, b"d", partition=1)
    call = play.call()
    play.core.groups.describe(play.now_us, call, "billing")
    play.run()
    live(play)
    described = play.results[call]
    assert isinstance(described, SubscriptionDescription)
    assert [(part.topic, part.partition, part.offset, part.end, part.lag) for part in described.parts] == [
        ("t", 0, 1, 3, 2),
        ("t", 1, 0, 1, 1),
    ]
    assert described.lag == 3 and described.members == ()


@pytest.mark.parametrize(("start", "expected"), [("earliest", 0), ("latest", 3), (Offset(2), 2)])
def test_positions_are_set_to_where_a_start_leads(start: Start, expected: int) -> None:
    play = a_play()
    known(play)
    call = play.call()
    play.core.groups.reset(play.now_us, call, "billing", start)
    play.run()
    live(play)
    assert call in play.results
    assert position(play) == (expected, 0)


def test_what_cannot_be_reset_says_why() -> None:
    play = a_play()
    known(play)
    errors: list[type] = []
    for name, start, topic in (
        ("nobody", "earliest", None),
        ("billing", Offset(9), None),
        ("billing", "earliest", "other"),
    ):
        call = play.call()
        play.core.groups.reset(play.now_us, call, name, start, topic)
        play.run()
        live(play, 100)
        errors.append(type(play.errors[call]))
    assert errors == [UnknownGroup, OffsetOutOfRange, UnknownTopic]


def test_while_there_are_members_nothing_is_reset_or_deleted() -> None:
    play = a_play()
    handler = Handler(play)
    live(play)
    reset, delete = play.call(), play.call()
    play.core.groups.reset(play.now_us, reset, "billing", "earliest")
    play.core.groups.delete(play.now_us, delete, "billing")
    play.run()
    live(play, 100)
    assert isinstance(play.errors[reset], GroupBusy) and isinstance(play.errors[delete], GroupBusy)
    handler.leave()
    live(play)
    delete = play.call()
    play.core.groups.delete(play.now_us, delete, "billing")
    play.run()
    live(play)
    assert delete in play.results and not play.node.coordinator.groups
