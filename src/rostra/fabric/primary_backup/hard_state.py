"""The hard state of a copy: the newest configuration, and which copy this is."""

from __future__ import annotations

import msgspec

from rostra.fabric.primary_backup.configuration import Configuration
from rostra.fabric.replication.snapshot_start import SnapshotStart
from rostra.model.ids import Partition


class CopyHardState(msgspec.Struct, frozen=True, array_like=True):
    configuration: Configuration | None = None
    number: int = 0
    """The number of the copy; 0: the node has never had one. It outlives the copy."""
    complete: bool = False
    """False: there is no copy, or it lacks records that this node once acknowledged, or may lack them."""
    begun: bool = False
    """The copy is being begun anew: the log on disk may still be the old one."""
    start: SnapshotStart | None = None
    """Where the log of the copy began, if another copy filled it."""


_decoder = msgspec.msgpack.Decoder(CopyHardState)


def key_of_copy(partition: Partition) -> str:
    return f"copy/{partition}"


def pack_copy_state(state: CopyHardState) -> bytes:
    return msgspec.msgpack.encode(state)


def unpack_copy_state(packed: bytes) -> CopyHardState:
    return _decoder.decode(packed)
