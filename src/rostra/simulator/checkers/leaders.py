"""At most one node acts as leader of a partition in a term."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    return [
        f"{partition} had the leaders {', '.join(map(str, nodes))} in term {term}"
        for (partition, term), nodes in history.leaders.items()
        if len(nodes) > 1
    ]
