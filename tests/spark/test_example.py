"""The example that the manual tells of, run as a user runs it: a process with a Spark of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes.command_line import environment
from tools.conventions import ROOT

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
