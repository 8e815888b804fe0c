"""Both clients with links to several nodes at once, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

import rostra
from rostra import blocking
from rostra.client.blocking import driver
from rostra.errors import NotAcknowledged
from rostra.wire.messages import TopicSettings
from tests.unit.client.socket_cluster import SocketCluster, serving

DEADLINE_S = 60.0


@pytest.fixture
def served() -> Iterator[SocketCluster]:
    with serving(3) as cluster:
        cluster.cluster.create("t", TopicSettings(3))
        yield cluster


@pytest.fixture
def swallowing() -> Iterator[str]:
    """An address that neither accepts nor refuses connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        yield "{}:{}".format(*address)
        for filler in fillers:
            filler.close()


def run(body: Callable[[rostra.Client], Awaitable[None]], *addresses: str) -> None:
    async def main() -> None:
        async with rostra.connect(*addresses, delivery_timeout_ms=int(DEADLINE_S * 1000)) as client:
            await body(client)

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def move(served: SocketCluster, partition: int, address: str) -> None:
    with served.lock:
        served.cluster.move("t", partition, address)


# --- asyncio ---------------------------------------------------------------------------------------


def test_asyncio_reaches_every_owner(served: SocketCluster) -> None:
    async def body(client: rostra.Client) -> None:
        async with client.subscribe("t", start="earliest") as records:
            acks = [await client.publish("t", b"%d" % n, partition=n) for n in range(3)]
            assert [(ack.partition, ack.offset) for ack in acks] == [(0, 0), (1, 0), (2, 0)]
            seen = {(await anext(records)).value for _ in range(3)}
            assert seen == {b"0", b"1", b"2"}
            assert served.links() == sorted(served.addresses)

    run(body, served.addresses[0])


@pytest.mark.requirement("CM-10:reconnects", "CM-10:resends", "CM-10:resubscribes")
def test_asyncio_follows_a_partition_whose_owner_dies(served: SocketCluster) -> None:
    async def body(client: rostra.Client) -> None:
        async with (
            client.subscribe("t", start="earliest", partition=1) as records,
            client.producer("t", partition=1) as producer,
        ):
            for n in range(200):
                await producer.send(b"%d" % n)
                if n == 50:
                    served.crash(served.addresses[1])
                    move(served, 1, served.addresses[2])
                if n == 150:
                    move(served, 1, served.addresses[0])
            await producer.flush()
            values = [(await anext(records)).value for _ in range(200)]
            assert values == [b"%d" % n for n in range(200)]
            assert producer.acked == 200

    run(body, *served.addresses)


# --- blocking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy_poll_ms", [0, 2])
def test_a_blocking_client_reaches_every_owner(served: SocketCluster, busy_poll_ms: int) -> None:
    with (
        blocking.connect(served.addresses[0], busy_poll_ms=busy_poll_ms) as client,
        client.subscribe("t", start="earliest") as records,
    ):
        acks = [client.publish("t", b"%d" % n, partition=n) for n in range(3)]
        assert [(ack.partition, ack.offset) for ack in acks] == [(0, 0), (1, 0), (2, 0)]
        assert {next(records).value for _ in range(3)} == {b"0", b"1", b"2"}
        assert served.links() == sorted(served.addresses)


@pytest.mark.requirement("CM-10:reconnects", "CM-10:resends", "CM-10:resubscribes")
def test_a_blocking_client_follows_a_partition_whose_owner_dies(served: SocketCluster) -> None:
    with (
        blocking.connect(*served.addresses, delivery_timeout_ms=int(DEADLINE_S * 1000)) as client,
        client.subscribe("t", start="earliest", partition=1) as records,
        client.producer("t", partition=1) as producer,
    ):
        for n in range(200):
            producer.send(b"%d" % n)
            if n == 50:
                served.crash(served.addresses[1])
                move(served, 1, served.addresses[2])
            if n == 150:
                move(served, 1, served.addresses[0])
        producer.flush()
        values = [next(records).value for _ in range(200)]
        assert values == [b"%d" % n for n in range(200)]
        assert producer.acked == 200


def test_a_blocking_client_serves_other_links_while_an_owner_does_not_answer(
    served: SocketCluster, swallowing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dialing such a node must not delay the connected links; its silence may last an hour here."""
    with blocking.connect(served.addresses[0], delivery_timeout_ms=3_600_000, connect_timeout_ms=3_600_000) as client:
        client.publish("t", b"first", partition=0)
        with served.lock:
            topic = served.cluster.topics["t"].topic
            for member in served.cluster.members.values():
                member.believes[topic, 1] = member.believes[topic, 1]._replace(address=swallowing, epoch=5)
        producer = client.producer("t").open()
        producer.send(b"stuck", partition=1)
        for n in range(50):
            client.publish("t", b"%d" % n, partition=0)
        assert producer.acked == 0
        monkeypatch.setattr(driver, "CLOSE_FLUSH_MS_MAX", 50)
        with pytest.raises(NotAcknowledged, match="1 records"):
            client.close()
