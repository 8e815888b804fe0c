"""Producers that move from one node to another, in fabrics where every node orders its own records.

In such a fabric (`Order.ORIGIN`, see `fabric/flood`) each node has one partition of every topic and orders what its
clients publish. A producer whose node fails reconnects to another node and resends what was not acknowledged. Its
records then lie in two partitions, and a batch may be in both. Order per producer and deduplication need three
mechanisms:

1. Barrier. A producer counts its moves and sends the count with each publish. When the count rises, `defers` holds the
   batch back and asks the fabric to collect what the other nodes know of the producer (`Forward` with `moves`);
   `ProducerAdmitted` follows. Then the batch is checked against the producer's furthest position in any partition of
   the topic.
2. Log entry. The new node appends a `ProducerMove` before the first batch: the move's number, the sequence it continues
   with, and the end of the producer's records in the partition before. Delivery of the new partition stops at the move
   (`ServedPartition.held_from`) until the earlier records are committed on this node (`committed`).
3. Fence. Records of the old partition may surface later, after the producer has already resent them. `MigrationTable`
   and `is_superseded` recognise them; they stay in the log, and `marked` flags them `REPEATED`, so that clients drop
   them. A batch that arrives at a node from which its producer has moved on is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from rostra.broker.api import BrokerEffect, Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.publish.migration_table import is_superseded
from rostra.broker.publish.producer_table import SEQUENCES, ProducerEntry
from rostra.broker.topics.topic_table import KnownTopic
from rostra.errors import RostraError, Unavailable, UnknownProducer
from rostra.fabric.api import AwaitCoverage, Buffer, Forward, ProducerAdmitted, ProducerMigrated
from rostra.model.batch import (
    PLACED,
    OwnerFlag,
    batch_length,
    producer_stamp,
    stamp,
)
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.model.producer_move import ProducerMove
from rostra.safeguards import Safeguard
from rostra.wire.messages import Publish

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

MIGRATED_MAX = 10_000
"""Producers that are remembered as moved on."""


class ProducerLocation(NamedTuple):
    """The last records of a producer that this node knows of: their partition and end offset."""

    entry: ProducerEntry
    served: ServedPartition
    end: int


class ProducerMigration:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[int, tuple[Conn, Publish]] = {}
        self._migrated_away: OrderedDict[tuple[Partition, int], int] = OrderedDict()
        """Producers that have moved to another node, with the number of that move."""
        self._fences = Safeguard.BARRIER_AND_FENCE not in broker.without

    def waiting(self) -> bool:
        return bool(self._waiting)

    # --- arriving producers -------------------------------------------------------------------------

    def defers(self, conn: Conn, served: ServedPartition, message: Publish, batch: bytearray) -> bool:
        """Whether the batch must not be ordered now: its producer has just moved here, or has moved on."""
        broker = self._broker
        producer = producer_stamp(batch)[0]
        here = served.derived.migrations.latest_move(producer)
        if message.moves < max(here, self._migrated_away.get((served.partition, producer), 0)):
            error = Unavailable(served.topic, served.partition.index, "its producer has moved to another node")
            broker.refuse(conn, message.request, error)
            return True
        if message.moves == here:
            return False
        # Does not count as a pending request of the connection: the batches after it would be refused first.
        token = broker.next_token()
        self._waiting[token] = conn, message
        broker.step_fabric(Forward(token, served.partition, batch, message.acks, message.moves))
        return True

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token belongs to a deferred batch."""
        waiting = self._waiting.pop(token, None)
        if waiting is not None and self._broker.sessions.get(waiting[0]) is not None:
            self._broker.refuse(waiting[0], waiting[1].request, error)
        return waiting is not None

    def admitted(self, effect: ProducerAdmitted) -> None:
        """The producer's records on other nodes are known: logs the move and orders the deferred batch."""
        broker = self._broker
        conn, message = self._waiting.pop(effect.token)
        session = broker.sessions.get(conn)
        if session is None:
            return
        served = broker.topic_table.served.get(effect.partition)
        if served is not None:
            producer, epoch, sequence, count = producer_stamp(effect.batch)
            if served.derived.migrations.latest_move(producer) < message.moves:
                known = self._last_location(served, producer)
                entry = known.entry if known is not None else None
                verdict = served.producers.check_against(entry, producer, epoch, sequence, count)
                if entry is None and message.again and any(one.producers.forgot for one in self._siblings(served)):
                    # It may be a repeat of an evicted producer: to call it new might store it twice.
                    verdict = UnknownProducer(producer)
                error = verdict if isinstance(verdict, RostraError) else None
                error = error or self._log_move(served, message, known, effect.batch)
                if error is not None:
                    broker.refuse(conn, message.request, error)
                    return
        broker.client_requests.publish(conn, session, message, effect.batch)

    def _log_move(
        self, served: ServedPartition, message: Publish, known: ProducerLocation | None, batch: bytearray
    ) -> RostraError | None:
        producer, epoch, sequence, _ = producer_stamp(batch)
        before = max(sibling.derived.migrations.latest_move(producer) for sibling in self._siblings(served))
        move = ProducerMove(producer, epoch, sequence, message.moves, known=before)
        if known is not None and known.entry.epoch == epoch:
            elsewhere = known.served is not served
            after = (known.served.partition.topic, known.end) if elsewhere else (0, 0)
            move = ProducerMove(producer, epoch, known.entry.expected, message.moves, *after, known=before)
        placed = self._broker.proposer.append_control(served, [move])
        return placed if isinstance(placed, RostraError) else None

    def _last_location(self, served: ServedPartition, producer: int) -> ProducerLocation | None:
        """The producer's records in the partition of its latest known move, which knew of all earlier ones."""
        siblings = self._siblings(served)
        last = max(sibling.derived.migrations.latest_move(producer) for sibling in siblings)
        best: ProducerLocation | None = None
        for sibling in siblings:
            entry = sibling.producers.entry(producer)
            if entry is None or sibling.derived.migrations.latest_move(producer) < last:
                continue
            if best is None or _is_further(entry, best.entry):
                best = ProducerLocation(entry, sibling, entry.latest[-1][2] + 1 if entry.latest else 0)
        return best

    def _siblings(self, served: ServedPartition) -> list[ServedPartition]:
        known = self._topic(served)
        return known.partitions if known is not None else [served]

    def _topic(self, served: ServedPartition) -> KnownTopic | None:
        return self._broker.topic_table.by_name(served.topic)

    def migrated(self, effect: ProducerMigrated) -> None:
        """The producer has moved to another node: refuse its late batches."""
        place = effect.partition, effect.producer
        self._migrated_away[place] = max(effect.moves, self._migrated_away.get(place, 0))
        self._migrated_away.move_to_end(place)
        if len(self._migrated_away) > MIGRATED_MAX:
            self._migrated_away.popitem(last=False)

    def stored_elsewhere(self, served: ServedPartition, batch: bytearray) -> tuple[ServedPartition, int] | None:
        """The partition and last offset of a batch that was stored before its producer moved here."""
        producer, epoch, sequence, _ = producer_stamp(batch)
        for sibling in self._siblings(served):
            entry = sibling.producers.entry(producer)
            if sibling is served or entry is None or entry.epoch != epoch:
                continue
            for known, base, last in entry.latest:
                if known == sequence and not self._is_superseded(sibling, base, producer, epoch, sequence):
                    self._broker.step_fabric(AwaitCoverage(sibling.partition, last + 1))
                    return sibling, last
        return None

    # --- what is marked -------------------------------------------------------------------------------

    def committed(self, served: ServedPartition, out: list[BrokerEffect]) -> None:
        """Resumes delivery of partitions that waited for this commit."""
        for sibling in self._siblings(served):
            moves = sibling.derived.migrations
            if not moves.waiting:
                continue
            while moves.waiting and self._predecessor_is_committed(moves.waiting[0]):
                moves.waiting.popleft()
            sibling.held_from = moves.waiting[0].at if moves.waiting else None
            if sibling is not served:
                self._broker.delivery.committed(sibling, out)

    def _predecessor_is_committed(self, move: ProducerMove) -> bool:
        before = self._broker.topic_table.served.get(Partition(TopicId(move.after), PartitionIndex(0)))
        return before is not None and before.commit >= move.after_offset

    def marked(self, served: ServedPartition, batches: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        """The batches as subscribers get them: superseded ones are flagged as repeated."""
        moves = [sibling.derived.migrations for sibling in self._siblings(served) if len(sibling.derived.migrations)]
        if not moves or not self._fences:
            return batches
        all_moves = {producer: rows for table in moves for producer, rows in table.items()}
        if not all_moves:
            return batches
        marked: list[Buffer] = []
        for buffer in batches:
            at = 0
            while at < len(buffer):
                length = batch_length(buffer, at)
                whole = at == 0 and length == len(buffer)
                batch = buffer if whole else buffer[at : at + length]
                base, _, _, _, producer, epoch, sequence = PLACED.unpack_from(batch, 8)
                fenced = producer and self._is_superseded(served, base, producer, epoch, sequence)
                marked.append(self._marked_repeated(served, batch) if fenced else batch)
                at += length
        return tuple(marked)

    def _is_superseded(self, served: ServedPartition, base: int, producer: int, epoch: int, sequence: int) -> bool:
        number = served.derived.migrations.move_at(producer, base)
        everywhere = (sibling.derived.migrations.get(producer) or () for sibling in self._siblings(served))
        return is_superseded(chain.from_iterable(everywhere), number, epoch, sequence)

    def _marked_repeated(self, served: ServedPartition, batch: Buffer) -> Buffer:
        copy = bytearray(batch)
        base, epoch, delta, flags, *_ = PLACED.unpack_from(copy, 8)
        stamp(
            copy,
            partition=served.partition,
            base_offset=base,
            owner_epoch=epoch,
            owner_flags=flags | OwnerFlag.REPEATED,
            last_offset_delta=delta,
        )
        return copy


def _is_further(one: ProducerEntry, other: ProducerEntry) -> bool:
    if one.epoch != other.epoch:
        return one.epoch > other.epoch
    return 0 < (one.expected - other.expected) % SEQUENCES < SEQUENCES >> 1
