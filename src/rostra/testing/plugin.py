"""The pytest plugin: the fixtures `rostra_node` and `rostra_cluster`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rostra.testing

if TYPE_CHECKING:
    from rostra.testing.clusters import Cluster
    from rostra.testing.embedded import EmbeddedNode


@pytest.fixture
def rostra_node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    """A Rostra node for this test: real sockets and files, empty at the start."""
    # A test need not survive a power cut, and fsync would slow it down.
    with rostra.testing.node(directory=tmp_path / "rostra", fsync="never") as node:
        yield node


@pytest.fixture
def rostra_cluster(tmp_path: Path) -> Iterator[Cluster[EmbeddedNode]]:
    """Three Rostra nodes for this test that form one cluster."""
    with rostra.testing.cluster(3, directory=tmp_path / "rostra", fsync="never") as cluster:
        yield cluster
