"""Publishing with a strength and at a rate, from the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rostra.testing
from rostra import blocking
from rostra.testing.process import ProcessNode
from tests.processes.command_line import COMMAND, CommandLine, environment, wait_until


@pytest.fixture(scope="module")
def node() -> Iterator[ProcessNode]:
    with rostra.testing.process_node(fsync="never") as node:
        yield node


@pytest.fixture
def cli(node: ProcessNode, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, node.address)


def publishers(node: ProcessNode, topic: str) -> list[int]:
    with blocking.connect(node.address) as client:
        (partition,) = client.describe_topic(topic).partitions
    return [one.strength for one in partition.publishers]


def stored(node: ProcessNode, topic: str) -> bool:
    with blocking.connect(node.address) as client, client.subscribe(topic, start="earliest") as records:
        return bool(records.poll(timeout=0))


@pytest.mark.requirement("CM-3:ownership", "HR-17:exclusive")
def test_the_strongest_command_is_delivered_until_it_ends(node: ProcessNode, cli: CommandLine) -> None:
    (made,) = cli.run("topic", "create", "position", "--ownership", "exclusive", "--history-depth", "2").rows
    assert (made["ownership"], made["history_depth"]) == ("exclusive", 2)
    strong = subprocess.Popen(
        [*COMMAND, "pub", "position", "--strength", "5"],
        cwd=cli.directory,
        env=environment(cli.directory, cli.variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    with strong:
        assert strong.stdin is not None
        strong.stdin.write(b"from the strong one\n")
        strong.stdin.flush()
        wait_until(lambda: stored(node, "position"), "the strong one's line to be stored")
        assert cli.run("pub", "position", "from a weak one", "--strength", "1").code == 0
        (described,) = cli.run("topic", "describe", "position").rows
        (partition,) = msgspec.convert(described["partitions"], list[dict[str, Any]])
        assert [one["strength"] for one in partition["publishers"]] == [5]
        strong.stdin.close()
    assert strong.returncode == 0
    assert publishers(node, "position") == []
    cli.run("pub", "position", "from whoever is left", "and again")
    shown = cli.run("sub", "position", "--from", "earliest", "--count", "3")
    assert [row["value"] for row in shown.rows] == ["from the strong one", "from whoever is left", "and again"]
    last = cli.run("sub", "position", "--from", "last:10", "--count", "2")
    assert [row["value"] for row in last.rows] == ["from whoever is left", "and again"]


def test_records_are_published_no_faster_than_the_rate(cli: CommandLine) -> None:
    assert cli.run("pub", "paced", "x", "--repeat", "5", "--rate", "20").code == 0
    read = cli.run("sub", "paced", "--from", "earliest", "--count", "5")
    moments_us = [int(str(row["timestamp_us"])) for row in read.rows]
    # Four pauses of 50 ms; the clock that stamps them may be set meanwhile, hence a little less.
    assert moments_us[-1] - moments_us[0] > 130_000


def test_an_unknown_ownership_is_refused(cli: CommandLine) -> None:
    refused = cli.run("topic", "create", "t", "--ownership", "mine")
    assert refused.code != 0 and "ownership" in refused.err
