"""Several nodes on real sockets: joining, failover and recovery."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import rostra.testing
from rostra import blocking
from rostra.errors import LinkError
from rostra.testing.clusters import Cluster, ClusterNode, N
from rostra.testing.embedded import EmbeddedNode
from rostra.testing.process import ProcessNode
from rostra.testing.reserved_address import ReservedAddress

FEW = [b"%d" % number for number in range(20)]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster[EmbeddedNode]]:
    with rostra.testing.cluster(3, directory=tmp_path / "cluster") as cluster:
        yield cluster


def read(node: ClusterNode, topic: str, count: int, patience_s: float = 60.0) -> list[bytes | None]:
    values: list[bytes | None] = []
    with node.client() as client, client.subscribe(topic, start="earliest") as subscription:
        deadline = time.monotonic() + patience_s
        while len(values) < count and time.monotonic() < deadline:
            batch = subscription.poll(timeout=1.0)
            values += batch.values() if batch is not None else []
    return values


def publish(node: ClusterNode, topic: str, values: list[bytes]) -> None:
    """Publishes at the owner, which the caller has chosen."""
    with node.client() as client, client.producer(topic) as producer:
        producer.send_many(values)


def commit_of(node: ClusterNode, topic: str) -> float:
    return node.metrics().value("rostra_group_commit_offset", topic=topic)


def await_same_commit(cluster: Cluster[N], topic: str) -> None:
    def same() -> bool:
        commits = {commit_of(node, topic) for node in cluster.running()}
        return len(commits) == 1 and commits != {0.0}

    cluster.wait_until(same, f"every node to hold what is committed of {topic}")


# --- forming ---


@pytest.mark.requirement("RF-2", "RF-10:joins")
def test_three_nodes_that_start_at_once_in_a_chain_of_joins_form_one_cluster(tmp_path: Path) -> None:
    """The third joins through the second, which has not joined a cluster itself yet."""
    reserved = [ReservedAddress() for _ in range(3)]
    peers = [one.address for one in reserved]
    joins: list[tuple[str, ...]] = [(), (peers[0],), (peers[1],)]
    nodes = [
        EmbeddedNode(tmp_path / str(number), peer_listen=peers[number], join=joins[number], log_level="error")
        for number in range(3)
    ]
    cluster: Cluster[EmbeddedNode] = Cluster(tmp_path, EmbeddedNode)
    cluster.nodes = nodes
    try:
        for node in reversed(nodes):
            node.launch()
        for node in nodes:
            node.await_ready()
        cluster.await_members(3)
        assert len({identity_file(node)["cluster"] for node in nodes}) == 1
        assert len({identity_file(node)["node"] for node in nodes}) == 3
    finally:
        cluster.stop()


def identity_file(node: EmbeddedNode) -> dict[str, object]:
    return msgspec.json.decode((node.directory / "node.json").read_bytes(), type=dict[str, object])


@pytest.mark.requirement("RF-5:topics")
def test_a_topic_created_at_one_node_is_known_at_all(three: Cluster[EmbeddedNode]) -> None:
    for number, node in enumerate(three):
        with node.client() as client:
            client.create_topic(f"t{number}", partitions=2)
    for node in three:
        with node.client() as client:
            assert sorted(topic.name for topic in client.list_topics()) == ["t0", "t1", "t2"]
    with three[2].client() as client:
        client.delete_topic("t0")
    with three[0].client() as client:
        assert sorted(topic.name for topic in client.list_topics()) == ["t1", "t2"]


@pytest.mark.requirement("RF-37")
def test_partitions_are_led_by_different_nodes(three: Cluster[EmbeddedNode]) -> None:
    with three[0].client() as client:
        client.create_topic("t", partitions=3)

    def spread() -> bool:
        return sorted(three.nodes.index(three.owner("t", partition)) for partition in range(3)) == [0, 1, 2]

    three.wait_until(spread, "each node to lead one partition")


# --- durability ---


@pytest.mark.requirement("RF-32:majority")
def test_a_record_is_in_every_log_and_survives_the_kill_of_its_owner(three: Cluster[EmbeddedNode]) -> None:
    with three[0].client() as client:
        client.create_topic("t")
    owner = three.owner("t")
    publish(owner, "t", FEW)
    await_same_commit(three, "t")
    for node in three:
        assert read(node, "t", len(FEW)) == FEW
    owner.kill()
    heir = three.owner("t")
    assert heir is not owner
    assert read(heir, "t", len(FEW)) == FEW
    publish(heir, "t", [b"after"])
    assert read(heir, "t", len(FEW) + 1) == [*FEW, b"after"]


@pytest.mark.requirement("RF-30:log")
def test_a_restarted_node_catches_up(three: Cluster[EmbeddedNode]) -> None:
    with three[0].client() as client:
        client.create_topic("t")
    owner = three.owner("t")
    away = three.others(owner)[0]
    away.kill()
    publish(owner, "t", FEW)
    # A node remembers its cluster: it needs no address to join through.
    away.join = ()
    away.restart()
    await_same_commit(three, "t")
    assert read(away, "t", len(FEW)) == FEW


def test_a_client_that_was_given_only_the_owner_finds_its_successor(three: Cluster[EmbeddedNode]) -> None:
    with three[0].client() as maker:
        maker.create_topic("t", replicas=3)
    owner = three.owner("t")
    with blocking.connect(owner.address) as client:
        client.publish("t", b"before")
        owner.kill()
        # The owner stays away: only what it said of the others while it lived leads there.
        assert client.publish("t", b"after").offset > 1


@pytest.mark.requirement("RF-34:log")
def test_all_nodes_killed_at_once_keep_what_they_acknowledged(three: Cluster[EmbeddedNode]) -> None:
    with three[0].client() as client:
        client.create_topic("t")
    publish(three.owner("t"), "t", FEW)
    for node in three:
        node.kill()
    for node in three:
        node.launch()
    for node in three:
        node.await_ready()
    assert read(three.owner("t"), "t", len(FEW)) == FEW


def test_a_node_that_restarts_at_another_address_is_found_there(three: Cluster[EmbeddedNode]) -> None:
    with three[0].client() as client:
        client.create_topic("t")
    owner = three.owner("t")
    moved = three.others(owner)[0]
    moved.kill()
    old = moved.address
    moved.address = moved.peer_address = ""
    moved.start()
    publish(owner, "t", FEW)
    await_same_commit(three, "t")

    def told() -> bool:
        seen = [node.metrics().values("rostra_member_up", address=moved.address) for node in three]
        return seen == [[1.0]] * 3

    three.wait_until(told, "everybody to know the new address")
    assert moved.address != old
    assert owner.metrics().values("rostra_member_up", address=old) == []


@pytest.mark.requirement("RF-11")
def test_a_member_that_does_not_answer_is_down_for_every_other(three: Cluster[EmbeddedNode]) -> None:
    silent = three[1]
    silent.pause()
    others = [node for node in three if node is not silent]
    three.wait_until(
        lambda: all(node.metrics().value("rostra_members_down") == 1 for node in others), "it to be missed"
    )
    silent.resume()
    three.await_members()
    three.wait_until(
        lambda: all(node.metrics().value("rostra_members_down") == 0 for node in others), "none to be missed"
    )


def test_a_paused_owner_is_replaced_and_its_log_does_not_diverge_when_resumed(three: Cluster[EmbeddedNode]) -> None:
    with three[0].client() as client:
        client.create_topic("t")
    owner = three.owner("t")
    publish(owner, "t", FEW)
    owner.pause()
    others = [node for node in three if node is not owner]

    leading: list[EmbeddedNode] = []

    def replaced() -> bool:
        leading[:] = [node for node in others if node.metrics().value("rostra_partition_owner", topic="t")]
        return bool(leading)

    three.wait_until(replaced, "another owner")
    publish(leading[0], "t", [b"meanwhile"])
    owner.resume()
    await_same_commit(three, "t")
    for node in three:
        assert read(node, "t", len(FEW) + 1) == [*FEW, b"meanwhile"]


def test_a_node_that_joins_later_gets_the_existing_topics(tmp_path: Path) -> None:
    with rostra.testing.cluster(1, directory=tmp_path / "cluster") as cluster:
        with cluster[0].client() as client:
            client.create_topic("early")
        newcomer = cluster.add()
        cluster.await_members(2)
        with newcomer.client() as client:
            assert [topic.name for topic in client.list_topics()] == ["early"]


# --- processes ---


@pytest.mark.requirement("CM-14:kill", "RF-30:log")
def test_kill_9_of_the_owner_of_real_processes_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with rostra.testing.process_cluster(3, directory=tmp_path / "cluster") as cluster:
        with cluster[1].client() as client:
            client.create_topic("t")
        expected: list[bytes] = []
        for turn in range(3):
            owner = cluster.owner("t")
            some = [b"%d-%d" % (turn, number) for number in range(200)]
            publish(owner, "t", some)
            expected += some
            owner.sigkill()
            heir = cluster.owner("t")
            assert heir is not owner
            assert read(heir, "t", len(expected)) == expected
            owner.start()
            await_same_commit(cluster, "t")
        for node in cluster:
            assert read(node, "t", len(expected)) == expected
            said = [line for line in node.log_lines() if line.event == "leads" and line.about["partition"] == "t/0"]
            assert all({"time", "node", "role", "term"} <= line.about.keys() for line in said)


def test_a_node_that_waits_to_join_can_be_stopped(tmp_path: Path) -> None:
    nobody = ReservedAddress()
    node = ProcessNode(tmp_path, join=(nobody.address,))
    node.launch()
    try:
        deadline = time.monotonic() + 60
        while not [line for line in node.log_lines() if line.event == "not joined yet"]:
            assert time.monotonic() < deadline and node.running, node.end_of_log()
            time.sleep(0.02)
        with pytest.raises(LinkError):
            blocking.connect(nobody.address, connect_timeout_ms=50)
        assert node.stop() == 0
    finally:
        node.sigkill()
