"""What is shown of a cluster, from what it says of itself."""

from __future__ import annotations

import pytest
import typer

from rostra.cli.commands.cluster import find_member, find_partitions, joining_command
from rostra.cli.commands.cluster_rows import Quorum, nodes_there, partition_row, shown_rows, summary
from rostra.errors import UnknownPartition, UnknownTopic
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition
from rostra.model.ids import NodeId, text

ONE, TWO, THREE = NodeId(0x1A), NodeId(0x1B), NodeId(0x2 << 56)


def node(identity: NodeId, port: int, *, there: bool = True, host: str = "127.0.0.1") -> NodeState:
    return NodeState(identity, f"{host}:{port}", f"{host}:{port + 1}", there, True, False, 1, 1)


def placed(topic: str, partition: int, owner: int = ONE, third: int = 40) -> PlacedPartition:
    copies = (CopyState(ONE, 50, True), CopyState(TWO, 50, True), CopyState(THREE, third, True))
    return PlacedPartition(topic, partition, NodeId(owner), 3, 0, 50, 50, copies)


def state(*partitions: PlacedPartition, there: tuple[bool, bool, bool] = (True, True, True)) -> ClusterState:
    nodes = tuple(node(one, 7400 + 10 * at, there=there[at]) for at, one in enumerate((ONE, TWO, THREE)))
    return ClusterState("raft", nodes, partitions, (ONE,))


def test_a_copy_lags_by_what_its_owner_has_beyond_it() -> None:
    row = partition_row(placed("t", 0), nodes_there(state()))
    copies = row["copies"]
    assert isinstance(copies, list)
    assert [copy["lag"] for copy in copies if isinstance(copy, dict)] == [0, 0, 10]
    unknown = partition_row(placed("t", 0, third=-1), nodes_there(state()))["copies"]
    assert isinstance(unknown, list)
    assert [copy["lag"] for copy in unknown if isinstance(copy, dict)] == [0, 0, None]


def test_the_owner_stands_in_the_line_of_its_partition_and_who_is_away_is_called_so() -> None:
    there = nodes_there(state(there=(True, True, False)))
    first, second, third = shown_rows(placed("t", 1, owner=TWO), there)
    assert (first["partition"], first["node"], first["as"], first["quorum"]) == ("t/1", text(TWO), "owner", "2/3")
    assert (second["as"], third["as"]) == ("copy", "away")
    assert "partition" not in second


@pytest.mark.parametrize(
    ("there", "owner", "told"),
    [
        ((True, True, True), ONE, "3/3"),
        ((False, True, True), ONE, "2/3 unled"),
        ((True, True, True), 0, "3/3 unled"),
        ((True, False, False), ONE, "1/3 lost"),
    ],
)
def test_the_quorum_counts_who_is_there(there: tuple[bool, bool, bool], owner: int, told: str) -> None:
    assert str(Quorum(placed("t", 0, owner), nodes_there(state(there=there)))) == told


def test_the_summary_names_who_is_away_and_what_has_no_quorum() -> None:
    whole = state(placed("", 0), placed("t", 0, owner=TWO), there=(True, False, False))
    members, leaders, quorum = summary(whole)
    assert members == f"raft, 3 members: 1 there, 2 away ({text(TWO)}, {text(THREE)})"
    assert leaders == f"leaders: {text(ONE)} 1"
    assert quorum == "2 without a quorum"


def test_a_member_is_found_by_id_address_or_a_beginning_that_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    whole = state()
    for written in (text(THREE), "02", "127.0.0.1:7420", "127.0.0.1:7421"):
        assert find_member(whole, written).node == THREE
    with pytest.raises(typer.BadParameter, match="may be any of"):
        find_member(whole, "00")
    with pytest.raises(typer.Exit) as ended:
        find_member(whole, "ff")
    assert ended.value.exit_code == 4
    assert "no member 'ff'" in capsys.readouterr().err


def test_a_topic_is_meant_before_a_partition_is() -> None:
    whole = state(placed("", 0), placed("a", 0), placed("a", 1), placed("a/1", 0))
    assert [(one.topic, one.partition) for one in find_partitions(whole, "a/1")] == [("a/1", 0)]
    assert [(one.topic, one.partition) for one in find_partitions(whole, "a/0")] == [("a", 0)]
    assert [(one.topic, one.partition) for one in find_partitions(whole, "a")] == [("a", 0), ("a", 1)]
    with pytest.raises(UnknownPartition):
        find_partitions(whole, "a/2")
    for written in ("b", "b/0", "/0", "", "a/x"):
        with pytest.raises(UnknownTopic):
            find_partitions(whole, written)


def test_the_command_to_join_names_the_members_that_are_there() -> None:
    command = joining_command(state(there=(True, False, True)))
    assert command == (
        "rostra serve --data ./rostra-data-4 --listen 127.0.0.1:7430 --join 127.0.0.1:7401 --join 127.0.0.1:7421"
    )
    far = ClusterState("raft", (node(ONE, 7400, host="mars"),), ())
    assert "--advertise THIS-HOST:7400" in joining_command(far)
