"""A created topic exists, a deleted one does not, and subscriptions to it end with the reason."""

from __future__ import annotations

from rostra.errors import OffsetOutOfRange, TimedOut, TopicError, Unavailable
from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found: list[str] = []
    for made in history.created:
        if made.topic not in history.listed and made.name not in history.delete_asked:
            found.append(f"topic {made.name} was created and never deleted, but is gone")
    for topic in history.deleted:
        if topic in history.listed:
            found.append(f"topic {history.listed[topic]} was deleted, but exists")
    names = list(history.listed.values())
    if len(names) != len(set(names)):
        found.append(f"two topics have one name: {sorted(names)}")
    for subscription in history.subscriptions:
        deleted_us = [history.deleted[topic] for topic, _ in subscription.feeds if topic in history.deleted]
        if subscription.unsubscribing or not deleted_us:
            continue
        ended_before = subscription.ended is not None and subscription.ended_us < deleted_us[0]
        # The error for an offset may have been in flight when the topic was deleted; and nodes that had not yet applied
        # the deletion, with too few of them up to serve all partitions, answered that no node serves them.
        never_stood = not subscription.established and isinstance(
            subscription.ended, OffsetOutOfRange | TimedOut | Unavailable
        )
        if not ended_before and not never_stood and not isinstance(subscription.ended, TopicError):
            found.append(f"{subscription.name} on a deleted topic ended with {subscription.ended!r}")
    for subscription in history.subscriptions:
        for feed in subscription.feeds.values():
            if (
                subscription.unsubscribed_us is not None
                and feed.records
                and feed.records[-1].at_us > subscription.unsubscribed_us
            ):
                found.append(
                    f"{subscription.name} got {feed.records[-1].offset} after its unsubscribe was acknowledged"
                )
    return found
