"""Runs every contract test for each fabric with the guarantee, simulated under many seeds and on real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rostra.fabric.registry import FABRICS
from tests.contract.facade import Cluster
from tests.contract.guarantees import ALONE, SEVERAL, guarantees_of
from tests.contract.simulated import SimulatedCluster
from tests.contract.sockets import SocketCluster

SEEDS = range(10)
SOAK_SEEDS = range(10, 150)


class ClusterSetup(msgspec.Struct, frozen=True):
    """One cluster to test; without a seed it is on sockets."""

    fabric: str
    nodes: int = SEVERAL
    seed: int | None = None

    @property
    def name(self) -> str:
        alone = "-alone" if self.nodes == ALONE else ""
        return f"{self.fabric}{alone}-sockets" if self.seed is None else f"{self.fabric}{alone}-seed{self.seed}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" not in metafunc.fixturenames:
        return
    required = guarantees_of(metafunc.function)
    assert required is not None, f"{metafunc.function.__name__} does not state which guarantees it proves"
    chosen = []
    for kind in required.fabrics():
        for nodes in required.sizes:
            setups = [ClusterSetup(kind.name, nodes, seed) for seed in (*SEEDS, None)]
            chosen += [pytest.param(setup, id=setup.name) for setup in setups]
            if os.environ.get("SOAK"):
                setups = [ClusterSetup(kind.name, nodes, seed) for seed in SOAK_SEEDS]
                chosen += [pytest.param(setup, id=setup.name, marks=pytest.mark.soak) for setup in setups]
    metafunc.parametrize("cluster", chosen, indirect=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    setup: ClusterSetup = request.param
    kind = FABRICS[setup.fabric]
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
