"""`rostra.testing`: nodes for tests of applications, and the examples of its documentation."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rostra
import rostra.testing
from rostra.broker.settings import BrokerSettings
from rostra.errors import LimitExceeded, Unreachable
from rostra.testing.embedded import EmbeddedNode
from rostra.testing.process import NotReady

MANUAL = Path(__file__).resolve().parent.parent.parent / "docs" / "testing.md"


def test_a_node_inside_the_process_serves_both_clients() -> None:
    with rostra.testing.node() as node:

        async def publish() -> int:
            async with rostra.connect(node.address) as client:
                return (await client.publish("t", b"from asyncio")).offset

        assert asyncio.run(publish()) == 1
        with node.client() as client:
            assert client.publish("t", b"from blocking code").offset == 2
            with client.subscribe("t", start="earliest") as records:
                assert [next(records).value for _ in range(2)] == [b"from asyncio", b"from blocking code"]


def test_a_killed_node_restarts_with_all_acknowledged_records_at_the_same_address() -> None:
    with rostra.testing.node() as node:
        address = node.address
        with node.client() as client:
            for number in range(10):
                client.publish("t", b"%d" % number)
            node.kill()
            assert not node.running
            node.restart()
            assert node.address == address
            # The first word of the partition's first owner occupies an offset too; a node alone needs no second one.
            assert client.publish("t", b"10").offset == 11
            with client.subscribe("t", start="earliest") as records:
                assert [next(records).value for _ in range(11)] == [b"%d" % number for number in range(11)]


def test_nothing_of_a_node_is_left_when_its_block_ends() -> None:
    before = set(threading.enumerate())
    with rostra.testing.node() as node, node.client() as client:
        client.publish("t", b"x")
        assert set(threading.enumerate()) - before
    assert not [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    assert not node.directory.exists()
    host, port = node.address.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60)


def test_a_given_directory_is_kept_and_restarts_the_same_node(tmp_path: Path) -> None:
    with rostra.testing.node(directory=tmp_path / "kept") as node, node.client() as client:
        client.publish("t", b"kept")
    with rostra.testing.node(directory=tmp_path / "kept") as node, node.client() as client:
        assert [topic.name for topic in client.list_topics()] == ["t"]


def test_limits_can_be_set() -> None:
    with rostra.testing.node(limits=BrokerSettings(topics_max=1)) as node, node.client() as client:
        client.create_topic("first")
        with pytest.raises(LimitExceeded):
            client.create_topic("second")


def test_a_stopped_node_is_unreachable() -> None:
    with rostra.testing.node() as node:
        assert node.stop() is True
        with pytest.raises(Unreachable):
            rostra.blocking.connect(node.address, connect_timeout_ms=100)


def test_two_nodes_run_side_by_side() -> None:
    with rostra.testing.node() as one, rostra.testing.node() as other:
        assert one.address != other.address
        with one.client() as client:
            client.create_topic("here")
        with other.client() as client:
            assert client.list_topics() == ()


def test_a_child_that_does_not_start_is_explained_by_its_log() -> None:
    with (
        rostra.testing.process_node() as node,
        pytest.raises(NotReady, match="is in use"),
        rostra.testing.process_node(listen=node.address),
    ):
        pass


def test_the_fixture_starts_a_new_node_for_each_test(rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        assert client.list_topics() == ()
        assert client.publish("t", b"x").offset == 1


def test_the_example_of_the_documentation_runs_as_printed(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{sum(example.count('def test_') for example in examples)} passed" in ran.stdout
