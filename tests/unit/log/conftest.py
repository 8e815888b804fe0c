from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rostra.log.files import Files
from rostra.runtime.disk.files import DiskFiles
from tests.unit.log.batches import faulty


@pytest.fixture(params=["real", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    """Each test that takes this runs on both sides of the port."""
    if request.param == "simulated":
        yield faulty()
        return
    real = DiskFiles(tmp_path / "store")
    yield real
    real.close()
