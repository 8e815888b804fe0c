"""Many nodes of one fabric run in one process. `python -m rostra.simulator.scale` starts 200 and prints the cost."""

from __future__ import annotations

import pytest

from rostra.simulator.scale import start_nodes
from rostra.simulator.seed import WORLDS

NODES = 25


@pytest.mark.parametrize("fabric", WORLDS)
def test_many_nodes_of_one_fabric_start_in_one_process(fabric: str) -> None:
    cost = start_nodes(fabric, NODES)
    print(cost)
    assert cost.serving == NODES
