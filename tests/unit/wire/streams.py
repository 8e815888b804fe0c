"""Messages to send and streams of their frames."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, get_args

from crc32c import crc32c
from hypothesis import strategies as st

from rostra.wire.fields import Message
from rostra.wire.frames import encode
from rostra.wire.messages import ClientMessage, NodeMessage
from tests.unit.wire import schema

CLIENT_KINDS: tuple[type[Message], ...] = get_args(ClientMessage)
NODE_KINDS: tuple[type[Message], ...] = get_args(NodeMessage)
ALL_KINDS = tuple(dict.fromkeys((*CLIENT_KINDS, *NODE_KINDS)))

Sent = tuple[Any, bytes]
"""A message and its payload, empty if its kind has none."""


def sent(kind: type[Message]) -> st.SearchStrategy[Sent]:
    payloads = st.binary(min_size=1, max_size=300) if kind.payload else st.just(b"")
    return st.tuples(schema.struct(kind), payloads)


def conversations(kinds: Iterable[type[Message]]) -> st.SearchStrategy[list[Sent]]:
    return st.lists(st.one_of([sent(kind) for kind in kinds]), max_size=8)


def stream_of(frames: Iterable[Sent]) -> bytes:
    return b"".join(encode(message, len(payload)) + payload for message, payload in frames)


def framed(kind: int, meta: bytes, payload: bytes = b"", *, reserved: int = 0) -> bytes:
    """A frame with a right checksum around whatever is given."""
    prefix = struct.pack("<IIHH", len(meta) + len(payload), len(meta), kind, reserved)
    return prefix + crc32c(meta, crc32c(prefix)).to_bytes(4, "little") + meta + payload
