"""What the documents point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.conventions import ROOT

DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md") for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SOURCE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")


def links_of(document: Path) -> list[str]:
    return LINK.findall(re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    inside = [link for link in links_of(document) if "://" not in link and not link.startswith(("#", "mailto:"))]
    dead = [link for link in inside if not (document.parent / link.partition("#")[0]).exists()]
    assert dead == []


def test_a_link_is_recognised() -> None:
    assert "docs/formats/batch.md" in links_of(ROOT / "ARCHITECTURE.md")


@pytest.mark.parametrize(
    "document", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md", "docs/adding-a-fabric.md"]
)
def test_every_file_that_a_guide_names_is_there(document: str) -> None:
    named = SOURCE.findall((ROOT / document).read_text(encoding="utf-8"))
    assert len(named) > 3
    homes = (ROOT / "src" / "rostra", ROOT / "src", ROOT)
    assert [name for name in named if not any((home / name).exists() for home in homes)] == []
