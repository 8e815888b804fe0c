"""Entries of the metadata log: members and topics. A fabric adds entries of its own about placement."""

from __future__ import annotations

from typing import Annotated, Union

import msgspec
from msgspec import Meta

from rostra.errors import BatchRejected
from rostra.fabric.api import Buffer, EpochStart, TopicSpec
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.model.layout import CONTROL

METADATA_PARTITION = Partition(TopicId(0), PartitionIndex(0))
"""The partition of the metadata log."""

Text = Annotated[str, Meta(max_length=1024)]


class MetadataEntry(msgspec.Struct, frozen=True, array_like=True):
    """Base of all entries; each has a tag."""


class ClusterMember(msgspec.Struct, frozen=True, array_like=True):
    """`address` is for clients, `peer_address` for other nodes; `name` is empty unless the operator chose one."""

    node: NodeId
    address: Text
    peer_address: Text
    name: Text = ""


class Requester(msgspec.Struct, frozen=True, array_like=True):
    """The request that an entry answers: node, boot number and token."""

    node: NodeId
    boot: int
    token: int


class TopicAdded(MetadataEntry, frozen=True, array_like=True, tag="made"):
    """`replicas` per partition at creation, the preferred leader first; `replication_factor` 0 is the default."""

    spec: TopicSpec
    segment_bytes: int
    replicas: tuple[tuple[NodeId, ...], ...]
    requester: Requester
    replication_factor: int = 0


class TopicRemoved(MetadataEntry, frozen=True, array_like=True, tag="gone"):
    topic: TopicId
    requester: Requester


class TopicSettingsChanged(MetadataEntry, frozen=True, array_like=True, tag="changed"):
    """Replaces the topic's settings."""

    topic: TopicId
    settings: bytes
    segment_bytes: int
    requester: Requester


class NodeJoined(MetadataEntry, frozen=True, array_like=True, tag="joined"):
    """Adds a member, or changes its addresses."""

    member: ClusterMember


class NodeLeaving(MetadataEntry, frozen=True, array_like=True, tag="leaving"):
    """The node's replicas are to be reassigned; it leaves when it has none."""

    node: NodeId
    requester: Requester


class NodeLeft(MetadataEntry, frozen=True, array_like=True, tag="left"):
    """The node has no replica and is in no group; its id is never used again."""

    node: NodeId


class MetadataSnapshot(MetadataEntry, frozen=True, array_like=True, tag="checkpoint"):
    """The whole state as of its offset, so that the log before it can be trimmed.

    A checkpoint like a partition's: `epochs` are the rows of the log so far, which log recovery reads. `placement` is
    the fabric's part of the state, packed by it.
    """

    producers: tuple[()]
    epochs: tuple[EpochStart, ...]
    members: tuple[ClusterMember, ...]
    leaving: tuple[NodeId, ...]
    removed: tuple[ClusterMember, ...]
    topics: tuple[TopicAdded, ...]
    placement: msgspec.Raw


SHARED_ENTRIES = (
    TopicAdded,
    TopicRemoved,
    TopicSettingsChanged,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    MetadataSnapshot,
)


class EntryCodec:
    """Entries as control batches: the shared ones, and those of the fabric."""

    def __init__(self, *own: type[MetadataEntry]) -> None:
        self._decoder = msgspec.msgpack.Decoder(Union[SHARED_ENTRIES + own])  # noqa: UP007

    def batch(self, entry: MetadataEntry, wall_us: int) -> bytearray:
        return encode([msgspec.msgpack.encode(entry)], timestamp_us=wall_us, control=True)

    def read(self, batch: Buffer) -> MetadataEntry | None:
        """Decodes a metadata entry; None for entries of the group itself."""
        flags = int.from_bytes(batch[60:62], "little")
        if not flags & CONTROL:
            return None
        try:
            (value,) = Batch(batch).values()[:1]
            entry: MetadataEntry = self._decoder.decode(value or b"")
            return entry
        except (BatchRejected, msgspec.DecodeError, UnicodeDecodeError):
            return None


def partitions_of(made: TopicAdded) -> list[Partition]:
    return [Partition(made.spec.topic, PartitionIndex(index)) for index in range(made.spec.partitions)]
