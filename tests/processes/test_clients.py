"""Both clients against a real node, with the same test bodies."""

from __future__ import annotations

import asyncio
import inspect
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread
from types import FrameType
from typing import Any

import pytest

import rostra
import rostra.testing
from rostra import blocking, errors
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
def topic(request: pytest.FixtureRequest) -> str:
    """A name for every test and kind of client."""
    return "".join(character if character.isalnum() else "-" for character in request.node.name)


def take(subscription: Any, count: int) -> list[rostra.Record]:
    records = []
    for record in subscription:
        records.append(record)
        if len(records) == count:
            break
    return records


# --- the same names --------------------------------------------------------------------------------


@pytest.mark.requirement("CM-22:same-names")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (rostra.Client, blocking.Client),
        (rostra.Producer, blocking.Producer),
        (rostra.Subscription, blocking.Subscription),
    ],
)
def test_both_clients_have_the_same_names_and_parameters(one: type, other: type) -> None:
    # Waiting for at most so long is the loop's business in asyncio; blocking code needs a parameter for it.
    allowed = {"poll": None, "batches": {"timeout"}}
    for name in sorted({*vars(one), *vars(other)}):
        if name.startswith("_"):
            continue
        if name in allowed and allowed[name] is None:
            continue
        ours, theirs = getattr(one, name), getattr(other, name)
        if callable(ours):
            extra = allowed.get(name) or set()
            assert [*inspect.signature(ours).parameters] == [
                parameter for parameter in inspect.signature(theirs).parameters if parameter not in extra
            ], name


@pytest.mark.requirement("CM-22:same-names")
def test_both_connect_functions_have_the_same_parameters() -> None:
    assert inspect.signature(rostra.connect).parameters == inspect.signature(blocking.connect).parameters


def test_the_package_is_marked_as_typed() -> None:
    from importlib.resources import files

    assert files("rostra").joinpath("py.typed").is_file()


# --- publishing and subscribing --------------------------------------------------------------------


@pytest.mark.requirement("CM-1:record", "CM-22:both-work")
def test_a_record_is_received_as_it_was_published(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        ack = client.publish(
            topic, b"value", key=b"key", headers=[("name", b"content")], timestamp=1_700_000_000_000_000
        )
        client.publish(topic, None, key=b"key")
        assert ack == rostra.Ack(topic, 0, 1)
        with client.subscribe(topic, start="earliest") as subscription:
            record, tombstone = take(subscription, 2)
        assert record == rostra.Record(topic, 0, 1, 1_700_000_000_000_000, b"key", b"value", (("name", b"content"),))
        assert (tombstone.offset, tombstone.value) == (2, None)


@pytest.mark.requirement("CM-4:levels")
@pytest.mark.parametrize("acks", ["none", "owner", "all"])
def test_every_level_of_acknowledgement_stores_the_records(
    node: EmbeddedNode, kind: str, topic: str, acks: str
) -> None:
    values = [b"%d" % n for n in range(3000)]
    with connected(kind, node.address) as client:
        with client.producer(topic, acks=acks, batch_bytes=1000, window_bytes=10_000) as producer:
            for value in values[:1500]:
                producer.send(value)
            producer.send_many(values[1500:])
            producer.flush()
            assert (producer.sent, producer.acked) == (3000, 3000)
        with client.subscribe(topic, start="earliest") as subscription:
            assert [record.value for record in take(subscription, 3000)] == values


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_batches_are_read_as_values_and_as_arrow_with_every_codec(
    node: EmbeddedNode, kind: str, topic: str, codec: str
) -> None:
    values = [b"%050d" % n for n in range(2000)]
    with connected(kind, node.address) as client:
        with client.producer(topic, codec=codec, batch_bytes=20_000) as producer:
            producer.send_many(values)
        seen: list[bytes | None] = []
        arrow: list[bytes | None] = []
        with client.subscribe(topic, start=rostra.Offset(6)) as subscription:
            for batch in subscription.batches():
                seen += batch.values()
                arrow += batch.to_arrow().column("value").to_pylist()
                if batch.next_offset == 2001:
                    break
            assert (subscription.next_offset, subscription.lag) == (2001, 0)
        assert seen == arrow == values[5:]


@pytest.mark.requirement("CM-6:start-last")
def test_a_subscription_begins_at_the_given_start_and_reports_its_position(
    node: EmbeddedNode, kind: str, topic: str
) -> None:
    with connected(kind, node.address) as client:
        with client.producer(topic) as producer:
            producer.send_many([b"%d" % n for n in range(10)])
        with client.subscribe(topic, start=rostra.Last(3)) as subscription:
            assert subscription.next_offset == 8
            assert next(subscription).value == b"7"
            assert (subscription.next_offset, subscription.lag) == (9, 2)
        with client.subscribe(topic) as subscription:
            client.publish(topic, b"new")
            assert next(subscription).value == b"new"


@pytest.mark.parametrize("by", ["records", "batches"])
def test_control_batches_of_publishers_do_not_count_as_lag(kind: str, by: str) -> None:
    """A publisher that registers and leaves adds two control batches to the end of the log."""
    with rostra.testing.node(fsync="never") as own:
        with own.client() as client:
            client.publish("t", b"only")
            client.producer("t", strength=1).open().leave()
        with connected(kind, own.address) as client, client.subscribe("t", start="earliest") as subscription:
            if by == "records":
                assert next(subscription).value == b"only"
            else:
                assert next(iter(subscription.batches())).values() == [b"only"]
            deadline = time.monotonic() + 60
            while (subscription.next_offset, subscription.lag) != (4, 0):
                assert time.monotonic() < deadline, (subscription.next_offset, subscription.lag)
                # A blocking client receives inside its calls.
                client.list_topics()


def test_keys_choose_partitions_and_a_subscription_may_take_one(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        client.create_topic(topic, partitions=4)
        acks = [client.publish(topic, b"%d" % n, key=b"key-%d" % (n % 5)) for n in range(20)]
        assert all(acks[n].partition == acks[n % 5].partition for n in range(20))
        chosen = acks[0].partition
        expected = [b"%d" % n for n in range(20) if acks[n].partition == chosen]
        with client.subscribe(topic, start="earliest", partition=chosen) as subscription:
            assert [record.value for record in take(subscription, len(expected))] == expected
        with client.subscribe(topic, start="earliest") as subscription:
            assert sorted(int(record.value or b"") for record in take(subscription, 20)) == list(range(20))


# --- topics and errors -----------------------------------------------------------------------------


@pytest.mark.requirement("CM-3:life", "CM-3:quiet")
def test_topics_are_created_described_and_deleted_with_clear_errors(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        made = client.create_topic(topic, partitions=2, retention_ms=1000)
        with pytest.raises(errors.TopicExists):
            client.create_topic(topic)
        assert client.create_topic(topic, if_not_exists=True) == made
        assert topic in [known.name for known in client.list_topics()]
        described = client.describe_topic(topic)
        assert (described.settings.partitions, described.settings.retention_ms) == (2, 1000)
        assert [state.partition for state in described.partitions] == [0, 1]
        client.delete_topic(topic)
        with pytest.raises(errors.UnknownTopic):
            client.delete_topic(topic)
        client.delete_topic(topic, if_exists=True)
        with pytest.raises(errors.UnknownTopic):
            client.describe_topic(topic)
        with pytest.raises(errors.InvalidTopicName):
            client.create_topic("../escape")


@pytest.mark.requirement("CM-9:deleted")
def test_a_deleted_topic_ends_its_subscription_with_the_reason(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        client.publish(topic, b"last")
        with client.subscribe(topic, start="earliest") as subscription:
            assert next(subscription).value == b"last"
            client.delete_topic(topic)
            with pytest.raises(errors.TopicDeleted):
                next(subscription)


def test_a_subscription_with_room_for_one_batch_at_a_time_gets_all_of_them(
    node: EmbeddedNode, kind: str, topic: str
) -> None:
    with connected(kind, node.address) as client:
        values = [b"%d" % number for number in range(30)]
        for value in values:
            client.publish(topic, value)
        with client.subscribe(topic, start="earliest", credit_bytes=1) as subscription:
            assert [record.value for record in take(subscription, len(values))] == values


def test_an_unsubscribed_iterator_stops(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        for n in range(3):
            client.publish(topic, b"%d" % n)
        subscription = client.subscribe(topic, start="earliest")
        seen = []
        for record in subscription:
            seen.append(record.value)
            subscription.unsubscribe()
        assert seen == [b"0"]


def test_an_unreachable_address_is_reported_within_the_timeout(kind: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(errors.Unreachable) as caught, connected(kind, address, connect_timeout_ms=200):
            pass
    assert address in str(caught.value)


def test_a_node_that_does_not_accept_is_reported_within_the_timeout(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as busy:
        port = busy.getsockname()[1]
        with ExitStack() as callers:
            # As many as the system keeps waiting: those who call now are not even answered that they must wait.
            for _ in range(3):
                caller = callers.enter_context(socket.socket())
                caller.setblocking(False)
                caller.connect_ex(("127.0.0.1", port))
            with pytest.raises(errors.Unreachable), connected(kind, f"127.0.0.1:{port}", connect_timeout_ms=300):
                pass


def test_a_closed_client_raises_client_closed(node: EmbeddedNode, kind: str, topic: str) -> None:
    with connected(kind, node.address) as client:
        client.publish(topic, b"a")
        client.close()
        with pytest.raises(errors.ClientClosed):
            client.publish(topic, b"b")


def test_a_producer_block_that_fails_keeps_its_own_error_and_its_records(
    node: EmbeddedNode, kind: str, topic: str
) -> None:
    with connected(kind, node.address) as client:
        with pytest.raises(ZeroDivisionError), client.producer(topic) as producer:
            producer.send(b"before")
            raise ZeroDivisionError
        assert client.describe_topic(topic).partitions[0].commit >= 1


# --- lost connections ------------------------------------------------------------------------------


@pytest.mark.requirement("CM-5:stored-once", "CM-10:resends", "CM-10:resubscribes", "CM-10:told")
def test_a_killed_and_restarted_node_loses_and_duplicates_nothing(kind: str) -> None:
    with rostra.testing.node(fsync="commit") as node:
        events: list[rostra.ClientEvent] = []
        values = [b"%d" % n for n in range(4000)]
        options = {"backoff_ms": 5, "backoff_ms_max": 50}
        with (
            connected(kind, node.address, on_event=events.append, **options) as writer,
            connected("blocking", node.address, **options) as reader,
        ):
            with (
                reader.subscribe("t", start="earliest") as subscription,
                writer.producer("t", batch_bytes=500, window_bytes=5000) as producer,
            ):
                for at in range(0, 4000, 1000):
                    for value in values[at : at + 1000]:
                        producer.send(value)
                    node.kill()
                    node.start()
                producer.flush()
                assert producer.acked == 4000
                seen = [record.value for record in take(subscription, 4000)]
            assert seen == values
            assert {type(event) for event in reader.events()} >= {rostra.Resubscribed, rostra.Reconnected}
        kinds = {type(event) for event in events}
        assert kinds >= {rostra.Connected, rostra.Disconnected, rostra.Reconnected}
        assert rostra.MayDuplicate not in kinds


@pytest.mark.requirement("CM-10:resubscribes")
def test_a_subscription_continues_after_a_restart_of_the_node(kind: str) -> None:
    with (
        rostra.testing.node(fsync="never") as node,
        connected(kind, node.address, backoff_ms=5, backoff_ms_max=50) as client,
    ):
        client.publish("t", b"0")
        with client.subscribe("t", start="earliest") as subscription:
            assert next(subscription).value == b"0"
            node.restart()
            client.publish("t", b"1")
            assert next(subscription).value == b"1"


# --- each in its own way ---------------------------------------------------------------------------


def test_publishes_of_one_turn_of_the_loop_share_batches(node: EmbeddedNode, topic: str) -> None:
    async def main() -> list[rostra.Ack]:
        async with rostra.connect(node.address) as client:
            return await asyncio.gather(*[client.publish(topic, b"%d" % n) for n in range(500)])

    acks = asyncio.run(main())
    assert [ack.offset - acks[0].offset for ack in acks] == list(range(500))


def test_events_are_also_an_iterator(node: EmbeddedNode) -> None:
    async def main() -> list[rostra.ClientEvent]:
        with rostra.testing.node(fsync="never") as own:
            async with rostra.connect(own.address, backoff_ms=5) as client:
                events = client.events()
                await asyncio.to_thread(own.restart)
                seen = [await anext(events), await anext(events)]
                await events.aclose()
        return seen

    assert [type(event) for event in asyncio.run(main())] == [rostra.Disconnected, rostra.Reconnected]


def test_a_full_window_is_an_error_for_a_call_that_cannot_wait(node: EmbeddedNode, topic: str) -> None:
    async def sent_without_a_pause() -> int:
        async with (
            rostra.connect(node.address) as client,
            client.producer(topic, window_bytes=100_000, batch_bytes=10_000) as producer,
        ):
            sent = 0
            with pytest.raises(errors.LimitExceeded):
                while sent < 1_000:
                    producer.send_nowait(b"x" * 1_000)
                    sent += 1
            await producer.flush()
            return producer.acked - sent

    assert asyncio.run(sent_without_a_pause()) == 0


def test_a_callback_that_fails_does_not_break_the_client(node: EmbeddedNode, topic: str) -> None:
    complaints: list[object] = []

    def fail(event: object) -> None:
        raise ZeroDivisionError

    async def main() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
        async with (
            rostra.connect(node.address, on_event=fail) as client,
            client.producer(topic, on_ack=fail) as producer,
        ):
            await producer.send(b"a")
            await producer.flush()
            return producer.acked

    assert asyncio.run(main()) == 1
    assert [type(complaint) for complaint in complaints] == [ZeroDivisionError, ZeroDivisionError]


def test_a_cancelled_wait_loses_no_record(node: EmbeddedNode, topic: str) -> None:
    async def main() -> list[bytes | None]:
        async with rostra.connect(node.address) as client, client.subscribe(topic) as subscription:
            batches = subscription.batches()
            try:
                async with asyncio.timeout(0.01):
                    await anext(batches)
            except TimeoutError:
                pass
            await client.publish(topic, b"late")
            async for batch in subscription.batches():
                return batch.values()
        return []

    assert asyncio.run(main()) == [b"late"]


def test_poll_waits_no_longer_than_its_timeout(node: EmbeddedNode, topic: str) -> None:
    with blocking.connect(node.address) as client, client.subscribe(topic, start="earliest") as subscription:
        assert subscription.poll(timeout=0) is None
        assert subscription.poll(timeout=0.01) is None
        client.publish(topic, b"a")
        batch = subscription.poll(timeout=60)
        assert batch is not None and batch.values() == [b"a"]
        assert [b.values() for b in subscription.batches(timeout=0.01)] == []


def test_a_blocking_producer_reconnects_between_sends(topic: str) -> None:
    with (
        rostra.testing.node(fsync="never") as node,
        blocking.connect(node.address, backoff_ms=1, backoff_ms_max=5) as client,
        client.producer(topic) as producer,
    ):
        producer.send(b"first")
        producer.flush()
        node.restart()
        sent = 1
        # Neither the window nor a flush makes it wait: sending alone must mend the connection.
        while producer.acked < 2:
            producer.send(b"more")
            sent += 1
        producer.flush()
        assert producer.acked == sent


def test_an_interrupt_while_waiting_leaves_the_client_usable(node: EmbeddedNode, topic: str) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with (
            blocking.connect(node.address, backoff_ms=5) as client,
            client.subscribe(topic, start="earliest") as subscription,
        ):
            with pytest.raises(KeyboardInterrupt):
                # Inside the block: on a loaded machine the signal may arrive before the wait begins.
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                subscription.poll()
            client.publish(topic, b"after")
            assert next(subscription).value == b"after"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_threads_may_share_a_blocking_client(node: EmbeddedNode, topic: str) -> None:
    with blocking.connect(node.address) as client:

        def publish(thread: int) -> None:
            for n in range(50):
                client.publish(topic, b"%d-%d" % (thread, n))

        threads = [Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with client.subscribe(topic, start="earliest") as subscription:
            values = [record.value or b"" for record in take(subscription, 200)]
    for number in range(4):
        own = [value for value in values if value.startswith(b"%d-" % number)]
        assert own == [b"%d-%d" % (number, n) for n in range(50)]


@pytest.mark.requirement("CM-7:slow-alone")
def test_a_subscriber_that_does_not_read_does_not_hold_up_the_publisher(node: EmbeddedNode, topic: str) -> None:
    values = [b"%0100d" % n for n in range(20_000)]
    with (
        blocking.connect(node.address) as lazy,
        blocking.connect(node.address) as busy,
        lazy.subscribe(topic, start="earliest", credit_bytes=10_000) as subscription,
    ):
        with busy.producer(topic) as producer:
            producer.send_many(values)
            producer.flush()
        assert [record.value for record in take(subscription, 20_000)] == values
