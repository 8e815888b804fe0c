"""Messages of exactly-once sinks: a query stages batches invisibly, then commits or aborts them as one numbered batch.

A *query* is a writer that numbers its batches: 0, 1, 2, … Its tasks send `StageBatch` to the owners of the partitions
they write to. Nothing staged is delivered. `CommitSink` goes to the *sink coordinator* of the query, the owner of its
partition of the internal topic `_sinks` (`FindCoordinator` says where that is). It decides the batch once: either
everything that the message names is published, in every partition, or nothing is.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from rostra.wire.fields import Count, Id, Index, Message, Request, Text

STAGED_PARTS_MAX = 10_000
"""Staged batches in one commit."""


class StagedPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A staged batch: where it is, the handle under which its task staged it, and what it holds.

    `checksum` is the body CRC of the batch, so that a commit publishes what its task wrote.
    """

    topic: Id
    partition: Index
    handle: Id
    records: Count
    checksum: Annotated[int, Meta(ge=0, le=2**32 - 1)]


StagedParts = Annotated[tuple[StagedPart, ...], Meta(max_length=STAGED_PARTS_MAX)]


class StageBatch(Message, frozen=True, array_like=True):
    """Stores the payload, one batch, invisibly, under a handle that the client draws at random.

    `Agreed` when it is committed, also if the handle is stored already. A batch of a query that is published is not
    stored again: its commit is answered from the decision.
    """

    kind: ClassVar[int] = 64
    payload: ClassVar[bool] = True
    request: Request
    topic: Id
    partition: Index
    query: Text
    batch: Count
    task: Index
    attempt: Count
    handle: Id


class CommitSink(Message, frozen=True, array_like=True):
    """Decides batch `batch` of the query: publishes these parts. Answered by `SinkCommitted` when all is published.

    The first batch of a query may have any number; then each follows the one before (`SinkOutOfOrder`). A number that
    is decided already is answered from that decision, whatever parts come with it. `StagingLost` if a part is missing:
    then nothing is published. `writer` tells apart queries that use the same name: another one may only continue.
    `once`: the query consists of this batch, and is forgotten some time after it.
    """

    kind: ClassVar[int] = 65
    request: Request
    query: Text
    batch: Count
    parts: StagedParts
    writer: Text = ""
    once: bool = False


class AbortSink(Message, frozen=True, array_like=True):
    """Drops these staged parts, unless a commit of them has begun. `Agreed` at once: what is left expires anyway."""

    kind: ClassVar[int] = 66
    request: Request
    query: Text
    batch: Count
    parts: StagedParts


class SinkCommitted(Message, frozen=True, array_like=True):
    """The batch is published. `repeated`: it was decided by an earlier request, with the parts of that one."""

    kind: ClassVar[int] = 67
    request: Request
    decided: Count
    repeated: bool = False
