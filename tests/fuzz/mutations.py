"""Ways to break a frame. Each takes the corpus and a valid frame and gives the bytes to send."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from crc32c import crc32c

from rostra.model.batch import BODY_CRC_AT, CHECKED_FROM, HEADER_BYTES
from tests.fuzz.corpus import Corpus, Frame
from tests.unit.wire.streams import framed

WRONG_TYPES: tuple[Any, ...] = (None, True, -1, 1.5, "text", b"bytes", [], [1, [2]], {}, {"a": 1})
HUGE: tuple[int, ...] = (2**64 - 1, 2**63, 2**63 - 1, 2**32, 2**31, -1, -(2**63))
BAD_TEXT = (b"\xa1\xff", b"\xa2\xc3\x28", b"\xa3\xed\xa0\x80", b"\xd9\x04\xf5\x80\x80\x80")

Mutation = Callable[[Corpus, Frame], bytes]


def valid(corpus: Corpus, frame: Frame) -> bytes:
    return framed(frame.kind, frame.meta, frame.payload)


def flipped(corpus: Corpus, frame: Frame) -> bytes:
    """A few bits anywhere, the checksum left as it was."""
    return flip(corpus.rng, valid(corpus, frame))


def flipped_under_checksum(corpus: Corpus, frame: Frame) -> bytes:
    """Flips a few bits of the typed part and recomputes the checksum."""
    return framed(frame.kind, flip(corpus.rng, frame.meta), frame.payload)


def header_field(corpus: Corpus, frame: Frame) -> bytes:
    """One field of the header replaced, the checksum left as it was."""
    raw = bytearray(valid(corpus, frame))
    at, form = corpus.rng.choice(((0, "<I"), (4, "<I"), (8, "<H"), (10, "<H"), (12, "<I")))
    struct.pack_into(
        form, raw, at, corpus.rng.choice((0, 1, 255, 65535)) if form == "<H" else corpus.rng.getrandbits(32)
    )
    return bytes(raw)


def header_field_under_checksum(corpus: Corpus, frame: Frame) -> bytes:
    """Replaces lengths, kind or reserved bits and recomputes the checksum."""
    rng = corpus.rng
    length, meta_bytes, kind, reserved = len(frame.meta) + len(frame.payload), len(frame.meta), frame.kind, 0
    match rng.randrange(5):
        case 0:
            length = rng.choice((0, 1, length + 1, length * 2, 1 << 20, (1 << 20) + 1, 2**32 - 1))
        case 1:
            meta_bytes = rng.choice((0, 1, meta_bytes + 1, max(meta_bytes - 1, 0), length + 1, (1 << 20) + 1))
        case 2:
            kind = rng.choice((0, 14, 31, 44, 65535))
        case 3:
            reserved = rng.choice((1, 0x8000))
        case _:
            kind = rng.randrange(1, 44)
    prefix = struct.pack("<IIHH", length, meta_bytes, kind, reserved)
    return prefix + crc32c(frame.meta, crc32c(prefix)).to_bytes(4, "little") + frame.meta + frame.payload


def truncated(corpus: Corpus, frame: Frame) -> bytes:
    raw = valid(corpus, frame)
    return raw[: corpus.rng.randrange(1, len(raw))]


def spliced(corpus: Corpus, frame: Frame) -> bytes:
    """The beginning of one frame and the end of another."""
    first, second = valid(corpus, frame), valid(corpus, corpus.from_client())
    return first[: corpus.rng.randrange(len(first))] + second[corpus.rng.randrange(len(second)) :]


def confused(corpus: Corpus, frame: Frame) -> bytes:
    """One field of another type."""
    return _with_field(corpus, frame, corpus.rng.choice(WRONG_TYPES))


def huge_number(corpus: Corpus, frame: Frame) -> bytes:
    return _with_field(corpus, frame, corpus.rng.choice(HUGE))


def fewer_fields(corpus: Corpus, frame: Frame) -> bytes:
    fields = msgspec.msgpack.decode(frame.meta)
    return framed(frame.kind, msgspec.msgpack.encode(fields[: corpus.rng.randrange(len(fields))]), frame.payload)


def more_fields(corpus: Corpus, frame: Frame) -> bytes:
    """As a newer version would send it: still valid."""
    fields = msgspec.msgpack.decode(frame.meta)
    return framed(frame.kind, msgspec.msgpack.encode([*fields, *WRONG_TYPES[:3]]), frame.payload)


def nested(corpus: Corpus, frame: Frame) -> bytes:
    """A surplus field that nests, from a little to far beyond reason."""
    fields = msgspec.msgpack.decode(frame.meta)
    meta = bytearray(msgspec.msgpack.encode([*fields, None]))
    meta[-1:] = corpus.rng.choice((b"\x91", b"\x81\x01")) * corpus.rng.choice((3, 100, 3000)) + b"\x01"
    return framed(frame.kind, bytes(meta), frame.payload)


def bad_text(corpus: Corpus, frame: Frame) -> bytes:
    """A text that is not UTF-8 where a text may be."""
    fields = msgspec.msgpack.decode(frame.meta)
    places = [place for place, field in enumerate(fields) if isinstance(field, str)]
    if not places:
        return framed(12, b"\x91" + corpus.rng.choice(BAD_TEXT))
    place = corpus.rng.choice(places)
    parts = [msgspec.msgpack.encode(field) for field in fields]
    parts[place] = corpus.rng.choice(BAD_TEXT)
    return framed(frame.kind, bytes([0x90 + len(fields)]) + b"".join(parts), frame.payload)


def long_lengths(corpus: Corpus, frame: Frame) -> bytes:
    """A field that claims to be longer than anything that follows."""
    fields = msgspec.msgpack.decode(frame.meta)
    parts = [msgspec.msgpack.encode(field) for field in fields]
    parts[corpus.rng.randrange(len(parts))] = corpus.rng.choice((b"\xdb", b"\xdd", b"\xdf", b"\xc6")) + b"\xff" * 4
    return framed(frame.kind, bytes([0x90 + len(fields)]) + b"".join(parts), frame.payload)


def wrong_direction(corpus: Corpus, frame: Frame) -> bytes:
    return valid(corpus, corpus.from_node())


def payload_astray(corpus: Corpus, frame: Frame) -> bytes:
    return framed(frame.kind, frame.meta, b"" if frame.payload else b"payload")


def garbage(corpus: Corpus, frame: Frame) -> bytes:
    return corpus.rng.randbytes(corpus.rng.randrange(1, 200))


def damaged_batch(corpus: Corpus, frame: Frame) -> bytes:
    """A right frame around a batch with flipped bits."""
    publish = corpus.publish()
    return framed(publish.kind, publish.meta, flip(corpus.rng, publish.payload))


def cut_batch(corpus: Corpus, frame: Frame) -> bytes:
    publish = corpus.publish()
    return framed(publish.kind, publish.meta, publish.payload[: corpus.rng.randrange(1, len(publish.payload))])


def forged_batch(corpus: Corpus, frame: Frame) -> bytes:
    """Replaces a field of the batch header and recomputes its checksum."""
    publish = corpus.publish()
    return framed(publish.kind, publish.meta, forge(corpus.rng, publish.payload))


FORGED_FIELDS: tuple[tuple[int, str, tuple[int, ...]], ...] = (
    (0, "<I", (0, 1)),
    (4, "<I", (0, 87, 88, 2**32 - 1)),
    (8, "<Q", (2**63 - 1, 2**64 - 1)),
    (40, "<Q", (2**63, 2**64 - 1)),
    (48, "<I", (2**32 - 1,)),
    (52, "<I", (5, 2**31, 2**32 - 1)),
    (56, "<I", (0, 2, 1000, (1 << 20) + 1, 2**32 - 1)),
    (60, "<H", (1, 2, 4, 8, 16, 32, 64, 128, 0x7E, 0xFFFF)),
    (62, "<B", (1, 2, 3, 255)),
    (63, "<B", (1,)),
    (64, "<q", (2**62, -1)),
    (72, "<q", (2**62, -(2**63))),
    (80, "<I", (0, 1, 100, 2**31, 2**32 - 1)),
    (84, "<I", (1,)),
    (HEADER_BYTES, "<I", (1, 2**31, 2**32 - 1)),
    (HEADER_BYTES + 4, "<I", (0, 2**31, 2**32 - 1)),
)


def forge(rng: Random, batch: bytes) -> bytes:
    raw = bytearray(batch)
    at, form, values = rng.choice(FORGED_FIELDS)
    struct.pack_into(form, raw, at, rng.choice(values))
    struct.pack_into("<I", raw, BODY_CRC_AT, crc32c(raw[CHECKED_FROM:]))
    return bytes(raw)


def flip(rng: Random, raw: bytes) -> bytes:
    flipped_raw = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8))):
        flipped_raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(flipped_raw)


def _with_field(corpus: Corpus, frame: Frame, value: Any) -> bytes:
    fields = msgspec.msgpack.decode(frame.meta)
    fields[corpus.rng.randrange(len(fields))] = value
    return framed(frame.kind, msgspec.msgpack.encode(fields), frame.payload)


ALL: tuple[Mutation, ...] = (
    valid,
    flipped,
    flipped_under_checksum,
    header_field,
    header_field_under_checksum,
    truncated,
    spliced,
    confused,
    huge_number,
    fewer_fields,
    more_fields,
    nested,
    bad_text,
    long_lengths,
    wrong_direction,
    payload_astray,
    garbage,
    damaged_batch,
    cut_batch,
    forged_batch,
)

WEIGHED = (*ALL, *(valid,) * 12, more_fields, forged_batch, damaged_batch)
"""Valid frames in between lead deeper than the first violation."""
