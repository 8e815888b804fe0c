"""A subscription starts where it was requested to start."""

from __future__ import annotations

from rostra.simulator.history import FinalPartition, History


def check(history: History) -> list[str]:
    found: list[str] = []
    for subscription in history.subscriptions:
        for key, feed in subscription.feeds.items():
            if feed.start is None:
                continue
            following, commit = feed.start
            where = f"{subscription.name} on {subscription.topic}/{key[1]}"
            if subscription.start == "latest" and following != commit:
                found.append(f"{where} asked for the latest and began at {following}, the end was {commit}")
            if subscription.start == "offset" and following != subscription.value:
                found.append(f"{where} asked for {subscription.value} and began at {following}")
            if feed.records and feed.records[0].offset < following:
                found.append(f"{where} was to begin at {following} and got {feed.records[0].offset}")
            final = history.final.get(key)
            if subscription.start == "last" and final is not None and _is_whole(history, final):
                found += _check_last(where, subscription.value, following, commit, final)
    return found


def _is_whole(history: History, final: FinalPartition) -> bool:
    compacts = final.settings.compaction
    return final.complete and final.first == 0 and not compacts and history.damage_of(final) is None


def _check_last(where: str, asked: int, following: int, commit: int, final: FinalPartition) -> list[str]:
    # Records appended while the offset was looked up are delivered in addition.
    there = [stored.offset for stored in final.stored if stored.shown and stored.offset < commit]
    given = [offset for offset in there if offset >= following]
    depth = final.settings.history_depth
    wanted = min(asked, depth or asked, len(there))
    if len(given) < wanted:
        return [f"{where} asked for the last {asked} and got {len(given)} of {len(there)}, the depth is {depth}"]
    return []
