"""Control batches: records that the broker itself writes into a partition's log.

An entry is a tagged Struct, defined beside the table that it changes and listed in `DerivedEntry`. One control batch
holds one or more of them. A checkpoint is a batch of its own: it begins a segment and holds the state before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rostra.broker.groups.group_table import GroupEntry
from rostra.broker.partition.compaction_mark import CompactBelow
from rostra.broker.publish.producer_table import ProducerEntry
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft
from rostra.broker.sinks.sink_table import SinkEntry
from rostra.broker.sinks.staged_table import StagedEntry
from rostra.model.batch import Buffer
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.producer_move import ProducerMove

DerivedEntry = CompactBelow | PublisherJoined | PublisherLeft | GroupEntry | ProducerMove | StagedEntry | SinkEntry
"""Every entry that changes log-derived state. Their tags differ from those of a fabric's entries in the same log."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The derived state of a partition before the checkpoint's offset: the first batch of every segment but the first.

    `epochs` are the rows (owner epoch, its first offset) of the log so far, so that the epoch before log start is known
    however much retention has removed. `entries`, encoded, rebuild the tables from empty ones.
    """

    producers: list[tuple[int, ProducerEntry]]
    epochs: list[tuple[int, int]] = []
    entries: list[bytes] = []
    forgot: bool = False
    """Whether producers were evicted."""


class _Epochs(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The fields that a checkpoint shares with a fabric's own batches that begin a segment."""

    producers: msgspec.Raw
    epochs: list[tuple[int, int]] = []


Control = Checkpoint | DerivedEntry

_checkpoints = msgspec.msgpack.Decoder(Checkpoint)
_epochs = msgspec.msgpack.Decoder(_Epochs)
_entries = msgspec.msgpack.Decoder(DerivedEntry)


def control_batch(entries: Sequence[Control], wall_us: int) -> bytearray:
    return encode([msgspec.msgpack.encode(entry) for entry in entries], timestamp_us=wall_us, control=True)


def encode_entries(entries: Iterable[DerivedEntry]) -> list[bytes]:
    return [msgspec.msgpack.encode(entry) for entry in entries]


def decode_entries(values: Iterable[bytes | None]) -> list[DerivedEntry]:
    """The entries that this version knows; unknown ones change tables that it does not have."""
    entries: list[DerivedEntry] = []
    for value in values:
        try:
            entries.append(_entries.decode(value or b""))
        except msgspec.DecodeError:
            continue
    return entries


def read_control(batch: Buffer) -> list[DerivedEntry]:
    return decode_entries(Batch(batch).values())


def read_checkpoint(value: bytes) -> Checkpoint:
    return _checkpoints.decode(value)


def read_epochs(value: bytes) -> list[tuple[int, int]]:
    """The epochs of any batch that begins a segment, the fabric's included."""
    return _epochs.decode(value).epochs
