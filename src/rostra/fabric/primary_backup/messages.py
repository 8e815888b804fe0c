"""Messages between the nodes that have copies of a partition, beside those of replication."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rostra.fabric.links.messages import Count, NodeHeartbeat, NodeHeartbeatReply, PeerMessage
from rostra.fabric.primary_backup.configuration import Configuration
from rostra.fabric.replication.messages import (
    AppendEntries,
    AppendEntriesRefused,
    AppendEntriesReply,
    InstallSnapshot,
)
from rostra.model.ids import Partition


class ConfigurationNotice(PeerMessage, frozen=True, array_like=True):
    """A decided configuration, to a node that acts on an older one. It may be learned from anybody."""

    kind: ClassVar[int] = 192
    partition: Partition
    configuration: Configuration


class ConfigurationRequest(PeerMessage, frozen=True, array_like=True):
    """The sender got a message of a primary epoch that it does not know."""

    kind: ClassVar[int] = 193
    partition: Partition
    version: Count


class BeginCopy(InstallSnapshot, frozen=True, array_like=True):
    """Empty the copy and begin it anew under this number, at the primary's log start.

    A node whose copy has this number or a higher one has done so already.
    """

    kind: ClassVar[int] = 194
    number: Count = 0


CopyMessage = AppendEntries | AppendEntriesReply | AppendEntriesRefused | BeginCopy
"""Messages that a primary epoch fences."""
PartitionMessage = CopyMessage | ConfigurationNotice | ConfigurationRequest | NodeHeartbeat | NodeHeartbeatReply

PARTITION_KINDS: dict[int, type[PartitionMessage]] = {
    kind.kind: kind
    for kind in (
        AppendEntries,
        AppendEntriesReply,
        AppendEntriesRefused,
        BeginCopy,
        ConfigurationNotice,
        ConfigurationRequest,
        NodeHeartbeat,
        NodeHeartbeatReply,
    )
}
"""Message types by frame kind, for the codec."""
_decoders = {kind: msgspec.msgpack.Decoder(message) for kind, message in PARTITION_KINDS.items()}


def encode_message(message: object) -> tuple[int, bytes]:
    assert isinstance(message, PeerMessage)
    return message.kind, msgspec.msgpack.encode(message)


def decode_message(kind: int, encoded: bytes) -> PartitionMessage:
    return _decoders[kind].decode(encoded)
