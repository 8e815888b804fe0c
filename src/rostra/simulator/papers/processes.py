"""Parts of an experiment in several processes, with results in the order of the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from rostra.simulator.papers.frame import Progress

Part = TypeVar("Part")
Measured = TypeVar("Measured")


def measure_parts(
    measure: Callable[[Part], Measured], parts: Sequence[Part], workers: int, progress: Progress
) -> list[Measured]:
    """Applies a module's function to every part."""
    results: dict[int, Measured] = {}
    if workers <= 1 or len(parts) == 1:
        for at, part in enumerate(parts):
            progress(at / len(parts), f"{part}")
            results[at] = measure(part)
    else:
        with ProcessPoolExecutor(min(workers, len(parts)), get_context("spawn")) as pool:
            begun = {pool.submit(measure, part): at for at, part in enumerate(parts)}
            for done in as_completed(begun):
                results[begun[done]] = done.result()
                progress(len(results) / len(parts), f"{parts[begun[done]]}")
    progress(1.0, "done")
    return [results[at] for at in range(len(parts))]
