"""A named subscription: what it keeps as acknowledged comes to nobody again, and every record came to somebody."""

from __future__ import annotations

from rostra.simulator.history import FinalPartition, History


def check_kept(history: History) -> list[str]:
    return [again for named in history.named.values() for again in named.again]


def check_handled(history: History) -> list[str]:
    found: list[str] = []
    for named in history.named.values():
        for final in history.final.values():
            if final.name not in named.topics or _excused(history, final):
                continue
            missed = [
                stored.offset
                for stored in final.stored
                if not stored.control and (final.topic, final.partition, stored.offset) not in named.dealt_with
            ]
            if missed:
                found.append(f"nobody of {named.name} dealt with {final.name}/{final.partition}: {missed[:5]}")
    return found


def _excused(history: History, final: FinalPartition) -> bool:
    """Damage ends a subscription; and what was left undone when time was over is told by another promise."""
    return final.damaged_at is not None or (final.topic, final.partition) in history.flipped or bool(history.unsettled)
