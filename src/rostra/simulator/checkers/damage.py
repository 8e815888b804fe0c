"""Damaged bytes are reported and never served; nothing is called damaged that no fault has touched."""

from __future__ import annotations

from rostra.errors import PartitionDamaged
from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found: list[str] = []
    for final in history.final.values():
        if final.served_damage:
            found.append(f"{final.name}/{final.partition} was served with {final.served_damage}")
    names = {final.name: final.topic for final in history.final.values()}
    for name, partition, offset in sorted(history.damage_told):
        topic = names.get(name)
        if topic is None or name in history.delete_asked:
            continue
        if (topic, partition) not in history.flipped and (topic, partition) not in history.torn:
            found.append(f"{name}/{partition} was called damaged at {offset}, but no fault has touched it")
    for subscription in history.subscriptions:
        error = subscription.ended
        told = {(name, partition) for name, partition, _ in history.damage_told}
        if isinstance(error, PartitionDamaged) and (error.topic, error.partition) not in told:
            found.append(f"{subscription.name} was served damaged bytes of {error.topic}/{error.partition}")
    return found
