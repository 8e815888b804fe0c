"""Mutated frames over real sockets against a real node: each bad connection is closed with a logged reason."""

from __future__ import annotations

import time
from collections import Counter
from random import Random

import pytest

from rostra.errors import PeerViolation
from rostra.model.encode import encode as encode_batch
from rostra.testing import process_node
from rostra.testing.process import ProcessNode
from rostra.wire.frames import FROM_CLIENT, FrameReader, Violation
from rostra.wire.messages import (
    ClientMessage,
    Hello,
    Locate,
    Located,
    Ping,
    Pong,
    Publish,
    Published,
    Push,
    Subscribe,
    Subscribed,
)
from tests.fuzz import mutations
from tests.fuzz.corpus import Corpus
from tests.fuzz.memory import GROWTH_BYTES_MAX, resident_bytes
from tests.fuzz.raw import RawClient

SEED = 20_261_115
FRAMES = 2_000
WARM_UP = 100
FRAME_BYTES_MAX = 8 << 20
LOG_PATIENCE_S = 60.0


def expected(raw: bytes, *, greeted: bool) -> Violation | None:
    """The reason for which the connection must be closed, if any."""
    reader: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT)
    if greeted:
        reader.frame_bytes_max = FRAME_BYTES_MAX
    try:
        messages = reader.feed(raw)
        if messages and isinstance(messages[0][0], Hello) is greeted:
            return Violation.OUT_OF_ORDER if greeted else Violation.NOT_GREETED
        reader.closed()
    except PeerViolation as violation:
        return Violation(violation.reason)
    return None


def good_client_is_served(address: str, name: str) -> None:
    with RawClient(address) as client:
        client.say(Locate(1, name, create=True))
        topic = client.hear(Located)[0].topic.topic
        batch = encode_batch([b"good"], timestamp_us=time.time_ns() // 1000)
        client.say(Publish(2, topic, 0, "all"), batch)
        assert client.hear(Published)[0].offset == 1
        client.say(Subscribe(3, 0, topic, 0, "earliest", 0, 1 << 20))
        assert b"good" in client.hear(Push)[1]


def reasons_logged(node: ProcessNode) -> tuple[dict[str, str], Counter[str]]:
    """The reason for each closed connection, by the client's address, and counts of all logged reasons."""
    by_client: dict[str, str] = {}
    counted: Counter[str] = Counter()
    for line in node.log_lines():
        if line.event == "connection closed":
            reason = str(line.about["reason"])
            by_client[str(line.about.get("client", ""))] = reason
            counted[next(one for one in Violation if f"({one})" in reason)] += 1
    return by_client, counted


@pytest.mark.requirement("CM-20:clients")
def test_a_node_closes_every_bad_connection_with_a_logged_reason_and_serves_on() -> None:
    rng = Random(SEED)
    due: Counter[Violation] = Counter()
    due_by_client: dict[str, tuple[int, Violation]] = {}
    with process_node(fsync="never") as node, RawClient(node.address) as bystander:
        bystander.say(Locate(1, "t", create=True))
        topic = bystander.hear(Located)[0].topic.topic
        bystander.say(Subscribe(2, 0, topic, 0, "latest", 0, 1 << 26))
        bystander.hear(Subscribed)
        corpus = Corpus(rng, [topic], time.time_ns() // 1000)
        assert node.pid is not None
        for number in range(FRAMES):
            if number == WARM_UP:
                before = resident_bytes(node.pid)
            greeted = rng.random() < 0.9
            raw = rng.choice(mutations.ALL)(corpus, corpus.from_client())
            with RawClient(node.address, greet=greeted) as bad:
                bad.send(raw)
                bad.finish()
                reason = expected(raw, greeted=greeted)
                if reason is not None:
                    due[reason] += 1
                    due_by_client[bad.address] = (number, reason)
            if number % 100 == 0:
                bystander.say(Ping(number))
                assert bystander.hear(Pong)[0] == Pong(number)
        assert resident_bytes(node.pid) - before < GROWTH_BYTES_MAX
        good_client_is_served(node.address, "afterwards")
        assert node.running
        by_client, logged = _once_all_is_logged(node, sum(due.values()))
    for client, (number, reason) in due_by_client.items():
        if reason not in (Violation.NOT_GREETED, Violation.OUT_OF_ORDER):
            assert f"({reason})" in by_client.get(client, ""), f"frame {number} of seed {SEED}"
    assert all(logged[reason] >= count for reason, count in due.items())
    assert {reason for reason in Violation if not due[reason]} <= {Violation.META_LENGTH}


def _once_all_is_logged(node: ProcessNode, count: int) -> tuple[dict[str, str], Counter[str]]:
    deadline = time.monotonic() + LOG_PATIENCE_S
    while True:
        by_client, logged = reasons_logged(node)
        if logged.total() >= count or time.monotonic() > deadline:
            return by_client, logged
        time.sleep(0.05)
