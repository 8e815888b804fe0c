"""A record delivered at an offset is the one that every other subscriber and final reader finds there."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found: list[str] = []
    shown: dict[tuple[int, int, int], tuple[bytes | None, str]] = {}
    for subscription in history.subscriptions:
        for (topic, partition), feed in subscription.feeds.items():
            for got in feed.records:
                key = topic, partition, got.offset
                value, whose = shown.setdefault(key, (got.value, subscription.name))
                if value != got.value:
                    found.append(
                        f"{subscription.topic}/{partition}:{got.offset} was {value!r} for {whose},"
                        f" {got.value!r} for {subscription.name}"
                    )
    for (topic, partition), final in history.final.items():
        stored = {one.offset: one.value for one in final.stored}
        damaged_at = history.damage_of(final)
        end = final.commit if damaged_at is None else min(final.commit, damaged_at)
        for (of, index, offset), (value, whose) in shown.items():
            if (of, index) != (topic, partition) or offset < final.first:
                continue
            if offset >= end:
                if damaged_at is None:
                    found.append(f"{final.name}/{partition}:{offset} was delivered to {whose}, the log ends at {end}")
            elif stored.get(offset) != value and (offset in stored or not history.is_outdated(final, value, offset)):
                found.append(
                    f"{final.name}/{partition}:{offset} was {value!r} for {whose}, is {stored.get(offset)!r} now"
                )
    return found
