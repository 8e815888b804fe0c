"""Consumer groups: no record below a committed position is redelivered, and every record is acknowledged."""

from __future__ import annotations

from rostra.simulator.history import History


def check_redelivery(history: History) -> list[str]:
    return [again for group in history.groups.values() for again in group.redelivered]


def check_coverage(history: History) -> list[str]:
    found: list[str] = []
    if history.unsettled or (history.flipped and not history.replicated):
        # Unfinished work is reported by the convergence checker; damage to the only replica may lose the group.
        return found
    there = {final.name for final in history.final.values()}
    for group in history.groups.values():
        if not there.issuperset(group.topics):
            # A subscription that includes a deleted topic is refused as a whole.
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
                # Each replica compacts on its own, so the one that the member read may lack it.
                and not history.is_outdated(final, stored.value, stored.offset)
            ]
            if missed:
                found.append(f"no member of {group.name} acknowledged {final.name}/{final.partition}: {missed[:5]}")
    return found
