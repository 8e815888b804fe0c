"""Delivery of committed batches to subscribers.

Each subscription to a partition is a `Reader` with its next offset and a credit in bytes. `feed` pushes batches while
there is credit, from one of two sources:

- The tail cache, in memory. Subscribers that keep up are served from it with every commit, and share the same buffers.
- The log on disk, for offsets that the cache no longer holds. One read is in progress per reader; when it completes,
  the reader is fed again, until it reaches the cache.

Four limits keep one slow reader from slowing others:

1. Credit, per subscription: granted by the client (`Credit`) as it consumes.
2. Congestion, per connection: after `burst_bytes_max` the broker emits `RequestDrain` and pushes nothing more until
   `ConnectionDrained`.
3. Reads, per connection: at most `reads_per_connection_max` at a time; further readers queue in order.
4. Disk bandwidth, per node: `CatchUpThrottle` holds back reads while other partitions commit.

Nothing above `ServedPartition.visible_end` is delivered. The node ends a subscription that it cannot serve any more
(retention passed it, ownership moved, damaged log) with `Ended`; the client subscribes again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rostra.broker.api import BrokerEffect, Conn, FindLast, FindTime, PushTo, Reply, RequestDrain
from rostra.broker.partition.catch_up import CatchUpThrottle
from rostra.broker.partition.served_partition import Reader, ServedPartition
from rostra.broker.settings import BrokerSettings
from rostra.errors import CorruptLog, LimitExceeded, OffsetOutOfRange, PartitionDamaged, RostraError
from rostra.fabric.api import Buffer, Read, SetTimer
from rostra.wire.messages import Ended, Failed, Push, Subscribe, Subscribed

if TYPE_CHECKING:
    from rostra.broker.publish.producer_migration import ProducerMigration

CATCH_UP = "broker/catch-up"


class Delivery:
    """Feeds the readers of a node. Each reader has its own position and credit."""

    def __init__(self, settings: BrokerSettings, readers_changed: Callable[[ServedPartition], None]) -> None:
        self._settings = settings
        self.readers_changed = readers_changed
        """Called when a partition gets its first reader or loses its last one."""
        self._readers: dict[Conn, dict[int, Reader]] = {}
        self._congested: set[Conn] = set()
        self._pushed: dict[Conn, int] = {}
        """Bytes pushed since the connection last drained."""
        self._reads: dict[Conn, int] = {}
        self._queued: dict[Conn, dict[int, Reader]] = {}
        """Readers that wait for another read of their connection to finish, in order of arrival."""
        self._pending: dict[int, Reader] = {}
        self._token = 0
        self.catch_up = CatchUpThrottle(settings.catch_up_bytes_per_s)
        self.producer_migration: ProducerMigration | None = None
        self._throttled: list[Reader] = []
        """Readers that wait for the catch-up throttle."""

    # --- subscriptions ---

    def count(self, conn: Conn) -> int:
        return len(self._readers.get(conn, ()))

    def has(self, conn: Conn, number: int) -> bool:
        return number in self._readers.get(conn, ())

    def open(
        self, conn: Conn, served: ServedPartition, message: Subscribe, out: list[BrokerEffect]
    ) -> RostraError | None:
        """Opens a subscription; the reply follows when its start offset is known."""
        if message.credit > self._settings.credit_bytes_max:
            return LimitExceeded("credit_bytes_max", self._settings.credit_bytes_max)
        reader = Reader(conn, message.subscription, served, message.credit, message.request)
        # Register first: a copy without readers learns of commits only now and then.
        self._register(reader)
        error = self._find_start(reader, message, out)
        if error is not None:
            self.close(conn, message.subscription)
        return error

    def _find_start(self, reader: Reader, message: Subscribe, out: list[BrokerEffect]) -> RostraError | None:
        served = reader.partition
        match message.start:
            case "earliest":
                reader.next = served.first
            case "latest":
                reader.next = served.commit
            case "offset":
                if served.blocked is not None and message.value > served.commit:
                    # The client had read beyond the damage: OffsetOutOfRange would hide it.
                    return served.blocked
                # A new owner or a replica may know a lower commit offset than the client has seen elsewhere: the reader
                # waits. The owner's log holds everything that was ever committed; a replica's may be shorter.
                if message.value < served.first or (served.owner and message.value > served.end):
                    return OffsetOutOfRange(
                        served.topic, served.partition.index, message.value, served.first, served.end
                    )
                reader.next = message.value
            case "last":
                count = min(message.value, served.history_depth or message.value, self._settings.history_max)
                out.append(FindLast(self._new_token(reader), served.partition, count, served.commit))
                return None
            case "time":
                out.append(FindTime(self._new_token(reader), served.partition, message.value, served.commit))
                return None
        self._begin(reader, out)
        return None

    def offset_found(self, token: int, offset: int, out: list[BrokerEffect]) -> None:
        reader = self._pending.pop(token, None)
        if reader is not None and self._is_open(reader):
            reader.next = max(offset, reader.partition.first)
            self._begin(reader, out)

    def _register(self, reader: Reader) -> None:
        self._readers.setdefault(reader.conn, {})[reader.number] = reader
        readers = reader.partition.readers
        readers[reader.conn, reader.number] = reader
        if len(readers) == 1:
            self.readers_changed(reader.partition)

    def _begin(self, reader: Reader, out: list[BrokerEffect]) -> None:
        reader.ready = True
        out.append(Reply(reader.conn, Subscribed(reader.request, reader.number, reader.next, reader.partition.commit)))
        self.feed(reader, out)

    def close(self, conn: Conn, number: int) -> bool:
        """True if there was such a subscription: nothing is pushed to it from now on."""
        reader = self._readers.get(conn, {}).pop(number, None)
        if reader is None:
            return False
        readers = reader.partition.readers
        del readers[conn, number]
        if not readers:
            self.readers_changed(reader.partition)
        return True

    def connection_lost(self, conn: Conn) -> None:
        self._congested.discard(conn)
        self._pushed.pop(conn, None)
        self._reads.pop(conn, None)
        self._queued.pop(conn, None)
        for number in list(self._readers.get(conn, ())):
            self.close(conn, number)
        self._readers.pop(conn, None)

    def end(self, reader: Reader, error: RostraError, out: list[BrokerEffect]) -> None:
        """Ends the subscription with an error, or refuses its request if that was not answered yet."""
        self.close(reader.conn, reader.number)
        code, carried = type(error).__name__, error.carried()
        answer = Ended(reader.number, code, carried) if reader.ready else Failed(reader.request, code, carried)
        out.append(Reply(reader.conn, answer))

    def _is_open(self, reader: Reader) -> bool:
        return self._readers.get(reader.conn, {}).get(reader.number) is reader

    # --- feeding ---

    def committed(self, served: ServedPartition, out: list[BrokerEffect]) -> None:
        catch_up = self.catch_up
        served.live_us = catch_up.live_us = catch_up.now_us
        catch_up.live_bytes += served.uncounted_bytes
        served.uncounted_bytes = 0
        if served.readers:
            for reader in list(served.readers.values()):
                self.feed(reader, out)

    def credit(self, conn: Conn, number: int, credit: int, out: list[BrokerEffect]) -> None:
        reader = self._readers.get(conn, {}).get(number)
        if reader is not None:
            # The node may just have ended the subscription: credit for it is no violation.
            reader.credit = min(reader.credit + credit, self._settings.credit_bytes_max)
            self.feed(reader, out)

    def is_congested(self, conn: Conn) -> bool:
        return conn in self._congested

    def congest(self, conn: Conn) -> None:
        self._congested.add(conn)

    def drain(self, conn: Conn, out: list[BrokerEffect]) -> None:
        self._congested.discard(conn)
        self._pushed.pop(conn, None)
        self._feed_all(conn, out)

    def _feed_all(self, conn: Conn, out: list[BrokerEffect]) -> None:
        for reader in list(self._readers.get(conn, {}).values()):
            self.feed(reader, out)

    def feed(self, reader: Reader, out: list[BrokerEffect]) -> None:
        """Pushes what the reader has credit for; reads from the log if its offset is no longer in memory."""
        served, conn = reader.partition, reader.conn
        if conn in self._congested or reader.reading or not reader.ready:
            return
        visible_end = served.visible_end
        while reader.credit > 0 and reader.next < visible_end:
            if self._pushed.get(conn, 0) >= self._settings.burst_bytes_max:
                self._congested.add(conn)
                out.append(RequestDrain(conn))
                return
            # The last batch may overdraw the credit, since a batch may be larger than any credit.
            bytes_max = min(reader.credit, self._settings.push_bytes_max)
            batches, following, size = served.tail.take(reader.next, visible_end, bytes_max)
            if not batches:
                self._read(reader, out)
                return
            self._push(reader, batches, following, size, out)

    def _push(
        self, reader: Reader, batches: tuple[Buffer, ...], following: int, size: int, out: list[BrokerEffect]
    ) -> None:
        reader.next = following
        reader.credit -= size
        self._pushed[reader.conn] = self._pushed.get(reader.conn, 0) + size
        if self.producer_migration is not None:
            batches = self.producer_migration.marked(reader.partition, batches)
        out.append(PushTo(reader.conn, Push(reader.number, reader.partition.commit), batches))

    def _read(self, reader: Reader, out: list[BrokerEffect]) -> None:
        served = reader.partition
        if reader.next < served.first:
            error = OffsetOutOfRange(served.topic, served.partition.index, reader.next, served.first, served.commit)
            self.end(reader, error, out)
            return
        if reader.throttled:
            return
        reads = self._reads.get(reader.conn, 0)
        if reads >= self._settings.reads_per_connection_max:
            self._queued.setdefault(reader.conn, {})[reader.number] = reader
            return
        # A reader that is behind in a partition with live traffic is not throttled: its own partition causes the load.
        if self.catch_up.is_quiet(served.live_us) and not self.catch_up.allows():
            self._throttle(reader, out)
            return
        self._reads[reader.conn] = reads + 1
        reader.reading = True
        token = self._new_token(reader)
        bytes_max = min(reader.credit, self._settings.read_bytes_max)
        out.append(Read(token, served.partition, reader.next, served.visible_end, bytes_max))

    def _throttle(self, reader: Reader, out: list[BrokerEffect]) -> None:
        if not self._throttled:
            out.append(SetTimer(CATCH_UP, self.catch_up.next_us))
        reader.throttled = True
        self._throttled.append(reader)

    def resume(self, out: list[BrokerEffect]) -> None:
        """Throttled readers try again, in order of arrival."""
        throttled, self._throttled = self._throttled, []
        for reader in throttled:
            reader.throttled = False
            if self._is_open(reader):
                self.feed(reader, out)

    def read_done(self, token: int, batches: bytes, following: int, out: list[BrokerEffect]) -> bool:
        reader = self._pending.pop(token, None)
        if reader is None:
            return False
        self.catch_up.charge(len(batches))
        if self._is_open(reader) and batches:
            self._push(reader, (batches,), following, len(batches), out)
        self._read_finished(reader, out)
        return True

    def _read_finished(self, reader: Reader, out: list[BrokerEffect]) -> None:
        """Queued readers of the connection go before the one that just read."""
        conn = reader.conn
        if reader.reading and conn in self._reads:
            self._reads[conn] -= 1
        reader.reading = False
        queued = self._queued.get(conn)
        while (
            queued
            and conn not in self._congested
            and self._reads.get(conn, 0) < self._settings.reads_per_connection_max
        ):
            following = queued.pop(next(iter(queued)))
            if self._is_open(following):
                self.feed(following, out)
        if self._is_open(reader):
            # Last in the drain order too: the first reader fed would use up the whole budget.
            readers = self._readers[conn]
            readers[reader.number] = readers.pop(reader.number)
            self.feed(reader, out)

    def read_failed(self, token: int, error: RostraError, out: list[BrokerEffect]) -> bool:
        reader = self._pending.pop(token, None)
        if reader is None:
            return False
        if self._is_open(reader):
            served = reader.partition
            reason = self._reader_error(reader, error)
            if not reader.ready or reader.next >= served.first:
                # Otherwise retention passed it during the read: feeding it again reports that.
                self.end(reader, reason, out)
        self._read_finished(reader, out)
        return True

    def _reader_error(self, reader: Reader, error: RostraError) -> RostraError:
        """The error for a reader that cannot be served. A damaged log accepts no more publishes either: a restart would
        truncate it at the damage, and acknowledged records after it could not be read."""
        if not isinstance(error, CorruptLog):
            return error
        served = reader.partition
        damaged = PartitionDamaged(served.topic, served.partition.index, max(reader.next, served.first))
        if served.blocked is None:
            served.blocked = damaged
        return damaged

    def _new_token(self, reader: Reader) -> int:
        # Odd tokens: the fabric's reads have even ones.
        self._token += 2
        token = self._token + 1
        self._pending[token] = reader
        return token
