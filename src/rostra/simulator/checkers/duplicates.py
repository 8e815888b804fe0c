"""A record is stored once despite retries, unless its client reported a possible duplicate."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found: list[str] = []
    for name in sorted({final.name for final in history.final.values()}):
        places: dict[bytes, str] = {}
        for (topic, partition), final in sorted(history.final.items()):
            if final.name != name:
                continue
            for stored in final.stored:
                if stored.control or stored.value is None or stored.value in history.maybe_duplicated:
                    continue
                if history.per_origin and not stored.shown:
                    # It was sent again to another node, which delivers it.
                    continue
                here = f"{final.name}/{partition} of {topic:x}:{stored.offset}"
                before = places.setdefault(stored.value, here)
                if before != here:
                    found.append(f"{stored.value!r} is stored at {before} and at {here}")
    return found
