"""No queue grew beyond its bound."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    return [
        f"{queue} reached {size}, its bound is {bound}"
        for queue, (size, bound) in history.queue_sizes.items()
        if size > bound
    ]
