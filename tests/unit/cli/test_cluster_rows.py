"""Rows and summaries made from a `ClusterState`."""

from __future__ import annotations

import pytest
import typer

from rostra.cli.commands.cluster import find_member, find_partitions, join_command
from rostra.cli.commands.cluster_rows import Members, Quorum, columns_of, partition_row, partition_table_rows, summary
from rostra.errors import UnknownPartition, UnknownTopic
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition
from rostra.model.ids import NodeId, text

ONE, TWO, THREE = NodeId(0x1A), NodeId(0x1B), NodeId(0x2 << 56)


def node(identity: NodeId, port: int, *, alive: bool = True, host: str = "127.0.0.1") -> NodeState:
    return NodeState(identity, f"{host}:{port}", f"{host}:{port + 1}", alive, True, False, 1, 1, f"node-{port}")


def placed(topic: str, partition: int, owner: int = ONE, third: int = 40) -> PlacedPartition:
    copies = (CopyState(ONE, 50, True), CopyState(TWO, 50, True), CopyState(THREE, third, True))
    return PlacedPartition(topic, partition, NodeId(owner), 3, 0, 50, 50, copies)


def state(*partitions: PlacedPartition, alive: tuple[bool, bool, bool] = (True, True, True)) -> ClusterState:
    nodes = tuple(node(one, 7400 + 10 * at, alive=alive[at]) for at, one in enumerate((ONE, TWO, THREE)))
    return ClusterState("raft", nodes, partitions, (ONE,))


def test_the_lag_of_a_replica_is_the_end_of_the_owner_minus_its_match() -> None:
    row = partition_row(placed("t", 0), Members(state()))
    replicas = row["replicas"]
    assert isinstance(replicas, list)
    assert [copy["lag"] for copy in replicas if isinstance(copy, dict)] == [0, 0, 10]
    unknown = partition_row(placed("t", 0, third=-1), Members(state()))["replicas"]
    assert isinstance(unknown, list)
    assert [copy["lag"] for copy in unknown if isinstance(copy, dict)] == [0, 0, None]


def test_the_owner_is_in_the_first_row_of_its_partition_and_unreachable_replicas_are_down() -> None:
    members = Members(state(alive=(True, True, False)))
    first, second, third = partition_table_rows(placed("t", 1, owner=TWO), members)
    assert (first["partition"], first["node"], first["as"], first["quorum"]) == ("t/1", "node-7410", "owner", "2/3")
    assert (second["as"], third["as"]) == ("replica", "down")
    assert "partition" not in second


@pytest.mark.parametrize(
    ("alive", "owner", "shown"),
    [
        ((True, True, True), ONE, "3/3"),
        ((False, True, True), ONE, "2/3 no owner"),
        ((True, True, True), 0, "3/3 no owner"),
        ((True, False, False), ONE, "1/3 lost"),
    ],
)
def test_the_quorum_counts_voters_that_are_alive(alive: tuple[bool, bool, bool], owner: int, shown: str) -> None:
    assert str(Quorum(placed("t", 0, owner), Members(state(alive=alive)).alive, columns_of("raft"))) == shown


def test_the_summary_names_members_that_are_down_and_counts_lost_quorums() -> None:
    whole = state(placed("", 0), placed("t", 0, owner=TWO), alive=(True, False, False))
    members, owners, quorum = summary(whole)
    assert members == "raft, 3 members: 1 up, 2 down (node-7410, node-7420)"
    assert owners == "owners: node-7400 1"
    assert quorum == "2 without a quorum"


def test_a_member_is_found_by_id_address_or_unique_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    whole = state()
    for written in ("node-7420", text(THREE), "02", "127.0.0.1:7420", "127.0.0.1:7421"):
        assert find_member(whole, written).node == THREE
    with pytest.raises(typer.BadParameter, match="may be any of"):
        find_member(whole, "00")
    with pytest.raises(typer.Exit) as ended:
        find_member(whole, "ff")
    assert ended.value.exit_code == 4
    assert "no member 'ff'" in capsys.readouterr().err


def test_a_topic_name_wins_over_a_partition() -> None:
    whole = state(placed("", 0), placed("a", 0), placed("a", 1), placed("a/1", 0))
    assert [(one.topic, one.partition) for one in find_partitions(whole, "a/1")] == [("a/1", 0)]
    assert [(one.topic, one.partition) for one in find_partitions(whole, "a/0")] == [("a", 0)]
    assert [(one.topic, one.partition) for one in find_partitions(whole, "a")] == [("a", 0), ("a", 1)]
    with pytest.raises(UnknownPartition):
        find_partitions(whole, "a/2")
    for written in ("b", "b/0", "/0", "", "a/x"):
        with pytest.raises(UnknownTopic):
            find_partitions(whole, written)


def test_the_join_command_names_the_members_that_are_alive() -> None:
    command = join_command(state(alive=(True, False, True)))
    assert command == (
        "rostra serve --data ./rostra-data-4 --listen 127.0.0.1:7430 --fabric raft"
        " --join 127.0.0.1:7401 --join 127.0.0.1:7421"
    )
    far = ClusterState("raft", (node(ONE, 7400, host="mars"),), ())
    assert "--advertise THIS-HOST:7400" in join_command(far)
