"""What goes into a broker and what comes out: the whole of a node, seen from its two drivers.

A driver gives `Broker.step(now, input)` one input at a time and carries out the effects in order, without waiting
between them. `runtime` does so with sockets and disks, `simulator` with virtual ones.
"""

from __future__ import annotations

from rostra.errors import RostraError
from rostra.fabric.api import (
    Append,
    Buffer,
    Connect,
    Disconnect,
    Drop,
    FabricEffect,
    LogLine,
    Open,
    PeerLost,
    PeerMet,
    PeerReceived,
    Persist,
    Read,
    ReadDone,
    ReadFailed,
    Recovered,
    Send,
    SetTimer,
    Sync,
    Synced,
    TimerFired,
    Trim,
    Truncate,
    Value,
    WriteFailed,
)
from rostra.model.ids import Partition
from rostra.wire.messages import ClientMessage, NodeMessage

Conn = int
"""A connection, numbered by the driver; never used again after it was lost."""


class ProducerStamp(Value, frozen=True, array_like=True):
    """Who wrote the batch at `base` to `last`, and its place in that producer's sequence."""

    base: int
    last: int
    producer: int
    epoch: int
    sequence: int
    count: int


class RecoveredLog(Value, frozen=True):
    """A partition's log as found on disk, with what the broker needs to rebuild its state.

    `checkpoint` is the record of the last segment's checkpoint batch, which stands at `checkpoint_at`; `stamps` are of
    the batches behind it, `controls` are those of the broker's own, (base, batch), that change its books.
    `segment_bytes` is the size of the active segment.
    """

    log: Recovered
    checkpoint: bytes | None
    stamps: tuple[ProducerStamp, ...]
    segment_bytes: int
    bytes: int
    controls: tuple[tuple[int, Buffer], ...] = ()
    checkpoint_at: int = 0


# --- inputs ----------------------------------------------------------------------------------------


class Boot(Value, frozen=True):
    """The first input: what the disk had."""

    hard: dict[str, bytes]
    logs: tuple[RecoveredLog, ...]


class ConnectionAccepted(Value, frozen=True):
    conn: Conn


class MessageReceived(Value, frozen=True):
    conn: Conn
    message: ClientMessage
    payload: bytearray | None = None


class ConnectionLost(Value, frozen=True):
    """The connection is gone."""

    conn: Conn


class ConnectionCongested(Value, frozen=True):
    """The connection's send buffer is full: push nothing more to it until `ConnectionDrained`."""

    conn: Conn


class ConnectionDrained(Value, frozen=True):
    conn: Conn


class Persisted(Value, frozen=True):
    """A `Persist` is durable: now its `then`."""

    then: tuple[FabricEffect, ...]


class SyncedTogether(Value, frozen=True):
    """As these one after the other. Where thousands of partitions are written to, most of a step is its beginning."""

    syncs: tuple[Synced, ...]


class SyncFailed(Value, frozen=True):
    """An fsync failed: nothing is acknowledged until the node is started anew."""

    error: RostraError


class OffsetFound(Value, frozen=True):
    """The answer to `FindLast` and `FindTime`: the offset at which what was sought begins."""

    token: int
    offset: int


class SegmentsListed(Value, frozen=True):
    """The answer to `ListSegments`: closed segments, oldest first, for retention."""

    partition: Partition
    segments: tuple[ClosedSegment, ...]
    active_bytes: int = 0
    """Of the segment behind them."""


class ClosedSegment(Value, frozen=True):
    """`next` is the first offset of the segment behind it."""

    first: int
    next: int
    bytes: int
    max_us: int


class LogInspected(Value, frozen=True):
    """The answer to `InspectLog`: the log as it was while it had this generation, or why it could not be looked at."""

    partition: Partition
    generation: int
    log: RecoveredLog | RostraError


class Compacted(Value, frozen=True):
    """The answer to `Compact`: it is done, as far as the disk let it, and took so many bytes from the log."""

    partition: Partition
    bytes: int


class Stop(Value, frozen=True):
    """Finish what is under way, then say `Stopped`."""


BrokerInput = (
    Boot
    | ConnectionAccepted
    | MessageReceived
    | ConnectionLost
    | ConnectionCongested
    | ConnectionDrained
    | Persisted
    | Synced
    | SyncedTogether
    | SyncFailed
    | WriteFailed
    | ReadDone
    | ReadFailed
    | OffsetFound
    | SegmentsListed
    | LogInspected
    | Compacted
    | TimerFired
    | PeerReceived
    | PeerMet
    | PeerLost
    | Stop
)

# --- effects ---------------------------------------------------------------------------------------


class Reply(Value, frozen=True):
    conn: Conn
    message: NodeMessage


class PushTo(Value, frozen=True):
    """A `Push` with its batches, which are shared: nobody changes them any more."""

    conn: Conn
    message: NodeMessage
    batches: tuple[Buffer, ...]


class CloseConnection(Value, frozen=True):
    """Send what is queued, then close; answered by `ConnectionLost`. `violation` names the rule that was broken."""

    conn: Conn
    reason: str
    violation: str = ""


class RequestDrain(Value, frozen=True):
    """So much was pushed to the connection that no more follows before the driver says `ConnectionDrained`."""

    conn: Conn


class Greeted(Value, frozen=True):
    """The client said Hello: the driver may read larger frames from it."""

    conn: Conn


class FindLast(Value, frozen=True):
    """Where do the last `count` records below `end` begin (control batches do not count)? Answered by `OffsetFound`."""

    token: int
    partition: Partition
    count: int
    end: int


class FindTime(Value, frozen=True):
    """Find the first record below `end` that is not earlier. Answered by `OffsetFound`: `end` if there is none."""

    token: int
    partition: Partition
    timestamp_us: int
    end: int


class ListSegments(Value, frozen=True):
    """Which closed segments are there? Answered by `SegmentsListed`."""

    partition: Partition


class InspectLog(Value, frozen=True):
    """What does a start find in the partition's log now? Answered by `LogInspected`.

    Asked when the log was cut below the checkpoint that the books were restored from: they cannot be undone so far.
    """

    partition: Partition


class Compact(Value, frozen=True):
    """Keep only the latest record of each key, in sealed segments below the offset; answered by `Compacted`.

    It takes its time, and the log goes on meanwhile.
    """

    partition: Partition
    below: int
    tombstones_us: int


class Listen(Value, frozen=True):
    """The node serves from now on."""


class Stopped(Value, frozen=True):
    """Nothing is under way any more: the driver may close the log and leave."""


BrokerEffect = (
    Open
    | Drop
    | Append
    | Truncate
    | Trim
    | Sync
    | Read
    | FindLast
    | FindTime
    | ListSegments
    | InspectLog
    | Compact
    | Persist
    | Send
    | Connect
    | Disconnect
    | SetTimer
    | LogLine
    | Reply
    | PushTo
    | RequestDrain
    | CloseConnection
    | Greeted
    | Listen
    | Stopped
)
