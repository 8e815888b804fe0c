"""Within a partition, the records of a producer are stored in the order in which they were sent."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found: list[str] = []
    for final in history.final.values():
        last: dict[str, int] = {}
        for stored in final.stored:
            if history.per_origin and not stored.shown:
                continue
            sent = history.sent.get(stored.value) if stored.value is not None else None
            if sent is None or sent.value in history.maybe_duplicated:
                # A reported duplicate follows records sent later, and its first occurrence may be gone.
                continue
            if sent.order < last.get(sent.producer, -1):
                found.append(
                    f"{final.name}/{final.partition}:{stored.offset} holds record {sent.order} of {sent.producer}"
                    f" behind its record {last[sent.producer]}"
                )
            last[sent.producer] = max(sent.order, last.get(sent.producer, -1))
    return found
