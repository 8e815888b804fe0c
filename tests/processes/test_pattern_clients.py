"""Subscriptions to several topics, to patterns and from a time, with every client against a real node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import rostra
import rostra.testing
from rostra.errors import InvalidPattern, InvalidSetting
from rostra.testing.embedded import EmbeddedNode
from tests.processes.client_kinds import CLIENT_KINDS, connected


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with rostra.testing.node(fsync="never") as started:
        yield started


@pytest.fixture(params=CLIENT_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def prefix(kind: str) -> str:
    """A level under which no other test has topics."""
    return f"{kind}-{time.monotonic_ns()}"


def take(subscription: Any, count: int) -> list[tuple[str, bytes | None]]:
    return [(record.topic, record.value) for record in (next(subscription) for _ in range(count))]


@pytest.mark.requirement("CM-6:new-topics", "CM-6:patterns", "CM-22:both-work")
def test_a_subscription_of_names_and_patterns_includes_new_topics(node: EmbeddedNode, kind: str, prefix: str) -> None:
    events: list[rostra.ClientEvent] = []
    with connected(kind, node.address, on_event=events.append) as client:
        client.publish(f"{prefix}/a/temp", b"1")
        client.publish(f"{prefix}/a/hum", b"not it")
        names = (f"{prefix}/+/temp", f"{prefix}/named")
        with client.subscribe(*names, start="earliest") as subscription:
            assert subscription.names == names
            assert take(subscription, 1) == [(f"{prefix}/a/temp", b"1")]
            client.publish(f"{prefix}/b/temp", b"2")
            assert take(subscription, 1) == [(f"{prefix}/b/temp", b"2")]
            client.publish(f"{prefix}/named", b"3")
            assert take(subscription, 1) == [(f"{prefix}/named", b"3")]
            assert {topic: set(positions) for topic, positions in subscription.topics.items()} == {
                f"{prefix}/a/temp": {0},
                f"{prefix}/b/temp": {0},
                f"{prefix}/named": {0},
            }
            assert subscription.lag == 0
            with pytest.raises(InvalidSetting, match="several"):
                _ = subscription.positions
            client.delete_topic(f"{prefix}/b/temp")
            client.publish(f"{prefix}/a/temp", b"4")
            assert take(subscription, 1) == [(f"{prefix}/a/temp", b"4")]
            assert f"{prefix}/b/temp" not in subscription.topics
    told = [event for event in events if isinstance(event, rostra.TopicAppeared | rostra.TopicGone)]
    assert [(type(event), event.topic) for event in told] == [
        (rostra.TopicAppeared, f"{prefix}/b/temp"),
        (rostra.TopicGone, f"{prefix}/b/temp"),
    ]


@pytest.mark.requirement("CM-6:start-time", "CM-22:both-work")
def test_a_subscription_begins_with_the_first_record_that_is_not_earlier(
    node: EmbeddedNode, kind: str, prefix: str
) -> None:
    base = datetime(2024, 5, 1, 12, tzinfo=UTC)
    base_us = round(base.timestamp() * 1_000_000)
    with connected(kind, node.address) as client:
        for at in (10, 30, 20, 40):
            client.publish(prefix, b"%d" % at, timestamp=base_us + at)
        with client.subscribe(prefix, start=rostra.Time(base_us + 11)) as subscription:
            assert [value for _, value in take(subscription, 3)] == [b"30", b"20", b"40"]
        with client.subscribe(prefix, start=rostra.Time.of(base)) as subscription:
            assert take(subscription, 1) == [(prefix, b"10")]
        with client.subscribe(f"{prefix}/#", start=rostra.Time(base_us + 31)) as subscription:
            assert take(subscription, 1) == [(prefix, b"40")]


def test_an_invalid_pattern_is_refused_when_the_subscription_opens(node: EmbeddedNode, kind: str) -> None:
    with connected(kind, node.address) as client:
        with pytest.raises(InvalidPattern):
            client.subscribe("a/b+/c").open()
        with pytest.raises(InvalidSetting):
            client.subscribe("a/#", partition=0).open()


@pytest.fixture(scope="module")
def many_topics(node: EmbeddedNode) -> list[tuple[str, bytes | None]]:
    """More topics than a page of the list has, with one record each."""
    records: list[tuple[str, bytes | None]] = [(f"many/{number}/temp", b"%d" % number) for number in range(1_100)]

    async def publish() -> None:
        async with rostra.connect(node.address) as client:
            for first in range(0, len(records), 100):
                await asyncio.gather(*(client.publish(topic, value) for topic, value in records[first : first + 100]))

    asyncio.run(publish())
    return records


def test_one_pattern_matches_thousands_of_topics(
    node: EmbeddedNode, kind: str, many_topics: list[tuple[str, bytes | None]]
) -> None:
    with connected(kind, node.address) as client, client.subscribe("many/#", start="earliest") as subscription:
        received = take(subscription, len(many_topics))
    assert sorted(received) == sorted(many_topics)
