"""Inputs and effects of a broker: the interface between a node's state machine and its two drivers.

A driver passes one input at a time to `Broker.step(now, input)` and carries out the effects in order, without waiting
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
    PeerIdentified,
    PeerLost,
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
"""A connection, numbered by the driver; never reused."""


class ProducerStamp(Value, frozen=True, array_like=True):
    """Producer and sequence of the batch from `base` to `last`."""

    base: int
    last: int
    producer: int
    epoch: int
    sequence: int
    count: int


class RecoveredLog(Value, frozen=True):
    """A partition's log as found on disk, with what the broker needs to rebuild its state.

    `checkpoint` is the record of the last segment's checkpoint batch, at offset `checkpoint_at`; `stamps` describe the
    batches after it; `controls` are the broker's own batches among them, (base, batch), which change the derived state.
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
    """The first input: the state found on disk."""

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
    """A `Persist` is durable: carry out its `then`."""

    then: tuple[FabricEffect, ...]


class SyncedTogether(Value, frozen=True):
    """Several `Synced` at once, handled in order. Saves the fixed cost of a step where thousands of partitions are
    written to."""

    syncs: tuple[Synced, ...]


class SyncFailed(Value, frozen=True):
    """An fsync failed: nothing is acknowledged until the node restarts."""

    error: RostraError


class OffsetFound(Value, frozen=True):
    """Answers `FindLast` and `FindTime`: the first offset of the records that were looked for."""

    token: int
    offset: int


class SegmentsListed(Value, frozen=True):
    """Answers `ListSegments`: closed segments, oldest first."""

    partition: Partition
    segments: tuple[ClosedSegment, ...]
    active_bytes: int = 0
    """Size of the active segment after them."""
    active_since_us: int | None = None
    """About the earliest timestamp in the active segment; None if it has no records."""


class ClosedSegment(Value, frozen=True):
    """`next` is the first offset of the following segment."""

    first: int
    next: int
    bytes: int
    max_us: int


class LogInspected(Value, frozen=True):
    """Answers `InspectLog`: the log as it was at this generation, or why it could not be read."""

    partition: Partition
    generation: int
    log: RecoveredLog | RostraError


class Compacted(Value, frozen=True):
    """Answers `Compact`: how many bytes it removed from the log."""

    partition: Partition
    bytes: int


class Stop(Value, frozen=True):
    """Finish pending work, then emit `Stopped`."""


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
    | PeerIdentified
    | PeerLost
    | Stop
)

# --- effects ---------------------------------------------------------------------------------------


class Reply(Value, frozen=True):
    conn: Conn
    message: NodeMessage


class PushTo(Value, frozen=True):
    """A `Push` with its batches. The buffers are shared and immutable from here on."""

    conn: Conn
    message: NodeMessage
    batches: tuple[Buffer, ...]


class CloseConnection(Value, frozen=True):
    """Send what is queued, then close; answered by `ConnectionLost`. `violation` names the protocol rule that the
    client broke."""

    conn: Conn
    reason: str
    violation: str = ""


class RequestDrain(Value, frozen=True):
    """The push budget of the connection is used up: the driver answers `ConnectionDrained` when its send buffer is
    empty."""

    conn: Conn


class Greeted(Value, frozen=True):
    """The client sent Hello: the driver may accept larger frames from it."""

    conn: Conn


class FindLast(Value, frozen=True):
    """Find the offset at which the last `count` records below `end` begin, not counting control batches. Answered by
    `OffsetFound`."""

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
    """List the closed segments. Answered by `SegmentsListed`."""

    partition: Partition


class InspectLog(Value, frozen=True):
    """Read from the partition's log what a start would recover. Answered by `LogInspected`.

    Needed when the log was truncated below the checkpoint that the derived state was restored from, which cannot be
    undone.
    """

    partition: Partition


class Compact(Value, frozen=True):
    """Keep only the latest record of each key in closed segments below the offset; answered by `Compacted`.

    Runs in the background while the log is written to.
    """

    partition: Partition
    below: int
    tombstones_us: int


class Listen(Value, frozen=True):
    """Recovery is complete: accept clients."""


class Stopped(Value, frozen=True):
    """Nothing is pending: the driver may close the log and exit."""


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
