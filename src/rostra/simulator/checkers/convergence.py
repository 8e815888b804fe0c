"""After healing every call has its reply, and every subscription reaches the end of its partitions."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found = [f"not converged: {what}" for what in history.unsettled]
    for final in history.final.values():
        if not final.complete:
            found.append(f"the final reader of {final.name}/{final.partition} got {len(final.stored)} records only")
    for subscription in history.subscriptions:
        if subscription.ended is not None or subscription.unsubscribing or not subscription.established:
            continue
        for key, feed in subscription.feeds.items():
            is_at_end = history.final.get(key)
            if is_at_end is None or is_at_end.damaged_at is not None:
                continue
            last = max((one.offset for one in is_at_end.stored if one.shown), default=-1)
            if feed.position <= last:
                found.append(
                    f"{subscription.name} reached {feed.position} of {is_at_end.name}/{key[1]}, end {last + 1}"
                )
    return found
