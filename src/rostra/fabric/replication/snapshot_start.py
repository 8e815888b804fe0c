"""Where the log of a replica restarted when it installed a snapshot, and what follows from that after a crash."""

from __future__ import annotations

import msgspec

from rostra.fabric.values import EpochStart, Recovered


class SnapshotStart(msgspec.Struct, frozen=True, array_like=True):
    """Where the last installed snapshot started, with the epoch before it, which an empty log cannot hold."""

    first: int
    epochs: tuple[EpochStart, ...]


def interrupted_snapshot_start(start: SnapshotStart | None, complete: bool, found: Recovered) -> int | None:
    """Where the log of a complete replica must restart after a crash interrupted an InstallSnapshot; else None.

    The snapshot start was persisted but the old log not dropped. Everything before that start is committed, so an empty
    log at that start is complete. A log that extends beyond it was kept: another owner has appended to it since.
    """
    if start is None or not complete or found.damaged_at is not None:
        return None
    return start.first if found.first < start.first and found.end <= start.first else None


def reconcile(start: SnapshotStart | None, complete: bool, found: Recovered) -> tuple[bool, tuple[EpochStart, ...]]:
    """Whether a recovered replica is complete, and its epoch table: hard state or log may be ahead after a crash."""
    epochs = found.epochs
    if start is not None and found.first < start.first:
        # The crash came between dropping the old log and creating the new one.
        complete = False
    elif start is not None and found.first == start.first and not any(row.offset < found.first for row in epochs):
        epochs = (*start.epochs, *epochs)
    return complete and found.damaged_at is None, epochs
