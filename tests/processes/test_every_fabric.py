"""A node of every fabric, used through the command line, processes, and both kinds of embedding."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import rostra
import rostra.testing
from rostra import blocking
from rostra.fabric.registry import FABRICS
from tests.processes.command_line import CommandLine, wait_until

pytestmark = pytest.mark.parametrize("fabric", sorted(FABRICS))


@pytest.mark.requirement("CM-1:record", "CM-4:levels")
def test_a_record_comes_out_as_it_went_in_at_every_level_of_acknowledgement(fabric: str) -> None:
    with rostra.testing.node(fabric=fabric) as node, node.client() as client:
        for acks in ("none", "owner", "all"):
            with client.producer("t", acks=acks) as producer:
                producer.send(b"value", key=acks.encode(), headers=[("name", b"content")], timestamp=1_700_000_000)
                producer.flush()
        with client.subscribe("t", start="earliest") as records:
            got = [next(records) for _ in range(3)]
    assert [record.key for record in got] == [b"none", b"owner", b"all"]
    assert {(one.value, one.headers, one.timestamp_us) for one in got} == {
        (b"value", (("name", b"content"),), 1_700_000_000)
    }
    assert len({(one.partition, one.offset) for one in got}) == 3


@pytest.mark.requirement("CM-12:commands", "CM-18")
def test_one_command_starts_a_node_and_one_with_join_adds_another_with_metrics_and_logs(
    fabric: str, tmp_path: Path
) -> None:
    with rostra.testing.process_cluster(2, directory=tmp_path, fsync="never", fabric=fabric) as cluster:
        cluster.await_members(2)
        with cluster[0].client() as client:
            client.publish("t", b"x")
        for node in cluster:
            with node.client() as client, client.subscribe("t", start="earliest") as records:
                assert next(records).value == b"x"
                assert client.describe_cluster().fabric == fabric
            assert node.metrics().values("rostra_commit_offset", topic="t")
            assert node.metrics().value("rostra_connections") >= 0
            (listening,) = [line for line in node.log_lines() if line.event == "listening"]
            assert listening.about["address"] == node.address


@pytest.mark.requirement("CM-16:in-flight")
def test_a_graceful_stop_in_mid_stream_finishes_what_is_in_flight(fabric: str) -> None:
    values = [b"%d" % number for number in range(10_000)]
    with (
        rostra.testing.process_node(fabric=fabric) as node,
        blocking.connect(node.address, delivery_timeout_ms=60_000) as client,
        client.producer("t") as producer,
    ):
        producer.send_many(values)
        node.interrupt()
        assert node.wait() == 0
        (stopped,) = [line for line in node.log_lines() if line.event == "stopped"]
        assert stopped.about["finished"] is True
        node.start()
        producer.flush()
        with client.subscribe("t", start="earliest") as records:
            assert sorted(next(records).value or b"" for _ in values) == sorted(values)


@pytest.mark.requirement("CM-14:kill", "CM-5:stored-once")
def test_kill_9_in_mid_stream_loses_and_doubles_nothing(fabric: str) -> None:
    sent: list[bytes] = []
    with (
        rostra.testing.process_node(fabric=fabric) as node,
        blocking.connect(node.address, delivery_timeout_ms=60_000) as client,
    ):
        with client.producer("t") as producer:
            for _ in range(3):
                for _ in range(5):
                    some = [b"%d" % (len(sent) + number) for number in range(200)]
                    producer.send_many(some)
                    sent += some
                node.sigkill()
                node.start()
            producer.flush()
            assert producer.acked == len(sent)
        with client.subscribe("t", start="earliest") as records:
            got = [next(records).value or b"" for _ in sent]
            client.publish("t", b"last")
            got.append(next(records).value or b"")
    assert sorted(got) == sorted([*sent, b"last"])


@pytest.mark.requirement("CM-24:cluster", "CM-17:placement")
def test_a_cluster_inside_this_process_shows_where_copies_are(fabric: str, tmp_path: Path) -> None:
    with rostra.testing.cluster(3, directory=tmp_path, fabric=fabric, fsync="never") as cluster:
        cluster.await_members(3)
        with cluster[0].client() as client:
            client.publish("t", b"x")
        for node in cluster:
            with node.client() as client, client.subscribe("t", start="earliest") as records:
                assert next(records).value == b"x"
        cli = CommandLine(tmp_path, cluster[1].address)
        members = {row["id"]: row["address"] for row in cli.run("cluster", "members").rows}
        assert set(members.values()) == {node.address for node in cluster}
        wait_until(lambda: _owners_of_whole_partitions(cli) <= members.keys(), "a partition with three copies")


def _owners_of_whole_partitions(cli: CommandLine) -> set[object]:
    """The owners of partitions with three copies; "" where there is none."""
    rows = cli.run("cluster", "status", "t").rows
    whole = {row["owner"] for row in rows if isinstance(replicas := row["replicas"], list) and len(replicas) == 3}
    return whole or {""}


@pytest.mark.requirement("CM-26:random-ids")
def test_ids_of_clusters_nodes_topics_and_producers_are_drawn_at_random(fabric: str, tmp_path: Path) -> None:
    ids = [_ids(fabric, tmp_path / str(number)) for number in range(2)]
    for one, other in zip(*ids, strict=True):
        assert one != other
        assert min(one, other) > 1 << 32, "counted from one it would be small"


def _ids(fabric: str, directory: Path) -> tuple[int, int, int, int]:
    with rostra.testing.node(directory=directory, fabric=fabric, fsync="never") as node, node.client() as client:
        topic = client.create_topic("t").topic
        (only,) = client.describe_cluster().nodes
        with client.producer("t", strength=1) as producer:
            producer.send(b"x")
            producer.flush()
            ((publisher,),) = [state.publishers for state in client.describe_topic("t").partitions if state.publishers]
        card = msgspec.json.decode((directory / "node.json").read_bytes())
        return int(card["cluster"], 16), only.node, topic, publisher.publisher
