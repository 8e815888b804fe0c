"""Named subscriptions and users through both clients, against a real node, with the same test bodies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

import rostra
import rostra.testing
from rostra import blocking, errors
from rostra.fabric.registry import FABRICS
from rostra.testing.embedded import EmbeddedNode
from tests.processes.client_kinds import CLIENT_KINDS, connected
from tests.processes.command_line import wait_until

LEASE_MS = 2_000
"""Longer than a loaded machine suspends a thread."""
PATIENCE_S = 60.0


@pytest.fixture(scope="module", params=sorted(FABRICS))
def node(request: pytest.FixtureRequest) -> Iterator[EmbeddedNode]:
    with rostra.testing.node(fsync="never", fabric=request.param) as started:
        yield started


@pytest.fixture(params=CLIENT_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for every test and kind of client, for topic and subscription."""
    return "".join(character if character.isalnum() else "-" for character in request.node.name)


def publish(client: Any, topic: str, *values: bytes) -> None:
    for value in values:
        client.publish(topic, value)


def received(subscription: Any) -> Any:
    record = subscription.receive(PATIENCE_S)
    assert record is not None
    return record


def compute(seconds: float) -> None:
    """Blocks its thread and the event loop on it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


# --- taking and acknowledging ----------------------------------------------------------------------


@pytest.mark.requirement("CM-8:acknowledges", "CM-22:both-work")
def test_a_named_subscription_continues_after_the_last_acknowledged_record(
    node: EmbeddedNode, kind: str, topic: str
) -> None:
    with connected(kind, node.address) as client:
        with client.subscribe(topic, name=topic) as first:
            publish(client, topic, b"a", b"b", b"c", b"d")
            with received(first) as record:
                assert record.value == b"a"
            received(first).ack()
            assert received(first).value == b"c", "in hand, and never acknowledged"
        publish(client, topic, b"e")
        assert client.describe_subscription(topic).lag == 3
        with client.subscribe(topic, name=topic) as second:
            values = []
            for record in second:
                with record:
                    values.append(record.value)
                if len(values) == 3:
                    break
            assert values == [b"c", b"d", b"e"]
        assert client.describe_subscription(topic).lag == 0
        assert topic in {known.name for known in client.list_subscriptions()}


@pytest.mark.requirement("CM-8:slow-handler")
def test_a_handler_that_takes_longer_than_the_lease_keeps_it(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client, blocking.connect(node.address) as observer:
        with client.subscribe(topic, name=topic, lease_ms=LEASE_MS) as slow:
            publish(client, topic, b"a", b"b")
            with received(slow):
                compute(1.5 * LEASE_MS / 1000)
                (member,) = observer.describe_subscription(topic).members
                assert member.partitions == 1
            again = received(slow)
            assert (again.value, again.tries) == (b"b", 0)
            again.ack()
        assert observer.describe_subscription(topic).lag == 0


def test_a_record_whose_block_fails_is_redelivered_until_it_is_a_dead_letter(
    node: EmbeddedNode, kind: str, topic: str
) -> None:
    told: list[rostra.ClientEvent] = []
    dead = f"{topic}-dead"
    with connected(kind, node.address, on_event=told.append) as client:
        with client.subscribe(topic, name=topic, tries=2, dead_letter=dead) as subscription:
            publish(client, topic, b"bad", b"good")
            for tries in (0, 1):
                with pytest.raises(ZeroDivisionError), received(subscription) as record:
                    assert (record.value, record.tries) == (b"bad", tries)
                    raise ZeroDivisionError
            with received(subscription) as record:
                assert record.value == b"good"
            wait_until(lambda: client.describe_subscription(topic).lag == 0, "no lag")
        letter = next(iter(client.subscribe(dead, start="earliest")))
        assert letter.value == b"bad"
        assert dict(letter.headers)["rostra-topic"] == topic.encode()
    kinds = [type(event) for event in told]
    assert kinds.count(rostra.Redelivered) == kinds.count(rostra.DeadLettered) == 1


def test_closing_a_client_leaves_its_named_subscriptions_and_keeps_their_positions(
    node: EmbeddedNode, kind: str, topic: str
) -> None:
    with connected(kind, node.address) as client:
        subscription = client.subscribe(topic, name=topic).open()
        publish(client, topic, b"a", b"b")
        received(subscription).ack()
        in_hand = received(subscription)
    in_hand.ack()
    with blocking.connect(node.address) as observer:
        described = observer.describe_subscription(topic)
        assert described.members == ()
        assert described.lag == 1


def test_a_closed_named_subscription_delivers_nothing_and_ends_a_waiting_receive(
    node: EmbeddedNode, kind: str, topic: str
) -> None:
    with connected(kind, node.address) as client:
        with client.subscribe(topic, name=topic) as subscription:
            assert subscription.receive(0.05) is None
        assert subscription.receive(PATIENCE_S) is None
        assert list(subscription) == []


def test_threads_that_share_a_subscription_get_each_record_once(node: EmbeddedNode, topic: str) -> None:
    values = [b"%d" % number for number in range(400)]
    got: list[bytes | None] = []
    with blocking.connect(node.address) as client:
        with client.subscribe(topic, name=topic) as subscription:

            def work() -> None:
                for record in subscription:
                    with record:
                        got.append(record.value)

            threads = [Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            with client.producer(topic) as producer:
                producer.send_many(values)
            wait_until(lambda: len(got) >= len(values), "all records")
            # A thread acknowledges its record after it has added it to `got`.
            wait_until(lambda: client.describe_subscription(topic).lag == 0, "all records to be acknowledged")
        for thread in threads:
            thread.join()
        assert sorted(value or b"" for value in got) == sorted(values)


def test_tasks_that_share_a_subscription_get_each_record_once(node: EmbeddedNode, topic: str) -> None:
    values = [b"%d" % number for number in range(400)]

    async def main() -> list[bytes | None]:
        got: list[bytes | None] = []
        async with rostra.connect(node.address) as client, client.subscribe(topic, name=topic) as subscription:

            async def work() -> None:
                async for record in subscription:
                    async with record:
                        await asyncio.sleep(0)
                        got.append(record.value)
                    if len(got) == len(values):
                        await subscription.unsubscribe()

            async with client.producer(topic) as producer:
                await producer.send_many(values)
            await asyncio.gather(*(work() for _ in range(4)))
        return got

    assert sorted(value or b"" for value in asyncio.run(main())) == sorted(values)


def test_an_interrupted_block_does_not_count_as_a_try(node: EmbeddedNode, topic: str) -> None:
    async def main() -> tuple[int, int]:
        async with rostra.connect(node.address) as client, client.subscribe(topic, name=topic) as subscription:
            await client.publish(topic, b"a")

            async def work() -> None:
                async for record in subscription:
                    async with record:
                        begun.set()
                        await asyncio.Event().wait()

            begun = asyncio.Event()
            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            record = await subscription.receive(PATIENCE_S)
            assert record is not None
            return record.offset, record.tries

    assert asyncio.run(main())[1] == 0


# --- resetting -------------------------------------------------------------------------------------


def test_a_named_subscription_can_be_reset_and_deleted_only_without_members(
    node: EmbeddedNode, kind: str, topic: str
) -> None:
    with connected(kind, node.address) as client:
        publish(client, topic, b"a", b"b", b"c")
        with client.subscribe(topic, name=topic, start="earliest") as subscription:
            for value in (b"a", b"b", b"c"):
                with received(subscription) as record:
                    assert record.value == value
            with pytest.raises(errors.GroupBusy):
                client.reset_subscription(topic, "earliest")
            with pytest.raises(errors.GroupBusy):
                client.delete_subscription(topic)
        client.reset_subscription(topic, rostra.Last(2))
        with client.subscribe(topic, name=topic) as subscription:
            assert received(subscription).value == b"b"
        client.delete_subscription(topic)
        with pytest.raises(errors.UnknownGroup):
            client.describe_subscription(topic)
        client.delete_subscription(topic, if_exists=True)


# --- users -----------------------------------------------------------------------------------------


@pytest.mark.requirement("FL-3:client", "FL-9:creates", "FL-9:destroy")
def test_records_are_queued_for_a_user_until_received(node: EmbeddedNode, kind: str, topic: str) -> None:
    other = f"{topic}-other"
    with connected(kind, node.address) as client:
        with client.create_user(topic) as user:
            user.subscribe(topic)
            user.subscribe(other)
            assert set(user.topics()) == {topic, other}
        client.publish(topic, b"waits")
        client.publish(other, b"waits too")
        with client.user(topic) as again:
            assert {received(again).value, received(again).value} == {b"waits", b"waits too"}
            assert again.receive(0.05) is None
            again.publish(topic, b"to myself")
            assert received(again).value == b"to myself"
            again.unsubscribe(other)
            again.unsubscribe(topic)
            assert again.topics() == ()
            client.publish(topic, b"missed")
            again.subscribe(topic)
            client.publish(topic, b"heard")
            assert received(again).value == b"heard"
            again.destroy()
        assert topic not in {known.name for known in client.list_subscriptions()}


@pytest.mark.requirement("FL-3:client", "FL-9:errors")
def test_invalid_calls_of_a_user_raise_clear_errors(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client, client.create_user(topic) as user:
        with pytest.raises(errors.GroupExists):
            client.create_user(topic)
        user.subscribe(topic)
        with pytest.raises(errors.AlreadySubscribed):
            user.subscribe(topic)
        user.unsubscribe(topic)
        with pytest.raises(errors.NotSubscribed):
            user.unsubscribe(topic)
        user.destroy()
        for fails in (user.destroy, user.receive, user.topics):
            with pytest.raises(errors.UnknownGroup):
                fails()
        with pytest.raises(errors.InvalidGroupName):
            client.user("no spaces")
