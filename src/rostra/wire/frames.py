"""Frames: a fixed header, a typed part, and an optional raw payload. No IO.

| at | bytes | field |
|---|---|---|
| 0 | 4 | length of what follows the header |
| 4 | 4 | length of the typed part |
| 8 | 2 | kind of message |
| 10 | 2 | reserved, zero |
| 12 | 4 | CRC-32C of bytes 0-12 and the typed part |

The payload is not covered: the batches in it carry checksums of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, Generic, Protocol, TypeVar, get_args

import msgspec
from crc32c import crc32c

from rostra.errors import PeerViolation
from rostra.wire.messages import ClientMessage, NodeMessage

FRAME = struct.Struct("<IIHHI")
FRAME_BYTES = FRAME.size
PREFIX = struct.Struct("<IIHH")
PREFIX_BYTES = PREFIX.size
META_BYTES_MAX = 1 << 20
BEFORE_HELLO_BYTES_MAX = 1 << 16
BUFFER_BYTES_MIN = 1 << 14
_LENGTH = struct.Struct("<I")
BUFFER_BYTES_MAX = 1 << 20
LARGE_BYTES_MIN = 1 << 19
"""From this size on a payload is received directly into its own buffer; below, fewer reads are worth a copy."""
LARGE_BEGINNING_BYTES = 1 << 16
"""How much is read at once where a large frame is expected, since bytes that come with its header are copied."""

Buffer = bytes | bytearray | memoryview
_EMPTY = memoryview(b"")
UNDECODABLE = (KeyError, UnicodeDecodeError, RecursionError, msgspec.DecodeError)
"""What decoding a typed part may raise although its checksum is right."""


class Violation(StrEnum):
    """Why a frame was rejected: the closed list that fuzzing must cover."""

    FRAME_TOO_LARGE = "frame too large"
    META_TOO_LARGE = "typed part too large"
    META_LENGTH = "typed part longer than the frame"
    RESERVED = "reserved bits set"
    UNKNOWN_KIND = "unknown kind of message"
    CHECKSUM = "checksum differs"
    MALFORMED = "typed part malformed"
    TEXT = "text is not UTF-8"
    DEPTH = "nested too deeply"
    PAYLOAD = "payload missing or not allowed"
    TRUNCATED = "connection closed inside a frame"
    NOT_GREETED = "first message was not Hello"
    OUT_OF_ORDER = "message not expected now"


class Framed(Protocol):
    """A message that a frame can carry: a Struct with a kind. Each fabric defines the messages between its nodes."""

    kind: ClassVar[int]
    payload: ClassVar[bool]


_encode = msgspec.msgpack.Encoder().encode
_pack_prefix = PREFIX.pack
_unpack_header = FRAME.unpack_from


def encode(message: Framed, payload_bytes: int = 0) -> bytes:
    """Header and typed part; the caller sends the buffers of the payload after it."""
    meta = _encode(message)
    meta_bytes = len(meta)
    prefix = _pack_prefix(meta_bytes + payload_bytes, meta_bytes, message.kind, 0)
    # One checksum over a joined copy costs less than two calls: typed parts are small.
    return prefix + crc32c(prefix + meta).to_bytes(4, "little") + meta


M = TypeVar("M", bound=Framed)


class Dialect(Generic[M]):
    """The messages one side may receive, by kind. A kind with a payload needs one, unless `payload_optional`."""

    def __init__(self, messages: Iterable[type[M]], *, payload_optional: bool = False) -> None:
        self._payload_optional = payload_optional
        self.kinds: dict[int, tuple[msgspec.msgpack.Decoder[M], bool]] = {
            message.kind: (msgspec.msgpack.Decoder(message), message.payload) for message in messages
        }
        self.decodes = {
            (kind, has): decoder.decode
            for kind, (decoder, payload) in self.kinds.items()
            for has in (payload, payload and not payload_optional)
        }
        """Decoders of valid frames by kind and whether there is a payload."""

    def read(self, frame: bytes, frame_bytes_max: int) -> tuple[M, bytearray | None]:
        """Decodes one complete frame."""
        length, meta_bytes, kind, reserved, checksum = _unpack_header(frame)
        if reserved or not meta_bytes <= length <= frame_bytes_max or meta_bytes > META_BYTES_MAX:
            raise _malformed(length, meta_bytes, reserved, frame_bytes_max)
        middle = FRAME_BYTES + meta_bytes
        meta = frame[FRAME_BYTES:middle]
        if crc32c(frame[:PREFIX_BYTES] + meta) != checksum:
            raise PeerViolation(Violation.CHECKSUM, f"kind {kind}")
        has_payload = length > meta_bytes
        try:
            message = self.decodes[kind, has_payload](meta)
        except UNDECODABLE:
            # Decode again for the reason.
            message = self.decode(kind, meta, length - meta_bytes)
        return message, bytearray(frame[middle:]) if has_payload else None

    def decode(self, kind: int, meta: Buffer, payload_bytes: int) -> M:
        found = self.kinds.get(kind)
        if found is None:
            raise PeerViolation(Violation.UNKNOWN_KIND, f"kind {kind}")
        decoder, payload = found
        if (payload_bytes > 0) is not payload and (payload_bytes or not self._payload_optional):
            raise PeerViolation(Violation.PAYLOAD, f"kind {kind} with {payload_bytes} bytes of payload")
        try:
            return decoder.decode(meta)
        except UnicodeDecodeError as error:
            # msgspec lets this one through although it is not a DecodeError.
            raise PeerViolation(Violation.TEXT, str(error)[:200]) from None
        except RecursionError:
            raise PeerViolation(Violation.DEPTH, f"kind {kind}") from None
        except msgspec.DecodeError as error:
            raise PeerViolation(Violation.MALFORMED, str(error)[:200]) from None


def _malformed(length: int, meta_bytes: int, reserved: int, frame_bytes_max: int) -> PeerViolation:
    """The rule that the header of a frame breaks."""
    if length > frame_bytes_max:
        return PeerViolation(Violation.FRAME_TOO_LARGE, f"{length} bytes, at most {frame_bytes_max}")
    if meta_bytes > META_BYTES_MAX:
        return PeerViolation(Violation.META_TOO_LARGE, f"{meta_bytes} bytes, at most {META_BYTES_MAX}")
    if meta_bytes > length:
        return PeerViolation(Violation.META_LENGTH, f"{meta_bytes} of {length} bytes")
    return PeerViolation(Violation.RESERVED, f"{reserved:#06x}")


FROM_CLIENT: Dialect[ClientMessage] = Dialect(get_args(ClientMessage))
FROM_NODE: Dialect[NodeMessage] = Dialect(get_args(NodeMessage))


class FrameReader(Generic[M]):
    """Splits a byte stream into messages. It reuses one buffer, which large payloads bypass.

    The driver receives into `free_space()` and calls `received(n)`, which returns the complete messages, each with its
    payload. A payload is a new bytearray per frame: the owner stamps batches in place, and all readers share its bytes.
    Lengths are checked before anything is allocated for them. After a violation the stream cannot be used any more;
    messages before it in the same read may be lost.
    """

    __slots__ = (
        "_after_large",
        "_buffer",
        "_decodes",
        "_dialect",
        "_end",
        "_large",
        "_large_rest",
        "_start",
        "_view",
        "frame_bytes_max",
    )

    def __init__(self, dialect: Dialect[M], frame_bytes_max: int = BEFORE_HELLO_BYTES_MAX) -> None:
        self._dialect = dialect
        self._decodes = dialect.decodes
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._large: tuple[M, bytearray] | None = None
        """The message whose payload is being received in place."""
        self._large_rest = _EMPTY
        self._after_large = False

    def free_space(self) -> memoryview:
        """Where to receive next; never empty."""
        if self._large is not None:
            return self._large_rest
        if self._after_large:
            return self._view[self._end : self._end + LARGE_BEGINNING_BYTES]
        return self._view[self._end :] if self._end else self._view

    def feed(self, chunk: Buffer) -> list[tuple[M, bytearray | None]]:
        """For drivers that already have the bytes: anything but one whole frame is copied into the buffer."""
        if isinstance(chunk, bytes) and len(chunk) >= FRAME_BYTES and self._start == self._end and self._large is None:
            (length,) = _LENGTH.unpack_from(chunk)
            if length + FRAME_BYTES == len(chunk):
                return [self._dialect.read(chunk, self.frame_bytes_max)]
        messages: list[tuple[M, bytearray | None]] = []
        rest = memoryview(chunk)
        while rest:
            space = self.free_space()
            n = min(len(space), len(rest))
            space[:n] = rest[:n]
            rest = rest[n:]
            messages += self.received(n)
        return messages

    def received(self, n: int) -> list[tuple[M, bytearray | None]]:
        if not (self._end or self._large or self._after_large) and n >= FRAME_BYTES:
            # Fast path: exactly one frame, the usual case when records are sent one by one.
            buffer = self._buffer
            length, meta_bytes, kind, reserved, checksum = _unpack_header(buffer)
            if (
                length + FRAME_BYTES == n < len(buffer) <= BUFFER_BYTES_MAX
                and meta_bytes <= length <= self.frame_bytes_max
                and not reserved
            ):
                middle = FRAME_BYTES + meta_bytes
                meta = buffer[FRAME_BYTES:middle]
                if crc32c(meta, crc32c(buffer[:PREFIX_BYTES])) == checksum:
                    try:
                        message = self._decodes[kind, n > middle](meta)
                    except UNDECODABLE:
                        return self._receive_slowly(n)
                    return [(message, buffer[middle:n] if n > middle else None)]
        return self._receive_slowly(n)

    def _receive_slowly(self, n: int) -> list[tuple[M, bytearray | None]]:
        if self._large is not None:
            return self._receive_large(n)
        end = self._end + n
        start = self._start
        buffer = self._buffer
        messages: list[tuple[M, bytearray | None]] = []
        needed = 0
        while end - start >= FRAME_BYTES:
            length, meta_bytes, kind, reserved, checksum = _unpack_header(buffer, start)
            if reserved or not meta_bytes <= length <= self.frame_bytes_max or meta_bytes > META_BYTES_MAX:
                raise _malformed(length, meta_bytes, reserved, self.frame_bytes_max)
            begin = start + FRAME_BYTES
            middle, stop = begin + meta_bytes, begin + length
            if stop > end and (middle > end or length < LARGE_BYTES_MIN):
                needed = FRAME_BYTES + length
                break
            # Slices of the buffer itself are copies, but small ones cost less than views of it.
            meta = buffer[begin:middle]
            if crc32c(meta, crc32c(buffer[start : start + PREFIX_BYTES])) != checksum:
                raise PeerViolation(Violation.CHECKSUM, f"kind {kind}")
            try:
                message = self._dialect.decodes[kind, stop > middle](meta)
            except UNDECODABLE:
                # Decode again for the reason.
                message = self._dialect.decode(kind, meta, stop - middle)
            if stop > end:
                self._begin_large(message, stop - middle, self._view[middle:end])
                return messages
            messages.append((message, buffer[middle:stop] if stop > middle else None))
            start = stop
        if self._after_large:
            self._after_large = not messages
        if start == end < len(buffer) <= BUFFER_BYTES_MAX:
            self._start = self._end = 0
        else:
            self._start, self._end = start, end
            self._tidy(needed, end == len(buffer))
        return messages

    def _begin_large(self, message: M, payload_bytes: int, beginning: memoryview) -> None:
        payload = bytearray(payload_bytes)
        whole = memoryview(payload)
        whole[: len(beginning)] = beginning
        self._large, self._large_rest = (message, payload), whole[len(beginning) :]
        self._start = self._end = 0

    def _receive_large(self, n: int) -> list[tuple[M, bytearray | None]]:
        assert self._large is not None
        self._large_rest = self._large_rest[n:]
        if self._large_rest:
            return []
        # After a large frame the next one is likely to be large as well.
        self._after_large = True
        large, self._large, self._large_rest = self._large, None, _EMPTY
        return [large]

    def closed(self) -> None:
        """The stream ended; raises a violation if that was inside a frame."""
        if self._large is not None:
            raise PeerViolation(Violation.TRUNCATED, f"{len(self._large_rest)} bytes short of a frame")
        if self._end > self._start:
            raise PeerViolation(Violation.TRUNCATED, f"{self._end - self._start} bytes of an unfinished frame")

    def _tidy(self, needed: int, filled: bool) -> None:
        """Frees space: rewinds when all is parsed, otherwise moves the rest to the front or into a larger buffer."""
        rest = self._end - self._start
        size = len(self._buffer)
        # A read that filled the buffer indicates a busy link, where fewer and larger reads pay off. Before Hello the
        # buffer holds at most one frame, and memory for a rare large frame is released after it.
        bound = max(BUFFER_BYTES_MIN, min(BUFFER_BYTES_MAX, FRAME_BYTES + self.frame_bytes_max))
        wanted = max(min(size * 2 if filled else size, bound), needed)
        if wanted == size and rest == 0:
            self._start = self._end = 0
        elif wanted > size or size > bound >= needed:
            other = bytearray(wanted)
            other[:rest] = self._view[self._start : self._end]
            self._buffer, self._view = other, memoryview(other)
            self._start, self._end = 0, rest
        elif size - self._end < max(needed - rest, size >> 1):
            # Both may overlap, which a memoryview takes care of.
            self._view[:rest] = self._view[self._start : self._end]
            self._start, self._end = 0, rest
