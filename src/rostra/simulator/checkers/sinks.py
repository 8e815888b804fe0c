"""Exactly-once sinks: of every batch of a query, one commit is visible as a whole, and nothing else."""

from __future__ import annotations

from rostra.simulator.history import History, SinkCommitHistory, SinkHistory


def check(history: History) -> list[str]:
    if history.unsettled:
        # Reported by the convergence checker.
        return []
    visible = {stored.value for final in history.final.values() for stored in final.stored if stored.shown}
    excused = set(history.delete_asked) | {
        final.name for final in history.final.values() if history.damage_of(final) is not None
    }
    found: list[str] = []
    for query in history.sinks.values():
        found += _check_query(query, visible, excused)
    return found


def _check_query(query: SinkHistory, visible: set[bytes | None], excused: set[str]) -> list[str]:
    found: list[str] = []
    name = query.query
    committed = {value for commit in query.commits if commit.sent for value in commit.values}
    mark = f"{name}/".encode()
    found += [
        f"{value!r} of {name} is visible, but no commit of it was sent"
        for value in sorted(value for value in visible if value is not None and value.startswith(mark))
        if value not in committed
    ]
    for batch in sorted({commit.batch for commit in query.commits}):
        commits = [commit for commit in query.commits if commit.batch == batch]
        shown = [commit for commit in commits if any(value in visible for value in commit.values)]
        for commit in shown:
            missing = _missing(commit, visible, excused)
            if missing:
                found.append(f"batch {batch} of {name} is visible in part: {missing[:3]} are missing")
            if commit.refused:
                found.append(f"batch {batch} of {name} was refused, but is visible: {sorted(commit.values)[:3]}")
        if len(shown) > 1:
            found.append(f"batch {batch} of {name} is visible {len(shown)} times")
        for commit in commits:
            if commit.decided and commit not in shown and _missing(commit, visible, excused):
                found.append(f"batch {batch} of {name} was committed, but is not visible: {sorted(commit.values)[:3]}")
        if shown:
            query.decided.add(batch)
    first, last = min(query.decided, default=0), max(query.decided, default=0)
    gaps = [batch for batch in range(first, last) if batch not in query.decided]
    if gaps:
        found.append(f"{name} decided batch {max(query.decided)}, but not {gaps[:5]}")
    return found


def _missing(commit: SinkCommitHistory, visible: set[bytes | None], excused: set[str]) -> list[bytes]:
    return sorted(value for value, topic in commit.values.items() if value not in visible and topic not in excused)
