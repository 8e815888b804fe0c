"""kill -9 of a real node at any moment, while records stream through it in both directions."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

import rostra
import rostra.testing
from rostra.demo.expected import ExpectedSubscription, expect
from rostra.demo.record_log import PublishedLog, ReceivedLog
from rostra.demo.verdict import judge
from rostra.demo.workers import (
    AsyncioPublisher,
    AsyncioSubscriber,
    BlockingPublisher,
    BlockingSubscriber,
    PublisherThread,
    SubscriberThread,
)
from tests.processes.command_line import wait_until

ENDLESS = 10_000_000
CHUNK = 40
TOPIC = "stream"


def stream_through(kills: int, seed: int) -> None:
    """Publishers run until stopped; the node is killed after a random number of further acknowledgements."""
    random = Random(seed)
    events: list[tuple[str, rostra.ClientEvent]] = []

    def tell(who: str, event: rostra.ClientEvent) -> None:
        events.append((who, event))

    with rostra.testing.process_node() as node:
        # So fast that there is always something under way when the node dies.
        pace = (ENDLESS, CHUNK, ENDLESS / 40_000, node.address, tell)
        publishers: list[PublisherThread] = [
            AsyncioPublisher(PublishedLog("a", TOPIC, 0), *pace),
            BlockingPublisher(PublishedLog("b", TOPIC, 0), *pace),
        ]
        subscribers: list[SubscriberThread] = [
            AsyncioSubscriber(ReceivedLog(ExpectedSubscription("c", TOPIC)), node.address, tell),
            BlockingSubscriber(ReceivedLog(ExpectedSubscription("d", TOPIC)), node.address, tell),
        ]
        for worker in (*publishers, *subscribers):
            worker.start()

        def acknowledged() -> int:
            return sum(publisher.log.acknowledged for publisher in publishers)

        def reached(enough: int) -> bool:
            return acknowledged() >= enough

        try:
            for _ in range(kills):
                enough = acknowledged() + random.randint(1, 3_000)
                wait_until(partial(reached, enough), "records to be acknowledged")
                node.sigkill()
                node.start()
            for publisher in publishers:
                publisher.leave.set()
            for publisher in publishers:
                publisher.join(60)
                assert not publisher.is_alive()
            acks = [ack for publisher in publishers for ack in publisher.log.acknowledgements]
            expected = expect(acks, [subscriber.log.subscription for subscriber in subscribers])
            due = min(len(names) for names in expected.values())
            wait_until(lambda: all(len(s.log.records) >= due for s in subscribers), "every acknowledged record to come")
        finally:
            for worker in (*publishers, *subscribers):
                worker.leave.set()
            for worker in (*publishers, *subscribers):
                worker.join(60)
        assert [worker.error for worker in (*publishers, *subscribers)] == [None] * 4
        verdict = judge(
            {publisher.name: publisher.log.sent for publisher in publishers},
            {publisher.name: TOPIC for publisher in publishers},
            expected,
            {subscriber.log.subscription: subscriber.log.records for subscriber in subscribers},
        )
        assert verdict.failures == []
        assert verdict.sent == verdict.acknowledged
        assert not [event for _, event in events if isinstance(event, rostra.MayDuplicate)]
        assert any(isinstance(event, rostra.Resent) for _, event in events)
        assert sum(isinstance(event, rostra.Reconnected) for _, event in events) >= kills


@pytest.mark.requirement("CM-5:stored-once", "CM-14:kill")
def test_kill_9_at_random_moments_loses_and_duplicates_nothing() -> None:
    stream_through(kills=5, seed=7)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kill_9_many_times_loses_and_duplicates_nothing() -> None:
    stream_through(kills=300, seed=11)
