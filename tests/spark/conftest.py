"""One Spark session for all tests: starting it takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rostra.testing
from rostra.broker.settings import BrokerSettings
from rostra.spark import session
from rostra.testing.embedded import EmbeddedNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOR_SHORT = {
    "spark.driver.memory": "2g",
    # What pays for itself in a long run does not in a short one.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
FOR_LONG = {"spark.driver.memory": "5g"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for Spark to start, and a busy machine takes its time for that."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        **(FOR_LONG if os.environ.get("SOAK") else FOR_SHORT),
    }
    made = session("rostra-tests", master="local[2]", conf=conf)
    yield made
    made.stop()


@pytest.fixture
def hasty_node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    """A node that applies retention all the time."""
    limits = BrokerSettings(retention_check_ms=20)
    with rostra.testing.node(directory=tmp_path / "rostra", fsync="never", limits=limits) as node:
        yield node
