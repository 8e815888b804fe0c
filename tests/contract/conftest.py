"""Every promise over every fabric that makes it, simulated under many seeds and on real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rostra.fabric.catalog import FABRICS
from tests.contract.facade import Cluster
from tests.contract.promises import nodes_of, promise_of
from tests.contract.simulated import SimulatedCluster
from tests.contract.sockets import SocketCluster

SEEDS = range(10)
SOAK_SEEDS = range(10, 150)


class Setting(msgspec.Struct, frozen=True):
    """One cluster to judge; without a seed it is on sockets."""

    fabric: str
    seed: int | None = None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" not in metafunc.fixturenames:
        return
    promise = promise_of(metafunc.function)
    assert promise is not None, f"{metafunc.function.__name__} does not say which promise it proves"
    chosen = []
    for kind in promise.fabrics():
        chosen += [pytest.param(Setting(kind.name, seed), id=f"{kind.name}-seed{seed}") for seed in SEEDS]
        chosen.append(pytest.param(Setting(kind.name), id=f"{kind.name}-sockets"))
        if os.environ.get("SOAK"):
            chosen += [
                pytest.param(Setting(kind.name, seed), id=f"{kind.name}-seed{seed}", marks=pytest.mark.soak)
                for seed in SOAK_SEEDS
            ]
    metafunc.parametrize("cluster", chosen, indirect=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    setting: Setting = request.param
    kind = FABRICS[setting.fabric]
    nodes = nodes_of(kind.guarantees)
    if setting.seed is not None:
        simulated = SimulatedCluster(kind, nodes, setting.seed)
        yield simulated
        assert not simulated.judge()
        return
    real = SocketCluster(kind, nodes, tmp_path)
    try:
        yield real
    finally:
        real.close()
