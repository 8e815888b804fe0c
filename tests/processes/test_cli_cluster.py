"""`rostra cluster` against three real nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import rostra.testing
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from rostra.testing.process import ProcessNode
from tests.processes.command_line import CommandLine, Completed

NOWHERE = {"ROSTRA_NODE": "127.0.0.1:1", "ROSTRA_CONNECT_TIMEOUT_MS": "200"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster[EmbeddedNode]]:
    with rostra.testing.cluster(3, directory=tmp_path / "cluster", fsync="never") as started:
        with started[0].client() as client:
            client.create_topic("orders/eu", partitions=2)
            for partition in range(2):
                client.publish("orders/eu", b"one", partition=partition)
        yield started


@pytest.fixture
def cli(cluster: Cluster[EmbeddedNode], tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, cluster[0].address)


@pytest.mark.requirement("CM-17:members", "CM-17:placement", "CM-17:terms-and-logs")
def test_status_has_a_row_for_every_partition_with_owner_term_commit_and_replicas(
    cli: CommandLine, cluster: Cluster[EmbeddedNode]
) -> None:
    members = {row["id"]: row for row in cli.run("cluster", "members").rows}
    assert {row["address"] for row in members.values()} == {node.address for node in cluster}
    assert all((row["votes"], row["leaving"]) == (True, False) for row in members.values())
    cluster.wait_until(
        lambda: all(row["alive"] for row in cli.run("cluster", "members").rows), "every member to be seen as up"
    )
    shown: list[Completed] = []

    def caught_up() -> bool:
        # Where a node does not run for a while, there is an election, and a member is down for a moment.
        shown[:] = [cli.run("cluster", "status", "orders/eu")]
        return "3 members: 3 up, 0 down" in shown[0].err and _lags(shown[0]) == {0}

    cluster.wait_until(caught_up, "every replica to catch up")
    (ran,) = shown
    assert ran.code == 0
    assert [(row["partition"], row["quorum"]) for row in ran.rows] == [(0, True), (1, True)]
    for row in ran.rows:
        assert row["owner"] in members
        # One record, and one entry of each leader that was elected.
        assert row["commit"] == row["end"]
        assert 2 <= int(str(row["end"])) <= 1 + int(str(row["epoch"]))
        replicas = row["replicas"]
        assert isinstance(replicas, list)
        assert {copy["node"] for copy in replicas} == members.keys()
    assert [row["topic"] for row in cli.run("cluster", "status").rows] == ["_metadata", "orders/eu", "orders/eu"]


def _lags(status: Completed) -> set[int | None]:
    return {copy["lag"] for row in status.rows for copy in row["replicas"]}  # type: ignore[attr-defined]


@pytest.mark.requirement("CM-17:forms", "CM-17:members")
def test_a_member_that_is_down_is_shown_so_and_counts_against_the_quorum(
    cli: CommandLine, cluster: Cluster[EmbeddedNode]
) -> None:
    cluster[2].kill()
    down = {cluster[2].address}
    cluster.wait_until(
        lambda: {row["address"] for row in cli.run("cluster", "members").rows if not row["alive"]} == down,
        "the member to be seen as down",
    )
    cluster[1].kill()
    cluster.wait_until(
        lambda: {row["quorum"] for row in cli.run("cluster", "status").rows} == {False}, "the quorum to be lost"
    )
    table = cli.run("cluster", "status", "-o", "table")
    assert "1/3 lost" in table.out
    assert "3 members: 1 up, 2 down" in table.out


def test_a_partition_is_transferred_to_the_member_named_by_its_address(
    cli: CommandLine, cluster: Cluster[EmbeddedNode]
) -> None:
    members = {row["address"]: row["id"] for row in cli.run("cluster", "members").rows}
    for node in cluster:

        def transferred(node: EmbeddedNode = node) -> bool:
            moved = cli.run("cluster", "transfer", "orders/eu/1", node.address)
            assert moved.code == 0, moved.err
            assert [(row["topic"], row["partition"], row["owner"]) for row in moved.rows] == [
                ("orders/eu", 1, members[node.address])
            ]
            # On a slow machine an election may follow, which another node wins.
            return cluster.owner("orders/eu", 1) is node

        cluster.wait_until(transferred, f"{node.address} to own the partition")

    def all_transferred() -> bool:
        whole = cli.run("cluster", "transfer", "orders/eu", cluster[1].address)
        # On a slow machine the member may not catch up in time; an operator then repeats the command.
        assert whole.code == 0 or "try again" in whole.err, whole.err
        return [row["owner"] for row in whole.rows] == [members[cluster[1].address]] * 2

    cluster.wait_until(all_transferred, "every partition to be transferred")


def test_the_printed_command_adds_a_node_and_remove_waits_for_the_removal(
    cli: CommandLine, cluster: Cluster[EmbeddedNode], tmp_path: Path
) -> None:
    (row,) = cli.run("cluster", "add").rows
    words = shlex.split(str(row["command"]))
    assert words[:2] == ["rostra", "serve"]
    joins = tuple(words[at + 1] for at, word in enumerate(words) if word == "--join")
    assert set(joins) == {node.peer_address for node in cluster}
    (tmp_path / "fourth").mkdir()
    fourth = ProcessNode(tmp_path / "fourth", join=joins)
    try:
        fourth.start()
        cluster.await_members(4)
        found = {row["address"]: str(row["id"]) for row in cli.run("cluster", "members").rows}
        gone = cli.run("cluster", "remove", found[fourth.address][:12])
        assert (gone.code, gone.rows[0]["gone"]) == (0, True), gone.err
        assert "waiting until its replicas have moved" in gone.err
        left = {row["address"] for row in cli.run("cluster", "members").rows}
        assert left == {node.address for node in cluster}
    finally:
        fourth.sigkill()


def test_the_node_that_is_asked_can_be_removed_itself(cli: CommandLine, cluster: Cluster[EmbeddedNode]) -> None:
    gone = cli.run("cluster", "remove", cluster[0].address)
    assert (gone.code, gone.rows[0]["gone"]) == (0, True), gone.err
    others = CommandLine(cli.directory, cluster[1].address)
    assert len(others.run("cluster", "members").rows) == 2


def test_an_unknown_name_is_exit_code_4_and_an_unreachable_node_3(cli: CommandLine) -> None:
    for arguments in (
        ["remove", "nobody"],
        ["transfer", "orders/eu/9", "127.0.0.1:1"],
        ["transfer", "nothing", "127.0.0.1:1"],
        ["transfer", "orders/eu/0", "127.0.0.1:1"],
        ["status", "nothing"],
    ):
        ran = cli.run("cluster", *arguments)
        assert ran.code == 4, (arguments, ran.err)
        assert "error: " in ran.err
        assert "hint: " in ran.err
    assert cli.run("cluster", "status", variables=NOWHERE).code == 3
