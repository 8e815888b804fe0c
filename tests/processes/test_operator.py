"""What an operator sees of nodes: names, health, readiness, metrics, and errors at the start."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import rostra.testing
from rostra import blocking
from rostra.errors import NotAcknowledged, PortNotPermitted
from rostra.runtime.network.addresses import listen_error
from rostra.testing.clusters import Cluster
from rostra.testing.process import ProcessNode
from tests.processes.command_line import CommandLine, wait_until


def get(node: ProcessNode, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{node.metrics_address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        return refused.code, refused.read().decode()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster[ProcessNode]]:
    """Two nodes with names and one without."""

    def make(path: Path) -> ProcessNode:
        number = int(path.name.removeprefix("node-"))
        arguments = ("--name", f"mars-{number}") if number < 2 else ()
        return ProcessNode(path, fsync="never", metrics="127.0.0.1:0", arguments=arguments)

    started = Cluster(tmp_path_factory.mktemp("cluster"), make)
    try:
        started.start(3)
        yield started
    finally:
        started.stop()


def test_a_node_is_shown_by_its_name_or_else_its_address(three: Cluster[ProcessNode], tmp_path: Path) -> None:
    cli = CommandLine(tmp_path, three[0].address)
    unnamed = three[2].address
    with three[0].client() as client:
        client.create_topic("orders")
    members = cli.run("cluster", "members").rows
    assert {row["name"] for row in members} == {"mars-0", "mars-1", unnamed}
    ids = [str(row["id"]) for row in members]
    for command in (["cluster", "members"], ["cluster", "status"]):
        table = cli.run(*command, "-o", "table").out
        assert all(name in table for name in ("mars-0", "mars-1", unnamed)), table
    assert not any(one in table for one in ids), table
    moved = cli.run("cluster", "transfer", "orders/0", "mars-1", "-o", "table")
    assert "orders/0: owner mars-1" in moved.out, moved.err


def test_logs_name_nodes_and_not_their_ids(three: Cluster[ProcessNode], tmp_path: Path) -> None:
    ids = [str(row["id"]) for row in CommandLine(tmp_path, three[0].address).run("cluster", "members").rows]
    names = {"mars-0", "mars-1", three[2].address}
    followed: set[object] = set()
    for node, name in zip(three, ("mars-0", "mars-1", three[2].address), strict=True):
        lines = node.log_lines()
        listening = next(line for line in lines if line.event == "listening")
        assert (listening.about["node"], listening.about["id"] in ids) == (name, True)
        followed |= {line.about["leader"] for line in lines if line.event == "follows"}
    assert followed and followed <= names


def test_a_single_node_logs_its_election_once_and_not_for_each_partition() -> None:
    with rostra.testing.process_node(fsync="never") as node:
        with node.client() as client:
            client.create_topic("many", partitions=8)
            client.publish("many", b"x", partition=7)
        elections = [line for line in node.log_lines() if line.event in ("asks for votes", "leads")]
    assert len({str(line.about["partition"]) for line in elections}) == 1


def test_a_node_is_healthy_and_ready_and_not_ready_without_a_majority(tmp_path: Path) -> None:
    with rostra.testing.process_cluster(3, fsync="never") as cluster:
        cluster.wait_until(lambda: get(cluster[0], "/ready") == (200, "ok\n"), "the node to be ready")
        cluster.wait_until(lambda: get(cluster[0], "/health") == (200, "ok\n"), "the node to be healthy")
        assert get(cluster[0], "/nothing")[0] == 404
        for node in (cluster[1], cluster[2]):
            node.sigkill()
        missed = "no leader is elected: 1 of 3 members are up\n"
        cluster.wait_until(lambda: get(cluster[0], "/ready") == (503, missed), "the majority to be missed")
        assert get(cluster[0], "/health") == (200, missed)


def test_metrics_have_the_lag_of_subscriptions_and_replicas_and_the_space_on_disk(
    three: Cluster[ProcessNode],
) -> None:
    with three[0].client() as client:
        client.create_topic("billed")
        for number in range(5):
            client.publish("billed", b"%d" % number)
        with client.subscribe("billed", name="billing", start="earliest") as records:
            for _ in range(2):
                record = records.receive(20)
                assert record is not None
                record.ack()

    def lags(name: str, **labels: str) -> list[float]:
        return [value for node in three for value in node.metrics().values(name, **labels)]

    three.wait_until(
        lambda: lags("rostra_subscription_lag", subscription="billing", topic="billed") == [3.0], "the lag"
    )
    three.wait_until(lambda: set(lags("rostra_replica_lag", topic="billed")) == {0.0}, "replicas to catch up")
    metrics = three[0].metrics()
    assert 0 < metrics.value("rostra_disk_free_bytes") <= metrics.value("rostra_disk_total_bytes")
    assert metrics.values("rostra_disk_full") == [0.0]


def test_the_wrong_port_is_named_with_the_right_one_in_both_directions(tmp_path: Path) -> None:
    with rostra.testing.process_node(fsync="never") as node:
        port, peer_port = (int(address.rpartition(":")[2]) for address in (node.address, node.peer_address))
        ran = CommandLine(tmp_path, node.peer_address).run("topic", "list")
        assert ran.code == 3
        assert f"error: port {peer_port} is for nodes; clients use {port}" in ran.err
        (tmp_path / "other").mkdir()
        other = ProcessNode(tmp_path / "other", join=(node.address,))
        try:
            other.launch()
            wait_until(lambda: any(line.event == "not joined yet" for line in other.log_lines()), "the reason")
            line = next(line for line in other.log_lines() if line.event == "not joined yet")
            assert f"port {port} is for clients; nodes use {port + 1}" in str(line.about["reason"])
        finally:
            other.sigkill()


def test_a_data_directory_of_another_cluster_does_not_join(tmp_path: Path) -> None:
    with rostra.testing.process_node(fsync="never") as node:
        (tmp_path / "other").mkdir()
        other = ProcessNode(tmp_path / "other", fsync="never")
        other.start()
        other.stop()
        cli = CommandLine(tmp_path)
        data = str(tmp_path / "other" / "node")
        ran = cli.run("serve", "--data", data, "--listen", "127.0.0.1:0", "--join", node.peer_address)
        assert ran.code == 3, ran.err
        assert "error: the data directory of this node belongs to cluster" in ran.err
        assert "start with an empty data directory" in ran.err
        assert '"listening"' not in ran.err


def test_a_removed_node_that_starts_again_is_not_ready_and_says_why() -> None:
    with rostra.testing.process_cluster(3, fsync="never") as cluster:
        with cluster[0].client() as client:
            gone = next(node.node for node in client.describe_cluster().nodes if node.address == cluster[2].address)
            client.remove_member(gone)
            cluster.wait_until(lambda: len(client.describe_cluster().nodes) == 2, "the removal")
        cluster[2].restart()

        def knows() -> bool:
            status, reason = get(cluster[2], "/ready")
            return status == 503 and "this node was removed from its cluster" in reason

        cluster.wait_until(knows, "the removed node to know it")
        removed = [line.level for line in cluster[2].log_lines() if "was removed from its cluster" in line.event]
        assert removed and set(removed) == {"error"}


def test_a_port_below_1024_needs_root() -> None:
    error = listen_error(PermissionError(errno.EACCES, "Permission denied"), "127.0.0.1:80", "--listen")
    assert isinstance(error, PortNotPermitted)
    assert str(error) == "port 80 needs root; choose a port from 1024 on with --listen"


def test_without_a_majority_commands_and_errors_say_so(tmp_path: Path) -> None:
    with rostra.testing.process_cluster(3, fsync="never") as cluster:
        with cluster[0].client() as client:
            client.create_topic("orders")
            client.publish("orders", b"x")
        for node in (cluster[1], cluster[2]):
            node.sigkill()
        cluster.wait_until(lambda: get(cluster[0], "/ready")[0] == 503, "the majority to be missed")
        cli = CommandLine(tmp_path, cluster[0].address)

        def note(expected: str, *arguments: str) -> str:
            """The first note that matches; one that is printed before the node's first answer does not."""
            with cli.start(*arguments) as running:
                assert running.stderr is not None
                lines = (line.decode() for line in iter(running.stderr.readline, b""))
                found = next((line for line in lines if re.search(expected, line)), "")
                running.kill()
            return found

        assert note("2 of 3 members are down", "sub", "orders", "--from", "earliest").startswith("note: ")
        read = cli.run("sub", "orders", "--from", "earliest", "--timeout", "3s")
        assert read.code == 3
        assert "within 3000 ms" in read.err
        assert "still waiting" in note("no majority;|is not acknowledged yet", "pub", "orders", "y")
        with (
            blocking.connect(cluster[0].address, delivery_timeout_ms=10_000) as client,
            pytest.raises(NotAcknowledged, match=r"it has no owner at the moment|is not available"),
        ):
            client.publish("orders", b"z")
