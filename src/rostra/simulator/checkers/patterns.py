"""A pattern subscription gets every matching topic, and each of its records once."""

from __future__ import annotations

from rostra.simulator.history import DeliveredPartition, FinalPartition, History, PatternHistory


def check(history: History) -> list[str]:
    found: list[str] = []
    for subscription in history.pattern_subscriptions:
        for (topic, partition), feed in subscription.feeds.items():
            where = f"{subscription.name} on {history.listed.get(topic, 'a topic that is gone')}/{partition}"
            offsets = [got.offset for got in feed.records]
            if offsets != sorted(set(offsets)):
                found.append(f"{where} got offsets twice or out of order")
            if (
                subscription.unsubscribed_us is not None
                and feed.records
                and feed.records[-1].at_us > subscription.unsubscribed_us
            ):
                found.append(f"{where} got {offsets[-1]} after its unsubscribe was acknowledged")
        if subscription.topics is not None and subscription.established and not subscription.unsubscribing:
            found += _check_final_topics(history, subscription, subscription.topics)
    return found


def _check_final_topics(history: History, subscription: PatternHistory, known: list[int]) -> list[str]:
    """A subscription that lasted until the end has all topics, and no others."""
    found: list[str] = []
    there = [topic for topic, name in history.listed.items() if not name.startswith("_")]
    missed = sorted(history.listed[topic] for topic in there if topic not in known)
    if missed:
        found.append(f"{subscription.name} never got {missed}")
    surplus = [topic for topic in known if topic not in history.listed]
    if surplus:
        found.append(f"{subscription.name} still has {len(surplus)} deleted topics")
    wanted = {key: final for key, final in history.final.items() if key[0] in known}
    if not history.replicated and any(history.damage_of(final) is not None for final in wanted.values()):
        # Damage ends the subscription repeatedly, and it may just have restarted.
        return found
    for key, final in wanted.items():
        if not _expires(final) and history.damage_of(final) is None and final.complete:
            found += _check_records(history, subscription, subscription.feeds.get(key), final)
    return found


def _check_records(
    history: History, subscription: PatternHistory, feed: DeliveredPartition | None, final: FinalPartition
) -> list[str]:
    """Records of a partition that it never got, except those that the replica it read may have compacted."""
    got = {one.offset for one in feed.records} if feed is not None else set()
    missing = [stored for stored in final.stored if stored.shown and stored.offset not in got]
    skipped = [stored.offset for stored in missing if not history.is_outdated(final, stored.value, stored.offset)]
    if not skipped:
        return []
    return [f"{subscription.name} never got {skipped[:5]} of {final.name}/{final.partition}, {len(skipped)} in all"]


def _expires(final: FinalPartition) -> bool:
    return final.settings.retention_ms > 0 or final.settings.retention_bytes > 0
