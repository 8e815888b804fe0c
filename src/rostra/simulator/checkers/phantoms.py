"""Every delivered or stored record was sent, and to that topic."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found: list[str] = []
    for subscription in history.subscriptions:
        for feed in subscription.feeds.values():
            for got in feed.records:
                sent = history.sent.get(got.value) if got.value is not None else None
                if sent is None:
                    found.append(f"{subscription.name} got {got.value!r}, which was never sent")
                elif sent.topic != subscription.topic:
                    found.append(f"{subscription.name} got {got.value!r}, which was sent to {sent.topic}")
    for final in history.final.values():
        for stored in final.stored:
            if stored.control:
                continue
            sent = history.sent.get(stored.value) if stored.value is not None else None
            if sent is None:
                found.append(
                    f"{final.name}/{final.partition}:{stored.offset} holds {stored.value!r}, which was never sent"
                )
            elif sent.topic != final.name:
                found.append(f"{final.name}/{final.partition}:{stored.offset} holds {stored.value!r} of {sent.topic}")
    return found
