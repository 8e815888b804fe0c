"""A subscription gets rising offsets; a gap holds only control, suppressed, expired or compacted records.

Each replica compacts on its own, so a subscriber may miss a record that another replica still has.
"""

from __future__ import annotations

from collections.abc import Callable

from rostra.simulator.history import DeliveredPartition, FinalPartition, History, SubscriptionHistory


def check(history: History) -> list[str]:
    found: list[str] = []
    for subscription in history.subscriptions:
        for key, feed in subscription.feeds.items():
            final = history.final.get(key)
            damaged_at = history.damage_of(final) if final is not None else None
            found += _check_feed(history, subscription, feed, final, damaged_at)
    return found


def _check_feed(
    history: History,
    subscription: SubscriptionHistory,
    feed: DeliveredPartition,
    final: FinalPartition | None,
    damaged_at: int | None,
) -> list[str]:
    found: list[str] = []
    stored = final.stored if final is not None else []
    # A record sent again to another node is delivered once, from the partition that has it first.
    others = (other for other in subscription.feeds.values() if history.per_origin and other is not feed)
    elsewhere = {got.value for other in others for got in other.records}
    values = {one.offset: one.value for one in stored if one.shown and one.value not in elsewhere}
    first = final.first if final is not None else 0
    where = f"{subscription.name} on {subscription.topic}/{feed.partition}"

    def skipped(begin: int, end: int) -> list[int]:
        there = [offset for offset in range(max(begin, first), end) if offset in values]
        return [offset for offset in there if final and not history.is_outdated(final, values[offset], offset)]

    before: int | None = None
    for got in feed.records:
        if before is not None and got.offset <= before:
            found.append(f"{where} got offset {got.offset} behind {before}")
        elif before is not None and got.offset > before + 1:
            end = got.offset if damaged_at is None else min(got.offset, damaged_at)
            if missing := skipped(before + 1, end):
                found.append(f"{where} skipped {missing[:5]} between {before} and {got.offset}")
        before = got.offset
    if feed.records and subscription.start == "offset":
        found += _check_start(where, feed.records[0].offset, subscription.value, skipped)
    if feed.records and subscription.start == "earliest" and final is not None and not _expires(final):
        found += _check_start(where, feed.records[0].offset, 0, skipped)
    return found


def _check_start(where: str, began: int, asked: int, skipped: Callable[[int, int], list[int]]) -> list[str]:
    if began < asked:
        return [f"{where} asked for {asked} and got {began}"]
    missing = skipped(asked, began)
    return [f"{where} asked for {asked} and began at {began}, skipping {missing[:5]}"] if missing else []


def _expires(final: FinalPartition) -> bool:
    return final.settings.retention_ms > 0 or final.settings.retention_bytes > 0
