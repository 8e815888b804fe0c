"""The records of a simulated partition: each has a number of its own and a key, and may be a tombstone."""

from __future__ import annotations

import msgspec

from rostra.model.batch import BROKER_STATE, Buffer, read_header
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.layout import CONTROL


class SimulatedRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """Unique in the seed; 0 in a batch that the protocol wrote itself."""
    key: str = ""
    tombstone: bool = False
    compact_below: int = 0
    """The record is the primary's decision to compact below this offset."""
    removed: bool = False
    """Compaction has removed the record and kept the batch."""


PROTOCOL_RECORD = SimulatedRecord(0)
_decoder = msgspec.msgpack.Decoder(SimulatedRecord)


def encode_record(record: SimulatedRecord, *, wide: int = 1) -> bytearray:
    """A batch of `wide` offsets that stands for the record."""
    values = [msgspec.msgpack.encode(record), *[b""] * (wide - 1)]
    return encode(values, timestamp_us=0)


def decode_record(batch: Buffer) -> SimulatedRecord:
    flags = int.from_bytes(batch[60:62], "little")
    if flags & CONTROL and not read_header(batch).owner_flags & BROKER_STATE:
        return PROTOCOL_RECORD
    value = Batch(batch).values()[0]
    return _decoder.decode(value or b"")
