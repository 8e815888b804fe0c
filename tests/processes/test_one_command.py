"""What operators rely on: one command starts a node, its data directory is all it needs, it stops gracefully."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rostra.testing
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from rostra.testing.process import ProcessNode

HANDED_OVER = "the leader transfers leadership to it"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster[ProcessNode]]:
    """`rostra serve` once, and twice with `--join`."""
    place = tmp_path_factory.mktemp("cluster")
    with rostra.testing.process_cluster(3, directory=place, arguments=("--log-level", "debug")) as cluster:
        yield cluster


def identities(cluster: Cluster[ProcessNode], at: int) -> dict[int, str]:
    with cluster[at].client() as client:
        return {node.node: node.address for node in client.describe_cluster().nodes}


@pytest.mark.requirement("CM-12")
def test_a_node_restarts_with_its_data_directory_alone(three: Cluster[ProcessNode]) -> None:
    with three[2].client() as client:
        made = client.create_topic("kept")
        client.publish("kept", b"before")
    members = identities(three, 0)
    assert len(members) == 3
    for node in three:
        node.sigkill()
        node.join = ()
    for node in three:
        node.launch()
    for node in three:
        node.await_ready()
    three.await_members(3)
    assert identities(three, 1) == members
    with three[0].client() as client:
        assert [topic.topic for topic in client.list_topics() if topic.name == "kept"] == [made.topic]
        with client.subscribe("kept", start="earliest") as records:
            assert next(records).value == b"before"


@pytest.mark.requirement("CM-18")
def test_every_node_of_a_cluster_has_metrics_and_structured_logs(three: Cluster[ProcessNode]) -> None:
    three.await_members(3)
    for node in three:
        assert len(node.metrics().values("rostra_member_up")) == 3
        assert node.metrics().values("rostra_group_commit_offset", topic="_metadata")
        listening = [line for line in node.log_lines() if line.event == "listening"]
        assert listening[-1].about["address"] == node.address


@pytest.mark.requirement("CM-16:hands-over")
def test_a_node_transfers_its_partitions_before_it_stops(three: Cluster[ProcessNode]) -> None:
    with three[0].client() as client:
        client.create_topic("handed")
    owner = three.owner("handed")
    assert owner.stop() == 0
    heir = three.owner("handed")
    told = [
        line.about["because"]
        for line in heir.log_lines()
        if line.event == "role changed" and line.about["partition"] == "handed/0" and line.about["role"] == "candidate"
    ]
    assert told[-1] == HANDED_OVER
    owner.start()
    three.await_members(3)


@pytest.mark.requirement("CM-26:empty-directory")
def test_an_empty_directory_is_a_new_node_and_a_recreated_topic_is_another_one(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str]] = []
    for directory in ("one", "one", "other"):
        with rostra.testing.node(directory=tmp_path / directory, fsync="never") as node, node.client() as client:
            if not client.list_topics():
                client.create_topic("t")
            (topic,) = client.list_topics()
            (only,) = client.describe_cluster().nodes
            card = (tmp_path / directory / "node.json").read_text()
            seen.append((card, str(only.node), str(topic.topic)))
    assert seen[0] == seen[1]
    assert all(mine != theirs for mine, theirs in zip(seen[0], seen[2], strict=True))


@pytest.mark.requirement("CM-24")
def test_the_fixture_starts_a_cluster_of_three_nodes(rostra_cluster: Cluster[EmbeddedNode]) -> None:
    with rostra_cluster[0].client() as client:
        client.publish("t", b"x")
    owner = rostra_cluster.owner("t")
    owner.kill()
    heir = rostra_cluster.owner("t")
    assert heir is not owner
    with heir.client() as client, client.subscribe("t", start="earliest") as records:
        assert next(records).value == b"x"
