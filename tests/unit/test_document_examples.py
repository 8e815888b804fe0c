"""Every Python example in the documentation passes `mypy --strict`."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_python_example_passes_a_strict_type_check(tmp_path: Path) -> None:
    examples = []
    for document in DOCUMENTS:
        found = re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        for number, example in enumerate(found):
            path = tmp_path / f"{document.stem.replace('-', '_').lower()}_{number}.py"
            path.write_text(example, encoding="utf-8")
            examples.append(str(path))
    assert len(examples) >= 8
    config, cache = str(ROOT / "pyproject.toml"), str(ROOT / ".mypy_cache")
    told, complaint, status = api.run(["--strict", "--config-file", config, "--cache-dir", cache, *examples])
    assert status == 0, told + complaint
