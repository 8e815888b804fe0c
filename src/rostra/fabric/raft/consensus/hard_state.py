"""What a group's member must never forget: its term and vote, whether its copy is whole, and who the members are."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from rostra.fabric.api import EpochStart
from rostra.model.ids import ID_MAX, NodeId, Partition

MEMBERS_MAX = 64

Members = Annotated[
    tuple[Annotated[NodeId, Meta(ge=0, le=ID_MAX)], ...],
    Meta(max_length=MEMBERS_MAX),
]


class GroupConfig(msgspec.Struct, frozen=True, array_like=True):
    """Who is in the group, in ascending order. Learners get all that voters get, and count in no majority."""

    voters: Members
    learners: Members = ()

    @property
    def members(self) -> tuple[NodeId, ...]:
        return (*self.voters, *self.learners)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1


class GroupConfigAt(msgspec.Struct, frozen=True, array_like=True):
    """The configuration whose entry ends at `end` and was written in `term`. That pair names one entry for ever.

    So a row is in force exactly while the log holds an entry of that term there, whatever was cut meanwhile.
    """

    end: int
    term: int
    config: GroupConfig


class SnapshotStart(msgspec.Struct, frozen=True, array_like=True):
    """Where the copy was last begun anew, with the epoch before it: an empty log remembers neither."""

    first: int
    epochs: tuple[EpochStart, ...]


class HardState(msgspec.Struct, frozen=True, array_like=True):
    term: int = 0
    vote: int = 0
    """The node voted for in this term; 0 is no node."""
    complete: bool = True
    """False: the copy lacks entries that this node once acknowledged, or may have."""
    configs: tuple[GroupConfigAt, ...] = ()
    """The last committed configuration, and those behind it that may still be cut."""
    snapshots: int = 0
    """How often the copy was begun anew: what was said of an earlier filling says nothing of this one."""
    snapshot_start: SnapshotStart | None = None
    commit: int = 0
    """A commit offset that was known, where somebody wants to start before a leader is heard."""


_decoder = msgspec.msgpack.Decoder(HardState)


def key_of(partition: Partition) -> str:
    return f"raft/{partition}"


def pack_hard_state(hard_state: HardState) -> bytes:
    return msgspec.msgpack.encode(hard_state)


def unpack_hard_state(packed: bytes) -> HardState:
    return _decoder.decode(packed)
