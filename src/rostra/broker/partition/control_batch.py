"""Control records: what the broker itself writes into a partition's log.

An entry is a tagged Struct, defined beside the book that it changes and listed in `Booked`. One control batch holds one
or more of them. A checkpoint is an entry too, of its own: it begins a segment, and says what all before it came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rostra.broker.groups.group_table import GroupEntry
from rostra.broker.partition.compaction_mark import CompactBelow
from rostra.broker.publish.producer_table import ProducerEntry
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft
from rostra.model.batch import Buffer
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.producer_move import ProducerMove

Booked = CompactBelow | PublisherJoined | PublisherLeft | GroupEntry | ProducerMove
"""Every entry that a book follows. Their tags differ from those of what a fabric writes into the same log."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The state of a partition before the offset it is written at: the first batch of every segment but the first.

    `epochs` are the rows (owner epoch, its first offset) of the log so far, so that the epoch before log start is known
    however much retention has removed. `entries`, encoded, make the books what they are when entered into empty ones.
    """

    producers: list[tuple[int, ProducerEntry]]
    epochs: list[tuple[int, int]] = []
    entries: list[bytes] = []
    forgot: bool = False
    """Whether there were more producers than were remembered."""


class _Epochs(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The part that a checkpoint shares with whatever else a fabric begins a segment with."""

    producers: msgspec.Raw
    epochs: list[tuple[int, int]] = []


Control = Checkpoint | Booked

_checkpoints = msgspec.msgpack.Decoder(Checkpoint)
_epochs = msgspec.msgpack.Decoder(_Epochs)
_entries = msgspec.msgpack.Decoder(Booked)


def control_batch(entries: Sequence[Control], wall_us: int) -> bytearray:
    return encode([msgspec.msgpack.encode(entry) for entry in entries], timestamp_us=wall_us, control=True)


def encode_entries(entries: Iterable[Booked]) -> list[bytes]:
    return [msgspec.msgpack.encode(entry) for entry in entries]


def decode_entries(values: Iterable[bytes | None]) -> list[Booked]:
    """Those that this version knows: whoever does not know an entry keeps no book that it would change."""
    entries: list[Booked] = []
    for value in values:
        try:
            entries.append(_entries.decode(value or b""))
        except msgspec.DecodeError:
            continue
    return entries


def read_control(batch: Buffer) -> list[Booked]:
    return decode_entries(Batch(batch).values())


def read_checkpoint(value: bytes) -> Checkpoint:
    return _checkpoints.decode(value)


def read_epochs(value: bytes) -> list[tuple[int, int]]:
    """Of any batch that begins a segment, the fabric's own included."""
    return _epochs.decode(value).epochs
