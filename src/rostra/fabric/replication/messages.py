"""Messages between the owner of a partition and its followers.

`epoch` is the owner epoch in which the sender owns or follows: the fencing number. A receiver ignores older ones.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from rostra.fabric.links.messages import Count, PeerMessage
from rostra.fabric.values import EpochStart
from rostra.model.ids import Partition


class AppendEntries(PeerMessage, frozen=True, array_like=True):
    """Batches that follow `prev_end`, where an entry of `prev_epoch` ends; without payload, a probe for that entry.

    `at_boundary`: `prev_end` is known to lie between two batches. `log_start` is the owner's. `commit_only`: carries
    nothing but the commit offset and needs no reply.
    """

    kind: ClassVar[int] = 132
    payload: ClassVar[bool] = True
    partition: Partition
    epoch: Count
    prev_end: Count
    prev_epoch: Count
    commit: Count
    log_start: Count
    at_boundary: bool = True
    commit_only: bool = False


class AppendEntriesReply(PeerMessage, frozen=True, array_like=True):
    """`probed` is the `prev_end` of a successful probe. `has_readers`: readers of the replica wait for commits."""

    kind: ClassVar[int] = 133
    partition: Partition
    epoch: Count
    agreed: Count
    match: Count
    commit: Count
    probed: Count = 0
    snapshots: Count = 0
    has_readers: bool = True


class AppendEntriesRefused(PeerMessage, frozen=True, array_like=True):
    """The log does not match at `prev_end`; it may match at `hint_end`, if an entry of `hint_epoch` ends there.

    `needs_snapshot`: the replica is damaged and must restart at the owner's log start.
    """

    kind: ClassVar[int] = 134
    partition: Partition
    epoch: Count
    prev_end: Count
    hint_end: Count
    hint_epoch: Count
    needs_snapshot: bool = False
    snapshots: Count = 0


class InstallSnapshot(PeerMessage, frozen=True, array_like=True):
    """Restart the log at `log_start`, the owner's; `epochs` describes what came before it.

    A subclass with a kind of its own adds what else must be known of the log before `log_start`.
    """

    kind: ClassVar[int] = 139
    partition: Partition
    epoch: Count
    log_start: Count
    epochs: Annotated[tuple[EpochStart, ...], Meta(max_length=1)]


ReplicationMessage = AppendEntries | AppendEntriesReply | AppendEntriesRefused | InstallSnapshot
