"""A publisher's lease is kept while a blocking program makes no calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rostra import blocking
from rostra.wire.messages import TopicSettings
from tests.unit.client.socket_cluster import SocketCluster, serving

LEASE_MS = 100
DEADLINE_S = 60.0


@pytest.fixture
def served() -> Iterator[SocketCluster]:
    with serving(1) as cluster:
        cluster.cluster.create("t", TopicSettings(ownership="exclusive"))
        yield cluster


def await_(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.002)


def pings(served: SocketCluster) -> int:
    with served.lock:
        return served.cluster.members[served.addresses[0]].pings


def beating() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rostra-heartbeat"]


def test_a_publisher_sends_heartbeats_between_calls_until_it_is_closed(served: SocketCluster) -> None:
    with blocking.connect(*served.addresses) as client:
        producer = client.producer("t", strength=1, lease_ms=LEASE_MS).open()
        heard = pings(served)
        await_(lambda: pings(served) >= heard + 3, "three pings without a call")
        producer.close()
        await_(lambda: not beating(), "the heartbeat to end")


def test_closing_the_client_ends_the_heartbeat(served: SocketCluster) -> None:
    client = blocking.connect(*served.addresses)
    client.producer("t", strength=1, lease_ms=LEASE_MS).open()
    assert beating()
    client.close()
    assert not beating()


def test_a_client_without_a_lease_has_no_heartbeat(served: SocketCluster) -> None:
    with served.lock:
        served.cluster.create("shared", TopicSettings())
    with blocking.connect(*served.addresses) as client, client.producer("shared") as producer:
        producer.send(b"x")
        assert not beating()
        producer.set_strength(3)
        assert beating()


def test_a_shorter_lease_makes_the_heartbeat_more_frequent(served: SocketCluster) -> None:
    with blocking.connect(*served.addresses) as client:
        client.publish("t", b"with a long lease")
        client.producer("t", strength=1, lease_ms=LEASE_MS).open()
        heard = pings(served)
        await_(lambda: pings(served) >= heard + 3, "three pings")
