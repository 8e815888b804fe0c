"""A subscription gets rising offsets; one that is missing was a control record, suppressed, or never a record."""

from __future__ import annotations

from rostra.simulator.history import Feed, FinalPartition, History, Subscription


def check(history: History) -> list[str]:
    found: list[str] = []
    for subscription in history.subscriptions:
        for place, feed in subscription.feeds.items():
            final = history.final.get(place)
            damaged_at = history.damage_of(final) if final is not None else None
            found += _check_feed(subscription, feed, final, damaged_at, origins=history.origins)
    return found


def _check_feed(
    subscription: Subscription, feed: Feed, final: FinalPartition | None, damaged_at: int | None, *, origins: bool
) -> list[str]:
    found: list[str] = []
    stored = final.stored if final is not None else []
    # What was sent again to another node is given to a subscription once, from whichever partition it comes first.
    others = (other for other in subscription.feeds.values() if origins and other is not feed)
    elsewhere = {got.value for other in others for got in other.got}
    values = {one.offset for one in stored if one.shown and one.value not in elsewhere}
    first = final.first if final is not None else 0
    where = f"{subscription.name} on {subscription.topic}/{feed.partition}"
    before: int | None = None
    for got in feed.got:
        if before is not None and got.offset <= before:
            found.append(f"{where} got offset {got.offset} behind {before}")
        elif before is not None and got.offset > before + 1 and final is not None:
            end = got.offset if damaged_at is None else min(got.offset, damaged_at)
            skipped = [offset for offset in range(max(before + 1, first), end) if offset in values]
            if skipped:
                found.append(f"{where} skipped {skipped[:5]} between {before} and {got.offset}")
        before = got.offset
    if feed.got and subscription.start == "offset":
        found += _check_start(where, feed.got[0].offset, subscription.value, first, values)
    if feed.got and subscription.start == "earliest" and final is not None and not _expires(final):
        found += _check_start(where, feed.got[0].offset, 0, first, values)
    return found


def _check_start(where: str, began: int, asked: int, first: int, values: set[int]) -> list[str]:
    if began < asked:
        return [f"{where} asked for {asked} and got {began}"]
    skipped = [offset for offset in range(max(asked, first), began) if offset in values]
    return [f"{where} asked for {asked} and began at {began}, skipping {skipped[:5]}"] if skipped else []


def _expires(final: FinalPartition) -> bool:
    return final.settings.retention_ms > 0 or final.settings.retention_bytes > 0
