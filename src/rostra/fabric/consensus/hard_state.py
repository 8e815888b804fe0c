"""The hard state of a group member: term, vote, configurations, and whether its replica is complete."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from rostra.fabric.replication.snapshot_start import SnapshotStart
from rostra.model.ids import ID_MAX, NodeId, Partition

MEMBERS_MAX = 64

Members = Annotated[
    tuple[Annotated[NodeId, Meta(ge=0, le=ID_MAX)], ...],
    Meta(max_length=MEMBERS_MAX),
]


class GroupConfig(msgspec.Struct, frozen=True, array_like=True):
    """The members of the group, in ascending order. Learners receive all entries and count in no majority."""

    voters: Members
    learners: Members = ()

    @property
    def members(self) -> tuple[NodeId, ...]:
        return (*self.voters, *self.learners)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1


class GroupConfigAt(msgspec.Struct, frozen=True, array_like=True):
    """The configuration whose entry ends at `end` and has `term`; that pair identifies one entry.

    So a row is in force exactly while the log holds an entry of that term at that offset, whatever was truncated.
    """

    end: int
    term: int
    config: GroupConfig


class HardState(msgspec.Struct, frozen=True, array_like=True):
    term: int = 0
    vote: int = 0
    """The node voted for in this term; 0 is no node."""
    complete: bool = True
    """False: the replica lacks entries that this node once acknowledged, or may lack them."""
    configs: tuple[GroupConfigAt, ...] = ()
    """The last committed configuration, and later ones that may still be truncated."""
    snapshots: int = 0
    """How many snapshots were installed: replies from before the last one are stale."""
    snapshot_start: SnapshotStart | None = None
    commit: int = 0
    """The last persisted commit offset, for groups that serve before they hear a leader."""


_decoder = msgspec.msgpack.Decoder(HardState)


def key_of(partition: Partition) -> str:
    return f"raft/{partition}"


def pack_hard_state(hard_state: HardState) -> bytes:
    return msgspec.msgpack.encode(hard_state)


def unpack_hard_state(packed: bytes) -> HardState:
    return _decoder.decode(packed)
