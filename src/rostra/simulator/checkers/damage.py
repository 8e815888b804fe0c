"""Damaged bytes are reported and never served, no record is acknowledged after them, and no intact log is reported."""

from __future__ import annotations

from rostra.errors import PartitionDamaged
from rostra.simulator.history import History, partition_key

LATER_US = 1 << 60


def check(history: History) -> list[str]:
    found: list[str] = []
    for final in history.final.values():
        if final.served_damage:
            found.append(f"{final.name}/{final.partition} was served with {final.served_damage}")
    topics: dict[str, list[int]] = {}
    for final in history.final.values():
        topics.setdefault(final.name, []).append(final.topic)
    touched = history.flipped | history.torn
    for name, partition, offset in sorted(history.reported_damage):
        if name not in topics or name in history.delete_asked:
            continue
        if not any(partition_key(topic, partition) in touched for topic in topics[name]):
            found.append(f"{name}/{partition} was reported as damaged at {offset}, but no fault touched it")
    if not history.replicated:
        found += _acknowledged_behind_damage(history)
    for subscription in history.subscriptions:
        error = subscription.ended
        told = {(name, partition) for name, partition, _ in history.reported_damage}
        if isinstance(error, PartitionDamaged) and (error.topic, error.partition) not in told:
            found.append(f"{subscription.name} was served damaged bytes of {error.topic}/{error.partition}")
    return found


def _acknowledged_behind_damage(history: History) -> list[str]:
    """Records acknowledged in a partition after it was reported as damaged and before the node restarted."""
    known_us: dict[tuple[str, int], tuple[int, int]] = {}
    for (name, partition, _), told_us in history.reported_damage.items():
        started_us = min((start_us for start_us in history.starts_us if start_us > told_us), default=LATER_US)
        known_us[name, partition] = (told_us, started_us)
    found: list[str] = []
    for acked in history.acked.values():
        sent = history.sent[acked.value]
        told_us, started_us = known_us.get((sent.topic, acked.partition), (LATER_US, LATER_US))
        if sent.acks == "none" or sent.topic in history.delete_asked:
            continue
        if told_us < sent.at_us and acked.at_us < started_us:
            found.append(f"{acked.value!r} was acknowledged in {sent.topic}/{acked.partition}, known to be damaged")
    return found
