"""A named subscription: what it keeps as acknowledged comes to nobody again, and every record came to somebody."""

from __future__ import annotations

from rostra.simulator.history import History


def check_redelivery(history: History) -> list[str]:
    return [again for group in history.groups.values() for again in group.redelivered]


def check_coverage(history: History) -> list[str]:
    found: list[str] = []
    if history.unsettled or (history.flipped and not history.replicated):
        # What was left undone is told by another promise; damage to the only copy ends a subscription, or its name.
        return found
    there = {final.name for final in history.final.values()}
    for group in history.groups.values():
        if not there.issuperset(group.topics):
            # Whoever wants a topic that is gone is refused, also what it would get of the others.
            continue
        for final in history.final.values():
            if final.name not in group.topics:
                continue
            missed = [
                stored.offset
                for stored in final.stored
                if not (stored.control or stored.owner_flags)
                and (final.topic, final.partition, stored.offset) not in group.acknowledged
                and not group.has_skipped(final.name, final.partition, stored.offset)
                # Compacted where it was read, it may be there at a copy that was not.
                and not history.is_outdated(final, stored.value, stored.offset)
            ]
            if missed:
                found.append(f"nobody of {group.name} dealt with {final.name}/{final.partition}: {missed[:5]}")
    return found
