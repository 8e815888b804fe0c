"""Where a node under test keeps its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def node_directory(chosen: str | Path | None) -> Iterator[Path]:
    """The one that was named, which stays; or one that goes away at the end."""
    if chosen is not None:
        Path(chosen).mkdir(parents=True, exist_ok=True)
        yield Path(chosen)
        return
    with TemporaryDirectory(prefix="rostra-") as made:
        yield Path(made)
