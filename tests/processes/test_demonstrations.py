"""Each demonstration is one command that exits with 0 only if all of its steps succeeded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rostra.demo.raft import DEMONSTRATIONS
from tests.processes.command_line import CommandLine

LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3}  node (\d)  ([a-z]+) +(debug|info|warning|error) +(.*)")


def run_demo(place: Path, name: str) -> str:
    ran = CommandLine(place).run("demo", name)
    assert ran.code == 0, ran.out + ran.err
    return ran.out


def logged(out: str) -> list[tuple[int, str, str]]:
    """Node, role and text of what the nodes logged."""
    return [(int(node), role, text) for node, role, _, text in LINE.findall(out)]


@pytest.mark.requirement("RF-13")
def test_a_single_node_elects_itself_and_delivers_what_is_published(tmp_path: Path) -> None:
    out = run_demo(tmp_path, "raft-single")
    assert (1, "leader", "leads _metadata, term 1") in logged(out)
    assert "mia received 'hello'" in out


@pytest.mark.requirement("RF-14", "RF-9")
def test_after_an_unsubscribe_at_one_node_nothing_published_at_another_comes(tmp_path: Path) -> None:
    out = run_demo(tmp_path, "raft-subscribe")
    received, silent = out.index("mia received 'first'"), out.index("mia received nothing")
    assert received < out.index("mia has unsubscribed") < out.index("'second' is news/0") < silent
    assert "no node has sent a record to any subscriber since the unsubscribe" in out
    assert "noa received 'third'" in out


@pytest.mark.requirement("RF-15", "RF-8")
def test_subscribers_at_two_nodes_get_what_is_published_at_a_third(tmp_path: Path) -> None:
    out = run_demo(tmp_path, "raft-two-subscribers")
    assert "published at node 3: 'to both'" in out
    assert "mia received 'to both'" in out
    assert "noa received 'to both'" in out


@pytest.mark.requirement("RF-16")
def test_when_the_leader_is_killed_another_node_is_elected(tmp_path: Path) -> None:
    out = run_demo(tmp_path, "raft-failover")
    killed = int(re.findall(r"kill -9 of node (\d)", out)[0])
    leaders = [(node, text) for node, role, text in logged(out) if role == "leader" and text.startswith("leads news/0")]
    # On a slow machine there may be further elections, before the kill and after it.
    led = next(number for number, leader in enumerate(leaders) if leader[0] == killed)
    successor, line = next(leader for leader in leaders[led:] if leader[0] != killed)
    assert int(line.rsplit(" ", 1)[1]) > int(leaders[led][1].rsplit(" ", 1)[1])
    assert f"node {successor} leads news/0, in term" in out
    assert "mia received 'after'" in out


@pytest.mark.requirement("RF-17")
def test_a_node_joins_and_leaves_and_every_member_knows(tmp_path: Path) -> None:
    out = run_demo(tmp_path, "raft-membership")
    three, four, again = (
        out.index("each of 3 nodes knows 3 members"),
        out.index("each of 4 nodes knows 4 members"),
        out.rindex("each of 3 nodes knows 3 members"),
    )
    assert three < four < out.index("removing node 4") < again
    assert any(node == 4 and text == "this node was removed from its cluster" for node, _, text in logged(out))


@pytest.mark.requirement("RF-18", "RF-12")
def test_a_publish_at_a_node_that_joined_reaches_earlier_subscribers(tmp_path: Path) -> None:
    out = run_demo(tmp_path, "raft-joined-publish")
    assert out.index("mia subscribes") < out.index("starting node 4") < out.index("published at node 4")
    assert "mia received 'from the newcomer'" in out


@pytest.mark.requirement("RF-19", "RF-4")
def test_equal_timeouts_split_every_vote_and_different_ones_give_a_leader_that_heartbeats_keep(tmp_path: Path) -> None:
    out = run_demo(tmp_path, "raft-split-vote")
    before, _, after = out.partition("now node 2 waits longer than node 1")
    assert "leads" not in before
    assert before.count("asks for votes") >= 6
    assert after.count(" leads news/0") == 1
    assert after.count("heartbeat to node 2") >= 4


def test_all_demonstrations_are_listed(tmp_path: Path) -> None:
    rows = CommandLine(tmp_path).run("demo", "--list").rows
    assert [row["name"] for row in rows] == [one.name for one in DEMONSTRATIONS]
