"""A node on a full disk: a small tmpfs, which needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rostra import blocking
from rostra.errors import NotAcknowledged
from rostra.fabric.registry import FABRICS
from rostra.testing.process import ProcessNode
from tests.processes.client_kinds import CLIENT_KINDS, connected
from tests.processes.command_line import CommandLine, wait_until
from tests.processes.test_operator import get

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

RECORD = b"x" * 300_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    """The rest of the disk, to the last byte."""
    with (place / "filler").open("wb", buffering=0) as filler:
        for size in (4096, 1):
            try:
                while True:
                    filler.write(b"z" * size)
            except OSError:
                pass


@pytest.mark.parametrize("fabric", sorted(FABRICS))
def test_a_full_node_says_so_starts_again_serves_reads_and_lets_retention_be_shortened(
    fabric: str, small: Path, tmp_path: Path
) -> None:
    node = ProcessNode(small, metrics="127.0.0.1:0", arguments=("--fabric", fabric))
    # Its log is not to be lost with the space.
    node.log_file = tmp_path / "node.log"
    stored = 0
    try:
        node.start()
        with blocking.connect(node.address, delivery_timeout_ms=5_000) as client:
            client.create_topic("t", segment_bytes=1 << 20)
            with pytest.raises(NotAcknowledged, match="the disk of the node is full"):
                while True:
                    client.publish("t", RECORD)
                    stored += 1
        assert stored > 10
        assert get(node, "/ready")[0] == 503
        status, said = get(node, "/health")
        assert (status, "the disk of the node is full" in said) == (200, True)
        assert node.metrics().value("rostra_disk_full") == 1
        assert [line.level for line in node.log_lines() if line.event == "disk full"] == ["error"]
        fill(small)
        node.sigkill()
        node.start()
        assert get(node, "/ready")[0] == 503
        cli = CommandLine(tmp_path, node.address)
        read = cli.run("sub", "t", "--from", "earliest", "--count", str(stored), "--raw")
        assert (read.code, len(read.out)) == (0, stored * (len(RECORD) + 1))
        altered = cli.run("topic", "alter", "t", "--retention-bytes", "2MiB")
        assert (altered.code, altered.err) == (0, "")
        wait_until(lambda: get(node, "/ready")[0] == 200, "retention to free space")
        assert cli.run("pub", "t", "again").code == 0
        wait_until(lambda: any(line.event == "disk has space again" for line in node.log_lines()), "the log line")
    finally:
        node.sigkill()


@pytest.mark.parametrize("fabric", sorted(FABRICS))
def test_a_publish_to_a_full_node_tells_what_it_waits_for(fabric: str, small: Path, tmp_path: Path) -> None:
    node = ProcessNode(small, arguments=("--fabric", fabric))
    node.log_file = tmp_path / "node.log"
    try:
        node.start()
        cli = CommandLine(tmp_path, node.address)
        cli.run("topic", "create", "t")
        fill(small)
        (tmp_path / "line").write_bytes(RECORD)
        with cli.start("pub", "t", "--file", "line") as running:
            assert running.stderr is not None
            # On a slow machine the first note may come before the node's first answer.
            notes = iter(running.stderr.readline, b"")
            full = b"is not acknowledged yet: the disk of the node is full"
            told = next((note for note in notes if full in note), b"")
            running.kill()
        assert told.startswith(b"note: t/"), told
    finally:
        node.sigkill()


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_records_do_not_use_the_space_that_is_kept_for_changes_of_settings(
    kind: str, small: Path, tmp_path: Path
) -> None:
    node = ProcessNode(small, metrics="127.0.0.1:0")
    node.log_file = tmp_path / "node.log"
    try:
        node.start()
        with connected(kind, node.address, delivery_timeout_ms=2_000) as client:
            client.publish("t", b"first")
            fill(small)
            # A change uses the reserve; from then on the node is full.
            client.create_topic("other")
            assert get(node, "/ready")[0] == 503
            for _ in range(2):
                with pytest.raises(NotAcknowledged, match="the disk of the node is full"):
                    client.publish("t", RECORD)
            client.alter_topic("t", retention_bytes=1 << 20)
        (small / "filler").unlink()
        with connected(kind, node.address) as client:
            client.publish("t", b"second")
        assert get(node, "/ready")[0] == 200
    finally:
        node.sigkill()
