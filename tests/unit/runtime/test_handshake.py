"""The handshake between two nodes, and what a node stores from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rostra.errors import CorruptLog, IncompatibleVersion, InvalidSetting, OtherCluster, OtherFabric, RostraError
from rostra.model.ids import ClusterId, NodeId
from rostra.runtime.disk.files import DiskFiles
from rostra.runtime.identity import IdentityFile, join_cluster, load_identity
from rostra.runtime.network.handshake import NO_CLUSTER, NodeIdentity, check_answer, check_hello, refusal, welcome
from rostra.wire.peers import PEER_PROTOCOL, PeerHello

OURS = NodeIdentity(ClusterId(7), NodeId(1), "127.0.0.1:1", "raft")


def hello(cluster: int = 7, version: int = PEER_PROTOCOL, fabric: str = "raft") -> PeerHello:
    return PeerHello(version, cluster, 2, "127.0.0.1:2", fabric)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (hello(), None),
        (hello(cluster=0), None),
        (hello(cluster=8), OtherCluster),
        (hello(fabric="flood"), OtherFabric),
        (hello(version=PEER_PROTOCOL + 1), IncompatibleVersion),
        (hello(cluster=8, version=PEER_PROTOCOL + 1), IncompatibleVersion),
    ],
)
def test_only_nodes_of_the_same_cluster_fabric_and_version_are_let_in(
    said: PeerHello, error: type[RostraError] | None
) -> None:
    found = check_hello(OURS, said)
    assert found is None if error is None else isinstance(found, error)


def test_a_node_without_a_cluster_answers_everybody_that_it_has_none() -> None:
    newcomer = msgspec.structs.replace(OURS, cluster=NO_CLUSTER)
    assert check_hello(newcomer, hello()) is None
    assert welcome(newcomer).cluster == NO_CLUSTER


def test_a_refused_node_raises_the_error_it_was_sent() -> None:
    with pytest.raises(OtherCluster, match="belongs to cluster 07"):
        check_answer(refusal(OtherCluster("07", "08")), 7401)
    assert check_answer(welcome(OURS), 7401) == welcome(OURS)


# --- what is kept ---


@pytest.fixture
def files(tmp_path: Path) -> DiskFiles:
    return DiskFiles(tmp_path)


def test_a_new_node_founds_a_cluster_unless_it_is_to_join_one(tmp_path: Path) -> None:
    founder = load_identity(DiskFiles(tmp_path / "a"), "raft")
    assert founder.founded and founder.identity.cluster != NO_CLUSTER
    joiner = load_identity(DiskFiles(tmp_path / "b"), "raft", ("127.0.0.1:9",))
    assert not joiner.founded and joiner.identity.cluster == NO_CLUSTER


def test_a_node_remembers_its_cluster_and_its_join_addresses(files: DiskFiles) -> None:
    identity = load_identity(files, "raft", ("127.0.0.1:9",))
    entered = join_cluster(files, identity, ClusterId(7))
    assert entered.identity.cluster == 7
    assert entered.identity.node == identity.identity.node
    assert load_identity(files, "raft") == load_identity(files, "raft", ("elsewhere:1",)) == entered
    assert entered.through == ("127.0.0.1:9",)


def test_the_directory_of_one_fabric_is_not_taken_for_another(files: DiskFiles) -> None:
    load_identity(files, "raft")
    with pytest.raises(InvalidSetting, match="was written by 'raft'"):
        load_identity(files, "flood")


@pytest.mark.parametrize("written", [b"", b"{}", b'{"format": 1, "cluster": "", "node": ""}', b"\xff\xff"])
def test_a_damaged_identity_file_is_an_error_and_no_new_node(files: DiskFiles, tmp_path: Path, written: bytes) -> None:
    (tmp_path / "node.json").write_bytes(written)
    with pytest.raises(CorruptLog):
        load_identity(files, "raft")


def test_the_identity_file_has_the_ids_that_logs_show(files: DiskFiles, tmp_path: Path) -> None:
    identity = load_identity(files, "raft")
    assert msgspec.json.decode((tmp_path / "node.json").read_bytes(), type=IdentityFile) == identity
    assert len(identity.node) == 16
