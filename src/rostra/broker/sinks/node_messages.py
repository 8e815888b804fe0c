"""Messages between the coordinator of a sink's query and the owners of the partitions that the sink writes to.

They travel between brokers by `SendToBroker`, which may lose, repeat or delay them. The coordinator repeats each until
it is answered, and an owner does each once: what it has done is in its partition's log.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rostra.model.ids import Partition
from rostra.wire.sinks import StagedPart

Outcome = Literal["pinned", "missing", "published", "dropped"]


class PinHandles(msgspec.Struct, frozen=True, array_like=True, tag="pin", gc=False):
    """Keep these parts until they are published or dropped. Answered by `pinned`, or `missing` if one is not there."""

    coordinator: Partition
    query: str
    batch: int
    commit: int
    partition: Partition
    parts: tuple[StagedPart, ...]


class PublishHandles(PinHandles, frozen=True, array_like=True, tag="publish", gc=False):
    """The batch is decided: publish these parts. Answered by `published`, also if they were published before."""


class DropHandles(PinHandles, frozen=True, array_like=True, tag="drop", gc=False):
    """These parts will not be published. Those that another commit pinned stay. Answered by `dropped`.

    `commit` 0: a writer aborts; parts that any commit pinned stay, and nobody waits for the answer.
    """


class HandlesAnswer(msgspec.Struct, frozen=True, array_like=True, tag="answer", gc=False):
    """To the coordinator; `outcome` is committed in the log of the partition."""

    coordinator: Partition
    query: str
    commit: int
    partition: Partition
    outcome: Outcome


HandlesRequest = PinHandles | PublishHandles | DropHandles
SinkMessage = HandlesRequest | HandlesAnswer

_messages: msgspec.msgpack.Decoder[SinkMessage] = msgspec.msgpack.Decoder(SinkMessage)


def encode_message(message: SinkMessage) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_message(body: bytes) -> SinkMessage:
    return _messages.decode(body)
