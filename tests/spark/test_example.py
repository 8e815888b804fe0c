"""The example that the manual tells of, run as a user runs it: a process with a Spark of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.api import spark_topics
from rostra.testing.embedded import EmbeddedNode
from tests.processes.command_line import environment
from tools.conventions import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 400.0


def test_the_example_counts_and_shows_windows(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark_windows.py")],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "Row(topic='clicks', count=10000)" in ran.stdout
    assert "window|count|" in ran.stdout


def test_the_example_of_the_reference_reads_and_counts(
    spark: SparkSession, rostra_node: EmbeddedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    with rostra_node.client() as client:
        client.publish("orders", b"milk")
        client.publish("orders", b"bread")
    spark_topics.watching(rostra_node.address)
    assert capsys.readouterr().out.split() == ["2", "2"]
