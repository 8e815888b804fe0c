"""docs/fabrics/raft.md agrees with the code."""

from __future__ import annotations

from pathlib import Path

from rostra.fabric.cluster import messages as cluster
from rostra.fabric.consensus import messages as consensus
from rostra.fabric.consensus.roles import diagram
from rostra.fabric.links import messages as links
from rostra.fabric.links.messages import PeerMessage
from rostra.fabric.raft import messages
from rostra.fabric.raft.messages import PEER_KINDS
from rostra.fabric.replication import messages as replication
from rostra.safeguards import (
    OF_AN_OVERLAY,
    OF_DERIVED_STATE,
    OF_FLOOD,
    OF_GROUPS,
    OF_ONE_NODE,
    OF_TOPIC_METADATA,
    Safeguard,
)

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "fabrics" / "raft.md").read_text(encoding="utf-8")


def test_the_diagram_of_roles_is_made_from_the_table() -> None:
    assert f"```mermaid\n{diagram()}```" in PAGE


def test_every_module_is_named() -> None:
    package = ROOT / "src" / "rostra" / "fabric" / "raft"
    unnamed = [path.name for path in package.rglob("*.py") if f"`{path.relative_to(package)}`" not in PAGE]
    assert sorted(set(unnamed)) == ["__init__.py", "settings.py"]


def test_every_safeguard_of_this_fabric_is_named() -> None:
    of_others = {*OF_ONE_NODE, *OF_DERIVED_STATE, *OF_TOPIC_METADATA, *OF_AN_OVERLAY, *OF_GROUPS, *OF_FLOOD}
    assert all(f"`{safeguard}`" in PAGE for safeguard in Safeguard if safeguard not in of_others)


def test_every_message_has_a_kind_of_its_own_above_the_clients() -> None:
    assert len(PEER_KINDS) >= 16 and min(PEER_KINDS) >= 128
    assert all(issubclass(kind, PeerMessage) and number == kind.kind for number, kind in PEER_KINDS.items())
    modules = (messages, cluster, consensus, replication, links)
    listed = {kind for module in modules for kind in vars(module).values() if _has_kind(kind)}
    assert listed == {replication.InstallSnapshot, *PEER_KINDS.values()}, "none is forgotten, no two share a number"


def _has_kind(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, PeerMessage) and kind.kind > 0
