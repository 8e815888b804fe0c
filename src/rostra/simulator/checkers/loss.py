"""Records acknowledged with `acks=all`, or `owner` on a single node, are readable at their offsets."""

from __future__ import annotations

from rostra.simulator.history import FinalPartition, History, RecordAcked


def check(history: History) -> list[str]:
    found: list[str] = []
    by_key = {key: {stored.offset: stored.value for stored in final.stored} for key, final in history.final.items()}
    values = {key: set(stored.values()) for key, stored in by_key.items()}
    shown: dict[str, set[bytes | None]] = {}
    for one in history.final.values():
        shown.setdefault(one.name, set()).update(stored.value for stored in one.stored if stored.shown)
    for acked in history.acked.values():
        acks = history.sent[acked.value].acks
        if acks == "none" or (acks == "owner" and history.replicated and not history.per_origin):
            continue
        key = acked.topic, acked.partition
        final = history.final.get(key)
        if final is None:
            if history.sent[acked.value].topic not in history.delete_asked:
                found.append(f"{acked.value!r} was acknowledged, but its partition {key} is gone")
            continue
        if _excused(history, final, acked, values[key]):
            continue
        if history.per_origin and acked.value not in shown[final.name]:
            found.append(f"{acked.value!r} was acknowledged in {final.name}, but is not delivered")
        elif acked.offset < 0:
            if acked.value not in values[key] and not history.per_origin:
                found.append(f"{acked.value!r} was acknowledged in {final.name}/{final.partition}, but is not there")
        elif by_key[key].get(acked.offset) != acked.value:
            there = by_key[key].get(acked.offset)
            found.append(
                f"{acked.value!r} was acknowledged at {final.name}/{final.partition}:{acked.offset}, there is {there!r}"
            )
    return found


def _excused(history: History, final: FinalPartition, acked: RecordAcked, values: set[bytes | None]) -> bool:
    """Whether it expired, was replaced by a later record of its key, or lies after reported damage."""
    damaged_at = history.damage_of(final)
    if acked.offset < 0:
        # Its offset is unknown: it may have been in the missing part.
        return damaged_at is not None or final.first > 0 or history.is_outdated(final, acked.value, acked.offset)
    expires = final.settings.retention_ms > 0 or final.settings.retention_bytes > 0
    if history.is_outdated(final, acked.value, acked.offset):
        return True
    return (damaged_at is not None and acked.offset >= damaged_at) or (expires and acked.offset < final.first)
