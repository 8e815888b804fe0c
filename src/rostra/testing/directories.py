"""The data directory of a node under test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def node_directory(chosen: str | Path | None) -> Iterator[Path]:
    """The chosen directory, which is kept; without one, a temporary directory."""
    if chosen is not None:
        Path(chosen).mkdir(parents=True, exist_ok=True)
        yield Path(chosen)
        return
    with TemporaryDirectory(prefix="rostra-") as temporary:
        yield Path(temporary)
