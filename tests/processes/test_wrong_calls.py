"""Wrong calls and early ends, with every kind of client: nothing is lost silently, nothing hangs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rostra
import rostra.testing
from rostra import blocking, errors
from rostra.client.aio import driver as aio_driver
from rostra.client.blocking import driver as blocking_driver
from rostra.client.core.groups import dispatcher
from rostra.testing.embedded import EmbeddedNode
from tests.processes.client_kinds import CLIENT_KINDS, connected
from tests.processes.command_line import wait_until


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with rostra.testing.node(fsync="never") as started:
        yield started


@pytest.fixture(params=CLIENT_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(kind: str) -> str:
    """A name that no other test uses."""
    return f"{kind}-{time.monotonic_ns()}"


def stored(client: Any, topic: str) -> list[bytes | None]:
    end = client.describe_topic(topic).partitions[0].commit
    values: list[bytes | None] = []
    with client.subscribe(topic, start="earliest") as subscription:
        while subscription.next_offset < end:
            values.append(next(subscription).value)
    return values


WRONG: list[dict[str, Any]] = [
    {"value": "oops"},
    {"value": b"x", "key": "k"},
    {"value": b"x", "headers": [("a", "b")]},
    {"value": b"x", "headers": {"a": "b"}},
    {"value": b"x", "timestamp": 1.5},
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("method", ["send", "send_nowait"])
def test_one_wrong_send_raises_at_once_and_costs_no_other_record(
    node: EmbeddedNode, kind: str, topic: str, wrong: dict[str, Any], method: str
) -> None:
    with connected(kind, node.address) as client:
        with client.producer(topic) as producer:
            for number in range(10):
                producer.send(b"%d" % number)
            with pytest.raises(errors.InvalidArgument, match="must be"):
                getattr(producer, method)(**wrong)
            producer.send(b"last")
            producer.flush()
        assert stored(client, topic) == [*(b"%d" % number for number in range(10)), b"last"]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_wrong_publish_raises_and_the_next_one_is_stored(
    node: EmbeddedNode, kind: str, topic: str, wrong: dict[str, Any]
) -> None:
    with connected(kind, node.address) as client:
        with pytest.raises(errors.InvalidArgument):
            client.publish(topic, **wrong)
        assert topic not in [known.name for known in client.list_topics()]
        client.publish(topic, b"first", headers=[("a", b"b")])
        with pytest.raises(errors.InvalidArgument):
            client.publish(topic, **wrong)
        client.publish(topic, b"second")
        assert stored(client, topic) == [b"first", b"second"]


def test_one_wrong_value_of_many_raises_and_costs_no_other_call(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        with client.producer(topic) as producer:
            producer.send_many([b"a", b"b"])
            with pytest.raises(errors.InvalidArgument, match=r"values\[1\] must be bytes, not str"):
                producer.send_many([b"c", "d"])
            producer.send_many([b"e"])
            producer.flush()
        assert stored(client, topic) == [b"a", b"b", b"e"]


def test_the_message_for_text_says_what_to_do(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client, pytest.raises(TypeError) as refused:
        client.publish(topic, "text")
    assert str(refused.value) == "value must be bytes, not str; use text.encode()"


# --- producers that are not open -------------------------------------------------------------------


def test_an_asyncio_producer_that_is_not_open_says_how_to_open_it(node: EmbeddedNode) -> None:
    async def sends() -> None:
        async with rostra.connect(node.address) as client:
            producer = client.producer("orders")
            for call in (producer.send(b"x"), producer.send_many([b"x"]), producer.flush(), producer.set_strength(1)):
                with pytest.raises(errors.ProducerNotOpen) as refused:
                    await call
                assert "open the producer first: async with client.producer('orders') as" in str(refused.value)
            with pytest.raises(errors.ProducerNotOpen):
                producer.send_nowait(b"x")

    asyncio.run(sends())


def test_a_closed_producer_says_so(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        with client.producer(topic) as producer:
            producer.send(b"x")
        with pytest.raises(errors.ProducerClosed, match="is closed"):
            producer.send(b"y")


# --- closing ---------------------------------------------------------------------------------------


def test_closing_a_client_flushes_its_open_producers(node: EmbeddedNode, kind: str, topic: str) -> None:
    values = [b"%d" % number for number in range(5000)]
    with connected(kind, node.address) as client:
        producer = client.producer(topic, linger_ms=60_000).open()
        producer.send_many(values)
        client.close()
        assert producer.acked == 5000
    with connected(kind, node.address) as client:
        assert stored(client, topic) == values


def test_the_end_of_a_client_block_flushes_its_open_producers(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        client.producer(topic, linger_ms=60_000).open().send(b"x")
    with pytest.raises(ZeroDivisionError), connected(kind, node.address) as client:
        client.producer(topic, linger_ms=60_000).open().send(b"y")
        raise ZeroDivisionError
    with connected(kind, node.address) as client:
        assert stored(client, topic) == [b"x", b"y"]


def test_closing_a_client_fails_with_the_number_of_records_that_are_not_acknowledged(
    kind: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (aio_driver, blocking_driver):
        monkeypatch.setattr(module, "CLOSE_FLUSH_MS_MAX", 300)
    # Closing waits no longer than its own limit, or this test would not end.
    settings = {"delivery_timeout_ms": 3_600_000}
    with rostra.testing.node(fsync="never") as stopped, connected(kind, stopped.address, **settings) as client:
        producer = client.producer(topic).open()
        producer.send(b"stored")
        producer.flush()
        stopped.kill()
        for number in range(7):
            producer.send_nowait(b"%d" % number)
        with pytest.raises(errors.NotAcknowledged) as lost:
            client.close()
        assert lost.value.records == 7
        client.close()


def test_closing_a_client_reports_what_no_flush_has_reported(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        producer = client.producer(topic).open()
        producer.send(bytes(5 << 20))
        with pytest.raises(errors.RecordTooLarge):
            client.close()


def test_closing_that_is_cancelled_closes_without_waiting() -> None:
    async def closes(stopped: EmbeddedNode) -> None:
        client = await rostra.connect(stopped.address)
        producer = await client.producer("orders")
        stopped.kill()
        producer.send_nowait(b"x")
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)  # The task begins.
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(errors.ClientClosed):
            await client.publish("orders", b"y")

    with rostra.testing.node(fsync="never") as stopped:
        asyncio.run(closes(stopped))


# --- subscriptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"tries": 3}, {"dead_letter": "dead"}, {"lease_ms": 5_000}], ids=repr)
def test_what_needs_a_name_is_refused_without_one(node: EmbeddedNode, kind: str, setting: dict[str, Any]) -> None:
    with connected(kind, node.address) as client, pytest.raises(errors.InvalidSetting, match="name=") as refused:
        client.subscribe("orders", **setting)
    assert refused.value.setting in setting


def test_a_member_that_acknowledges_nothing_is_told_why_it_gets_no_more(
    node: EmbeddedNode, kind: str, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatcher, "UNACKED_MAX", 5)
    events: list[rostra.ClientEvent] = []
    with connected(kind, node.address, on_event=events.append) as client, client.producer(topic) as producer:
        producer.send_many([b"%d" % number for number in range(12)])
        producer.flush()
        with client.subscribe(topic, name=topic, start="earliest") as subscription:
            taken = [subscription.receive(timeout=60.0) for _ in range(5)]

            def paused() -> list[rostra.ClientEvent]:
                assert subscription.receive(timeout=0.2) is None
                return [event for event in events if isinstance(event, rostra.DeliveryPaused)]

            wait_until(lambda: paused() != [], "the member to be told")
            assert paused() == [rostra.DeliveryPaused(topic, 5)]
            (said,) = [one for one in caplog.records if one.levelno == logging.WARNING and one.name == "rostra"]
            assert "5 records are unacknowledged; call record.ack()" in said.getMessage()
            for record in taken:
                record.ack()
            assert subscription.receive(timeout=60.0).value == b"5"


@pytest.mark.parametrize(
    ("other", "differing"),
    [({"tries": 5}, "tries 3"), ({"dead_letter": "elsewhere"}, "the dead letter dead")],
    ids=["tries", "dead_letter"],
)
def test_a_member_with_other_settings_is_refused_and_changes_nothing(
    node: EmbeddedNode, kind: str, topic: str, other: dict[str, Any], differing: str
) -> None:
    settings = {"name": topic, "tries": 3, "dead_letter": "dead"}
    with connected(kind, node.address) as client, client.subscribe(topic, **settings):
        with pytest.raises(errors.SettingsDiffer, match=differing), client.subscribe(topic, **{**settings, **other}):
            pass
        with pytest.raises(errors.SettingsDiffer, match="the topics"):
            client.subscribe(topic, f"{topic}/more", **settings).open()
        described = client.describe_subscription(topic)
        assert (described.patterns, described.tries, described.dead_letter) == ((topic,), 3, "dead")
        with client.subscribe(topic, **settings):
            assert len(client.describe_subscription(topic).members) == 2


def test_settling_a_record_can_be_awaited_and_need_not_be(node: EmbeddedNode) -> None:
    topic = f"settled-{time.monotonic_ns()}"

    async def handles() -> list[int]:
        async with rostra.connect(node.address) as client:
            for number in range(4):
                await client.publish(topic, b"%d" % number)
            async with client.subscribe(topic, name=topic, start="earliest") as records:
                first, second, third, fourth = [await anext(records) for _ in range(4)]
                await first.ack()
                second.ack()
                await third.retry()
                await fourth.give_back()
                return [(await anext(records)).offset - first.offset for _ in range(2)]

    assert asyncio.run(handles()) == [2, 3]
    with blocking.connect(node.address) as client:
        described = client.describe_subscription(topic)
        assert described.lag == 2
