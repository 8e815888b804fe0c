"""In an exclusive topic only the records of the strongest publisher are delivered, as the log before them decides.

The rules are implemented a second time, as plainly as possible: a registered publisher that has not left is alive; the
strongest one is delivered, among equals the one with the lowest id.
"""

from __future__ import annotations

from collections.abc import Iterable

from rostra.broker.partition.control_batch import DerivedEntry, decode_entries, read_checkpoint
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft
from rostra.model.batch import BROKER_STATE, CHECKPOINT, SUPPRESSED
from rostra.simulator.history import FinalPartition, History, StoredRecord

Strengths = dict[int, int]


def check(history: History) -> list[str]:
    found: list[str] = []
    suppressed: dict[tuple[int, int], set[int]] = {}
    for key, final in history.final.items():
        where = f"{final.name}/{final.partition}"
        suppressed[key] = {stored.offset for stored in final.stored if stored.owner_flags & SUPPRESSED}
        if final.settings.ownership == "exclusive":
            found += [f"{where}:{flaw}" for flaw in flaws_in(final.stored)]
            found += _check_requested(history, final, where)
        elif suppressed[key]:
            found.append(f"{where} is shared and holds suppressed records at {sorted(suppressed[key])[:5]}")
    for subscription in history.subscriptions:
        for key, feed in subscription.feeds.items():
            shown = [got.offset for got in feed.records if got.offset in suppressed.get(key, ())]
            if shown:
                found.append(f"{subscription.name} got {shown[:5]}, which are suppressed")
    return found


def flaws_in(log: Iterable[StoredRecord]) -> list[str]:
    """Violations of the rules in a whole log."""
    found: list[str] = []
    alive: Strengths = {}
    begun = False
    for stored in log:
        if stored.owner_flags & CHECKPOINT:
            carried = _apply({}, decode_entries(read_checkpoint(stored.value or b"").entries))
            if begun and carried != alive:
                found.append(f"{stored.offset} begins a segment with {carried}, alive are {alive}")
            alive = carried
        elif stored.owner_flags & BROKER_STATE:
            _apply(alive, decode_entries([stored.value]))
        elif not stored.control:
            flaw = _flaw(stored, alive)
            if flaw:
                found.append(f"{stored.offset} {flaw}")
        begun = True
    return found


def _apply(alive: Strengths, entries: Iterable[DerivedEntry]) -> Strengths:
    for entry in entries:
        if isinstance(entry, PublisherJoined):
            alive[entry.publisher] = entry.strength
        elif isinstance(entry, PublisherLeft):
            alive.pop(entry.publisher, None)
    return alive


def _flaw(stored: StoredRecord, alive: Strengths) -> str:
    if stored.publisher not in alive:
        return f"is of publisher {stored.publisher:x}, which the log does not register before it"
    best = max(alive.values())
    strongest = min(publisher for publisher, strength in alive.items() if strength == best)
    marked = bool(stored.owner_flags & SUPPRESSED)
    if marked == (stored.publisher == strongest):
        what = "suppressed" if marked else "delivered"
        return f"is {what}: publisher {stored.publisher:x} with {alive[stored.publisher]}, alive are {alive}"
    return ""


def _check_requested(history: History, final: FinalPartition, where: str) -> list[str]:
    """Strengths in the log that no application requested."""
    found: list[str] = []
    for stored in final.stored:
        if not stored.owner_flags & BROKER_STATE:
            continue
        for entry in decode_entries([stored.value]):
            if isinstance(entry, PublisherJoined) and entry.strength not in history.strengths.get(
                entry.publisher, {0: 0}
            ):
                found.append(f"{where}:{stored.offset} gives {entry.publisher:x} the strength {entry.strength}")
    return found
