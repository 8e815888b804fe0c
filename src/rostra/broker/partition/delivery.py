"""Pushing committed batches to subscribers: from memory at the end of a partition, from the log behind it."""

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
    """Each reader has its own place and its own credit, so a slow one slows only itself."""

    def __init__(self, settings: BrokerSettings, read_now: Callable[[ServedPartition], None]) -> None:
        self._settings = settings
        self.read_now = read_now
        """Told of a partition when its first reader has come or its last one has gone."""
        self._readers: dict[Conn, dict[int, Reader]] = {}
        self._congested: set[Conn] = set()
        self._pushed: dict[Conn, int] = {}
        """Bytes since the connection was last known to have room."""
        self._reads: dict[Conn, int] = {}
        self._queued: dict[Conn, dict[int, Reader]] = {}
        """Readers that wait until fewer reads of their connection are under way, in the order in which they came."""
        self._asked: dict[int, Reader] = {}
        self._token = 0
        self.catch_up = CatchUpThrottle(settings.catch_up_bytes_per_s)
        self.roaming: ProducerMigration | None = None
        self._held: list[Reader] = []
        """Those who wait for their share of the disk."""

    # --- coming and going ---

    def count(self, conn: Conn) -> int:
        return len(self._readers.get(conn, ()))

    def has(self, conn: Conn, number: int) -> bool:
        return number in self._readers.get(conn, ())

    def open(
        self, conn: Conn, served: ServedPartition, asked: Subscribe, out: list[BrokerEffect]
    ) -> RostraError | None:
        """Begins a subscription; its answer comes when its start is known."""
        if asked.credit > self._settings.credit_bytes_max:
            return LimitExceeded("credit_bytes_max", self._settings.credit_bytes_max)
        reader = Reader(conn, asked.subscription, served, asked.credit, asked.request)
        # First of all: where nobody reads, it is said only now and then what is committed.
        self._register(reader)
        error = self._find_start(reader, asked, out)
        if error is not None:
            self.close(conn, asked.subscription)
        return error

    def _find_start(self, reader: Reader, asked: Subscribe, out: list[BrokerEffect]) -> RostraError | None:
        served = reader.partition
        match asked.start:
            case "earliest":
                reader.next = served.first
            case "latest":
                reader.next = served.commit
            case "offset":
                if served.blocked is not None and asked.value > served.commit:
                    # It had come further before the damage: to say that there never was so much would hide that.
                    return served.blocked
                # A new owner, or a replica, may know a lower commit than the reader has seen elsewhere: it waits. The
                # owner's log holds all that was ever committed; a replica's may still be short of it.
                if asked.value < served.first or (served.owner and asked.value > served.end):
                    return OffsetOutOfRange(served.topic, served.partition.index, asked.value, served.first, served.end)
                reader.next = asked.value
            case "last":
                count = min(asked.value, served.history_depth or asked.value, self._settings.history_max)
                out.append(FindLast(self._ask(reader), served.partition, count, served.commit))
                return None
            case "time":
                out.append(FindTime(self._ask(reader), served.partition, asked.value, served.commit))
                return None
        self._begin(reader, out)
        return None

    def located(self, token: int, offset: int, out: list[BrokerEffect]) -> None:
        reader = self._asked.pop(token, None)
        if reader is not None and self._lives(reader):
            reader.next = max(offset, reader.partition.first)
            self._begin(reader, out)

    def _register(self, reader: Reader) -> None:
        self._readers.setdefault(reader.conn, {})[reader.number] = reader
        readers = reader.partition.readers
        readers[reader.conn, reader.number] = reader
        if len(readers) == 1:
            self.read_now(reader.partition)

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
            self.read_now(reader.partition)
        return True

    def lose(self, conn: Conn) -> None:
        self._congested.discard(conn)
        self._pushed.pop(conn, None)
        self._reads.pop(conn, None)
        self._queued.pop(conn, None)
        for number in list(self._readers.get(conn, ())):
            self.close(conn, number)
        self._readers.pop(conn, None)

    def end(self, reader: Reader, error: RostraError, out: list[BrokerEffect]) -> None:
        """The node ends the subscription and says why; of one that was never answered, it refuses the request."""
        self.close(reader.conn, reader.number)
        code, carried = type(error).__name__, error.carried()
        said = Ended(reader.number, code, carried) if reader.ready else Failed(reader.request, code, carried)
        out.append(Reply(reader.conn, said))

    def _lives(self, reader: Reader) -> bool:
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
            # A subscription that was just ended by the node may still be granted credit: that is no fault.
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
        """Pushes what the reader has credit for; asks the log when its place is no longer in memory."""
        served, conn = reader.partition, reader.conn
        if conn in self._congested or reader.reading or not reader.ready:
            return
        shown = served.shown
        while reader.credit > 0 and reader.next < shown:
            if self._pushed.get(conn, 0) >= self._settings.burst_bytes_max:
                self._congested.add(conn)
                out.append(RequestDrain(conn))
                return
            # The last batch may overdraw the credit, which a batch larger than any credit needs; no further one may.
            bytes_max = min(reader.credit, self._settings.push_bytes_max)
            batches, following, size = served.tail.take(reader.next, shown, bytes_max)
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
        if self.roaming is not None:
            batches = self.roaming.shown(reader.partition, batches)
        out.append(PushTo(reader.conn, Push(reader.number, reader.partition.commit), batches))

    def _read(self, reader: Reader, out: list[BrokerEffect]) -> None:
        served = reader.partition
        if reader.next < served.first:
            error = OffsetOutOfRange(served.topic, served.partition.index, reader.next, served.first, served.commit)
            self.end(reader, error, out)
            return
        if reader.held:
            return
        reads = self._reads.get(reader.conn, 0)
        if reads >= self._settings.reads_per_connection_max:
            self._queued.setdefault(reader.conn, {})[reader.number] = reader
            return
        # Behind in a partition that is being published to, it is itself what the others would be slowed for.
        if self.catch_up.is_quiet(served.live_us) and not self.catch_up.allows():
            self._hold(reader, out)
            return
        self._reads[reader.conn] = reads + 1
        reader.reading = True
        token = self._ask(reader)
        bytes_max = min(reader.credit, self._settings.read_bytes_max)
        out.append(Read(token, served.partition, reader.next, served.shown, bytes_max))

    def _hold(self, reader: Reader, out: list[BrokerEffect]) -> None:
        if not self._held:
            out.append(SetTimer(CATCH_UP, self.catch_up.next_us))
        reader.held = True
        self._held.append(reader)

    def resume(self, out: list[BrokerEffect]) -> None:
        """The reads that waited may try again, in the order in which they came."""
        held, self._held = self._held, []
        for reader in held:
            reader.held = False
            if self._lives(reader):
                self.feed(reader, out)

    def read_done(self, token: int, batches: bytes, following: int, out: list[BrokerEffect]) -> bool:
        reader = self._asked.pop(token, None)
        if reader is None:
            return False
        self.catch_up.took(len(batches))
        if self._lives(reader) and batches:
            self._push(reader, (batches,), following, len(batches), out)
        self._read_over(reader, out)
        return True

    def _read_over(self, reader: Reader, out: list[BrokerEffect]) -> None:
        """Those of the connection that wait for their turn to read come before the one that just had it."""
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
            if self._lives(following):
                self.feed(following, out)
        if self._lives(reader):
            # Last, too, among those that are fed when the connection has room again: the first would have it all.
            readers = self._readers[conn]
            readers[reader.number] = readers.pop(reader.number)
            self.feed(reader, out)

    def read_failed(self, token: int, error: RostraError, out: list[BrokerEffect]) -> bool:
        reader = self._asked.pop(token, None)
        if reader is None:
            return False
        if self._lives(reader):
            served = reader.partition
            told = self._reason(reader, error)
            if not reader.ready or reader.next >= served.first:
                # Otherwise retention overtook it while the read was under way: feeding it again says so.
                self.end(reader, told, out)
        self._read_over(reader, out)
        return True

    def _reason(self, reader: Reader, error: RostraError) -> RostraError:
        """What to tell a reader that could not be served. A damaged log takes no more publishes either: a start would
        end it at the damage, and what was acknowledged behind it could not be read."""
        if not isinstance(error, CorruptLog):
            return error
        served = reader.partition
        damaged = PartitionDamaged(served.topic, served.partition.index, max(reader.next, served.first))
        if served.blocked is None:
            served.blocked = damaged
        return damaged

    def _ask(self, reader: Reader) -> int:
        # Odd tokens: the fabric's own reads have even ones, so the answers find their way back.
        self._token += 2
        token = self._token + 1
        self._asked[token] = reader
        return token
