"""A record is stored once, whatever was retried, unless its client said that it may be there twice."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found: list[str] = []
    for topic in sorted({topic for topic, _ in history.final}):
        places: dict[bytes, str] = {}
        for (of, partition), final in sorted(history.final.items()):
            if of != topic:
                continue
            for stored in final.stored:
                if stored.control or stored.value is None or stored.value in history.maybe_twice:
                    continue
                here = f"{final.name}/{partition}:{stored.offset}"
                before = places.setdefault(stored.value, here)
                if before != here:
                    found.append(f"{stored.value!r} is stored at {before} and at {here}")
    return found
