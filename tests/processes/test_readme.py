"""The examples of the README and of the documents run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rostra.testing

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "publishers.md")
EXAMPLES = [
    example
    for document in DOCUMENTS
    for example in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
]
SCRIPTS = [example for example in EXAMPLES if "127.0.0.1:7400" in example]


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_an_example_runs_as_printed(number: int, tmp_path: Path) -> None:
    with rostra.testing.node() as node:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPTS[number].replace("127.0.0.1:7400", node.address)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_there_are_examples_for_asyncio_and_for_blocking_code() -> None:
    assert any("async with" in script for script in SCRIPTS)
    assert any("rostra.blocking" in script for script in SCRIPTS)
