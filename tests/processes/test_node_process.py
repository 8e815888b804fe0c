"""A node as a process: killed, stopped, scraped, and sent invalid messages."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest

import rostra
import rostra.testing
from rostra import blocking
from rostra.errors import InvalidTopicName, from_wire
from rostra.testing.embedded import EmbeddedNode
from rostra.testing.process import ProcessNode
from rostra.wire.fields import Message
from rostra.wire.frames import FROM_NODE, FrameReader, Violation, encode
from rostra.wire.messages import (
    PROTOCOL_MAX,
    CreateTopic,
    Failed,
    Hello,
    Locate,
    NodeMessage,
    Ping,
    TopicSettings,
)
from tests.fuzz.raw import RawClient
from tests.processes.command_line import is_alive, wait_until

ESCAPES = ["../../etc/passwd", "..", "a/../b", "/etc", "a//b", "a\x00b", "a b", "ü", "x" * 250, "", "."]


@pytest.mark.requirement("CM-10:resends", "CM-10:told", "CM-14:kill")
def test_kill_9_while_publishing_loses_nothing_acknowledged_and_duplicates_nothing() -> None:
    kills, chunk = 4, 200
    acknowledged = 0

    def count(ack: rostra.Acknowledged) -> None:
        nonlocal acknowledged
        acknowledged += ack.count

    with (
        rostra.testing.process_node() as node,
        blocking.connect(node.address) as client,
        client.producer("t", on_ack=count) as producer,
    ):
        sent = 0
        for kill in range(kills):
            for _ in range(5):
                producer.send_many([b"%d" % number for number in range(sent, sent + chunk)])
                sent += chunk
            # Whatever is under way now has no acknowledgement yet.
            node.sigkill()
            producer.send_many([b"%d" % number for number in range(sent, sent + chunk)])
            sent += chunk
            node.start()
            producer.flush()
            assert acknowledged == sent, f"after kill {kill}"
        events = list(client.events())
        assert sum(isinstance(event, rostra.Reconnected) for event in events) == kills
        assert any(isinstance(event, rostra.Resent) for event in events)
        assert read_all(node, "t", sent) == [b"%d" % number for number in range(sent)]


@pytest.mark.requirement("CM-16:in-flight")
def test_a_graceful_stop_while_publishing_completes_pending_requests_and_leaves_a_clean_log() -> None:
    with rostra.testing.process_node() as node:
        with blocking.connect(node.address, delivery_timeout_ms=60_000) as client, client.producer("t") as producer:
            producer.send_many([b"%d" % number for number in range(20_000)])
            pid = node.pid
            node.interrupt()
            assert node.wait() == 0
            assert pid is not None
            assert not is_alive(pid)
            stopped = [line for line in node.log_lines() if line.event == "stopped"]
            assert [line.about["finished"] for line in stopped] == [True]
            node.start()
            producer.flush()
        listening = [line for line in node.log_lines() if line.event == "listening"]
        assert listening[-1].about["clean"] is True
        assert "clean" not in listening[0].about
        assert read_all(node, "t", 20_000) == [b"%d" % number for number in range(20_000)]


def read_all(node: ProcessNode, topic: str, count: int) -> list[bytes | None]:
    """Reads from the first record; waits while records are missing, then once more for duplicates."""
    values: list[bytes | None] = []
    with blocking.connect(node.address) as client, client.subscribe(topic, start="earliest") as subscription:
        while len(values) < count and (batch := subscription.poll(timeout=60.0)) is not None:
            values += batch.values()
        while (batch := subscription.poll(timeout=0.2)) is not None:
            values += batch.values()
    return values


def test_a_node_offers_metrics_and_logs_json_lines() -> None:
    with rostra.testing.process_node(metrics="127.0.0.1:0") as node:
        with blocking.connect(node.address) as client:
            client.publish("t", b"hello")
            scraped = scrape(node, "/metrics")
        assert "# TYPE rostra_appended_batches_total counter" in scraped
        assert 'rostra_commit_offset{partition="0",topic="t"} 2.0' in scraped
        assert "rostra_connections 1.0" in scraped
        assert scrape(node, "/health") == "ok\n"
        node.stop()
        lines = node.log_file.read_text().splitlines()
    events = [msgspec.json.decode(line, type=dict[str, object]) for line in lines]
    assert [event["event"] for event in events if event["event"] in ("listening", "stopped")] == [
        "listening",
        "stopped",
    ]
    assert all({"event", "level", "time"} <= event.keys() for event in events)


def test_a_violation_that_the_broker_finds_is_counted_and_logged_once() -> None:
    with rostra.testing.process_node(metrics="127.0.0.1:0") as node:
        with RawClient(node.address, greet=False) as rude:
            # Behind it half a frame: once the node has hung up, the end of the stream is no second fault.
            rude.send(encode(Ping(1)) + encode(Ping(2))[:-1])
            rude.finish()
        with RawClient(node.address) as twice:
            twice.send(encode(Hello(1, 1, 1)) + encode(Ping(2))[:-1])
            twice.finish()
        scraped = scrape(node, "/metrics")
        assert f'rostra_violations_total{{reason="{Violation.NOT_GREETED}"}} 1.0' in scraped
        assert f'rostra_violations_total{{reason="{Violation.OUT_OF_ORDER}"}} 1.0' in scraped
        assert f'reason="{Violation.TRUNCATED}"' not in scraped
        node.stop()
        closed = [line for line in node.log_lines() if line.event == "connection closed"]
        assert len(closed) == 2


def scrape(node: ProcessNode, path: str) -> str:
    with urllib.request.urlopen(f"http://{node.metrics_address}{path}", timeout=60) as answer:
        return bytes(answer.read()).decode()


@pytest.mark.requirement("CM-2:before-disk", "CM-2:refused")
def test_an_invalid_topic_name_is_refused_by_the_node_before_it_touches_the_disk() -> None:
    with rostra.testing.process_node() as node:
        before = files_of(node)
        host, port = node.address.split(":")
        # A client would refuse such names already; a hostile one speaks to the node directly.
        with socket.create_connection((host, int(port)), timeout=60) as wire:
            reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, 1 << 20)
            ask(wire, reader, Hello(1, 1, PROTOCOL_MAX))
            for request, name in enumerate(ESCAPES, start=2):
                for question in (CreateTopic(request, name, TopicSettings()), Locate(request, name, True)):
                    answer = ask(wire, reader, question)
                    assert isinstance(answer, Failed), f"{name!r} was accepted"
                    assert isinstance(from_wire(answer.code, answer.carried), InvalidTopicName)
        assert files_of(node) == before


def ask(wire: socket.socket, reader: FrameReader[NodeMessage], question: Message) -> NodeMessage:
    wire.sendall(encode(question))
    while True:
        for message, _ in reader.feed(wire.recv(65_536)):
            return message


def files_of(node: ProcessNode) -> set[Path]:
    return {path for path in node.directory.rglob("*") if path != node.log_file}


@pytest.mark.requirement("CM-2:refused")
@pytest.mark.parametrize("name", ESCAPES)
def test_a_client_refuses_an_invalid_topic_name(rostra_node: EmbeddedNode, name: str) -> None:
    with rostra_node.client() as client:
        with pytest.raises(InvalidTopicName):
            client.create_topic(name)
        with pytest.raises(InvalidTopicName):
            client.publish(name, b"x")
        with pytest.raises(InvalidTopicName):
            client.subscribe(name).open()


def test_a_node_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = """
import os, signal, rostra.testing
with rostra.testing.process_node() as node:
    print(node.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == -9
    pid = int(done.stdout)
    wait_until(lambda: not is_alive(pid), "the node to end with its parent")
