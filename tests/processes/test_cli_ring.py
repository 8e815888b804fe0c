"""`rostra` against a ring of three real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rostra.testing
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from tests.processes.command_line import CommandLine


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Cluster[EmbeddedNode]]:
    with rostra.testing.cluster(3, directory=tmp_path / "ring", fsync="never", fabric="flood") as started:
        yield started


@pytest.fixture
def cli(ring: Cluster[EmbeddedNode], tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, ring[0].address)


@pytest.mark.requirement("CM-17:members", "FL-1:ring")
def test_ring_shows_every_broker_with_its_neighbours_view_and_backlog(
    cli: CommandLine, ring: Cluster[EmbeddedNode]
) -> None:
    def closed() -> bool:
        rows = cli.run("cluster", "ring").rows
        return len(rows) == 3 and all(isinstance(row["members"], list) and len(row["members"]) == 3 for row in rows)

    ring.wait_until(closed, "the ring to close")
    assert cli.run("pub", "news", "one").code == 0
    ring.wait_until(lambda: all(row["backlog"] == 0 for row in cli.run("cluster", "ring").rows), "an empty backlog")
    rows = {str(row["broker"]): row for row in cli.run("cluster", "ring").rows}
    first = next(iter(rows))
    walked = [first]
    while (following := str(rows[walked[-1]]["next"])) != first:
        walked.append(following)
        assert rows[following]["previous"] == walked[-2]
    assert sorted(walked) == sorted(rows)


@pytest.mark.requirement("FL-2:topics", "FL-3:list")
def test_topic_list_shows_one_broker_and_with_all_every_broker(cli: CommandLine, ring: Cluster[EmbeddedNode]) -> None:
    for number, node in enumerate(ring):
        with node.client() as client:
            client.create_topic(f"of-{number}")
    assert [row["name"] for row in cli.run("topic", "list").rows] == ["of-0"]
    created = {(node.address, f"of-{number}") for number, node in enumerate(ring)}

    def all_listed() -> bool:
        # A broker that did not run for the failure timeout counts as down for a moment, and is then left out.
        listed = {(row["node"], row["name"]) for row in cli.run("topic", "list", "--all").rows}
        assert listed <= created
        return listed == created

    ring.wait_until(all_listed, "the topics of all brokers")
