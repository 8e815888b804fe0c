"""docs/fabrics/flood.md agrees with the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rostra.fabric.flood import messages
from rostra.fabric.flood.messages import PEER_KINDS, FloodMessageBase
from rostra.fabric.raft.messages import PEER_KINDS as KINDS_OF_RAFT
from rostra.safeguards import OF_FLOOD

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "fabrics" / "flood.md").read_text(encoding="utf-8")


def test_every_module_is_named() -> None:
    package = ROOT / "src" / "rostra" / "fabric" / "flood"
    unnamed = [path.name for path in package.rglob("*.py") if f"`{path.relative_to(package)}`" not in PAGE]
    assert sorted(unnamed) == ["__init__.py", "settings.py"]


def test_every_safeguard_of_this_fabric_is_named() -> None:
    assert all(f"`{safeguard}`" in PAGE for safeguard in OF_FLOOD)


def test_every_message_has_a_kind_of_its_own_above_the_clients_and_apart_from_other_fabrics() -> None:
    assert len(PEER_KINDS) >= 13 and min(PEER_KINDS) >= 128
    assert not PEER_KINDS.keys() & KINDS_OF_RAFT.keys()
    listed = {kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, FloodMessageBase)}
    assert listed == {FloodMessageBase, *PEER_KINDS.values()}, "none is forgotten, no two share a number"


@pytest.mark.requirement("FL-27:stated")
def test_what_a_subscriber_may_see_twice_is_stated_among_what_is_not_promised() -> None:
    section = PAGE.partition("## What it does not promise")[2].partition("\n## ")[0]
    (repeats,) = [item for item in section.split("\n- ") if item.startswith("**Repeats.**")]
    assert all(word in repeats for word in ("producer", "subscription", "dies", "stored position"))
