"""`rostra.testing` runs nodes of any fabric."""

from __future__ import annotations

import pytest

import rostra.testing
from rostra.fabric.registry import FABRICS


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_node_of_any_fabric_runs_inside_a_test(fabric: str) -> None:
    with rostra.testing.node(fabric=fabric) as node, node.client() as client:
        client.publish("t", b"x")
        with client.subscribe("t", start="earliest") as records:
            assert next(records).value == b"x"
        assert client.describe_cluster().fabric == fabric
