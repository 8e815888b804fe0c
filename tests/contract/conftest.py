"""Runs every contract test for each fabric with the guarantee, simulated under many seeds and on real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rostra.fabric.registry import FABRICS, FabricKind
from tests.contract.facade import Cluster
from tests.contract.guarantees import FIVE, SINGLE, THREE, selection_of
from tests.contract.simulated import SimulatedCluster
from tests.contract.sockets import SocketCluster

SEEDS = {SINGLE: range(10), THREE: range(10), FIVE: range(3)}
"""By the size of the cluster. Five nodes cost more than twice as much as three, so they get fewer."""
SOAK_SEEDS = range(10, 150)


class ClusterSetup(msgspec.Struct, frozen=True):
    """One cluster to test; without a seed it is on sockets."""

    fabric: FabricKind
    nodes: int
    seed: int | None = None

    @property
    def name(self) -> str:
        driver = "sockets" if self.seed is None else f"seed{self.seed}"
        return f"{self.fabric.name}-{self.nodes}-{driver}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" not in metafunc.fixturenames:
        return
    selection = selection_of(metafunc.function)
    assert selection is not None, f"{metafunc.function.__name__} does not state what it proves"
    chosen = []
    for kind in selection.fabrics():
        for nodes in selection.sizes:
            setups = [ClusterSetup(kind, nodes, seed) for seed in (*SEEDS[nodes], None)]
            chosen += [pytest.param(setup, id=setup.name) for setup in setups]
            if os.environ.get("SOAK"):
                setups = [ClusterSetup(kind, nodes, seed) for seed in SOAK_SEEDS]
                chosen += [pytest.param(setup, id=setup.name, marks=pytest.mark.soak) for setup in setups]
    metafunc.parametrize("cluster", chosen, indirect=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    setup: ClusterSetup = request.param
    kind = setup.fabric
    # A fabric of the tests is registered while its test runs.
    monkeypatch.setitem(FABRICS, kind.name, kind)
    if setup.seed is not None:
        simulated = SimulatedCluster(kind, setup.nodes, setup.seed)
        yield simulated
        assert not simulated.find_violations()
        return
    real = SocketCluster(kind, setup.nodes, tmp_path)
    try:
        yield real
    finally:
        real.close()
