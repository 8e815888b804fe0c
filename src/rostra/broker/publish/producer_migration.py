"""Where every node orders records of its own: producers that come from another node, and what they left there."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from rostra.broker.api import BrokerEffect, Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.publish.migration_table import is_hidden
from rostra.broker.publish.producer_table import SEQUENCES, ProducerEntry
from rostra.broker.topics.topic_table import KnownTopic
from rostra.errors import RostraError, Unavailable, UnknownProducer
from rostra.fabric.api import AwaitCoverage, Buffer, PassOn, ProducerAdmitted, ProducerMigrated
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

GONE_REMEMBERED = 10_000


class ProducerLocation(NamedTuple):
    """What a producer has stored last, as far as this node knows: in which partition, and up to which offset."""

    entry: ProducerEntry
    served: ServedPartition
    end: int


class ProducerMigration:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[int, tuple[Conn, Publish]] = {}
        self._gone: OrderedDict[tuple[Partition, int], int] = OrderedDict()
        """Producers that are elsewhere by now, and by which move."""
        self._fences = Safeguard.BARRIER_AND_FENCE not in broker.without

    def waiting(self) -> bool:
        return bool(self._waiting)

    # --- coming --------------------------------------------------------------------------------------

    def holds(self, conn: Conn, served: ServedPartition, message: Publish, batch: bytearray) -> bool:
        """Whether the batch is not to be ordered now: its producer has just come, or has long gone."""
        broker = self._broker
        producer = producer_stamp(batch)[0]
        here = served.books.moves.number(producer)
        if message.moves < max(here, self._gone.get((served.partition, producer), 0)):
            error = Unavailable(served.topic, served.partition.index, "its producer has gone on to another node")
            broker.refuse(conn, message.request, error)
            return True
        if message.moves == here:
            return False
        # Not counted among what the connection waits for: what follows would be refused before this is judged.
        token = broker.next_token()
        self._waiting[token] = conn, message
        broker.ask_fabric(PassOn(token, served.partition, batch, message.acks, message.moves))
        return True

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token was one of these."""
        waiting = self._waiting.pop(token, None)
        if waiting is not None and self._broker.sessions.get(waiting[0]) is not None:
            self._broker.refuse(waiting[0], waiting[1].request, error)
        return waiting is not None

    def admitted(self, effect: ProducerAdmitted) -> None:
        """What the producer has stored anywhere is known: what follows on that is ordered here."""
        broker = self._broker
        conn, message = self._waiting.pop(effect.token)
        session = broker.sessions.get(conn)
        if session is None:
            return
        served = broker.catalogue.served.get(effect.partition)
        if served is not None:
            producer, epoch, sequence, count = producer_stamp(effect.batch)
            if served.books.moves.number(producer) < message.moves:
                known = self._known(served, producer)
                entry = known.entry if known is not None else None
                verdict = served.producers.judge_by(entry, producer, epoch, sequence, count)
                if entry is None and message.again and any(one.producers.forgot for one in self._siblings(served)):
                    # Perhaps it was one of those that were forgotten: to call it new might store it twice.
                    verdict = UnknownProducer(producer)
                error = verdict if isinstance(verdict, RostraError) else None
                error = error or self._note(served, message, known, effect.batch)
                if error is not None:
                    broker.refuse(conn, message.request, error)
                    return
        broker.requests.publish(conn, session, message, effect.batch)

    def _note(
        self, served: ServedPartition, message: Publish, known: ProducerLocation | None, batch: bytearray
    ) -> RostraError | None:
        producer, epoch, sequence, _ = producer_stamp(batch)
        before = max(sibling.books.moves.number(producer) for sibling in self._siblings(served))
        move = ProducerMove(producer, epoch, sequence, message.moves, known=before)
        if known is not None and known.entry.epoch == epoch:
            elsewhere = known.served is not served
            after = (known.served.partition.topic, known.end) if elsewhere else (0, 0)
            move = ProducerMove(producer, epoch, known.entry.expected, message.moves, *after, known=before)
        placed = self._broker.ordering.order(served, [move])
        return placed if isinstance(placed, RostraError) else None

    def _known(self, served: ServedPartition, producer: int) -> ProducerLocation | None:
        """What the last place that the producer is known to have come to has of it: what others have, that one knew."""
        siblings = self._siblings(served)
        last = max(sibling.books.moves.number(producer) for sibling in siblings)
        best: ProducerLocation | None = None
        for sibling in siblings:
            entry = sibling.producers.entry(producer)
            if entry is None or sibling.books.moves.number(producer) < last:
                continue
            if best is None or _is_further(entry, best.entry):
                best = ProducerLocation(entry, sibling, entry.latest[-1][2] + 1 if entry.latest else 0)
        return best

    def _siblings(self, served: ServedPartition) -> list[ServedPartition]:
        known = self._topic(served)
        return known.partitions if known is not None else [served]

    def _topic(self, served: ServedPartition) -> KnownTopic | None:
        return self._broker.catalogue.named(served.topic)

    def departed(self, effect: ProducerMigrated) -> None:
        place = effect.partition, effect.producer
        self._gone[place] = max(effect.moves, self._gone.get(place, 0))
        self._gone.move_to_end(place)
        if len(self._gone) > GONE_REMEMBERED:
            self._gone.popitem(last=False)

    def stored_elsewhere(self, served: ServedPartition, batch: bytearray) -> tuple[ServedPartition, int] | None:
        """Where a batch is that was stored before its producer came here, and its last offset."""
        producer, epoch, sequence, _ = producer_stamp(batch)
        for sibling in self._siblings(served):
            entry = sibling.producers.entry(producer)
            if sibling is served or entry is None or entry.epoch != epoch:
                continue
            for known, base, last in entry.latest:
                if known == sequence and not self._is_fenced(sibling, base, producer, epoch, sequence):
                    self._broker.ask_fabric(AwaitCoverage(sibling.partition, last + 1))
                    return sibling, last
        return None

    # --- what is shown -------------------------------------------------------------------------------

    def committed(self, served: ServedPartition, out: list[BrokerEffect]) -> None:
        """More is committed: perhaps what a move in another partition waits for."""
        for sibling in self._siblings(served):
            moves = sibling.books.moves
            if not moves.waiting:
                continue
            while moves.waiting and self._is_here(moves.waiting[0]):
                moves.waiting.popleft()
            sibling.hold = moves.waiting[0].at if moves.waiting else None
            if sibling is not served:
                self._broker.delivery.committed(sibling, out)

    def _is_here(self, move: ProducerMove) -> bool:
        before = self._broker.catalogue.served.get(Partition(TopicId(move.after), PartitionIndex(0)))
        return before is not None and before.commit >= move.after_offset

    def shown(self, served: ServedPartition, batches: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        """As subscribers get them: what was sent again elsewhere is marked."""
        moves = [sibling.books.moves for sibling in self._siblings(served) if len(sibling.books.moves)]
        if not moves or not self._fences:
            return batches
        later = {producer: rows for book in moves for producer, rows in book.items()}
        if not later:
            return batches
        shown: list[Buffer] = []
        for buffer in batches:
            at = 0
            while at < len(buffer):
                length = batch_length(buffer, at)
                whole = at == 0 and length == len(buffer)
                batch = buffer if whole else buffer[at : at + length]
                base, _, _, _, producer, epoch, sequence = PLACED.unpack_from(batch, 8)
                fenced = producer and self._is_fenced(served, base, producer, epoch, sequence)
                shown.append(self._suppressed(served, batch) if fenced else batch)
                at += length
        return tuple(shown)

    def _is_fenced(self, served: ServedPartition, base: int, producer: int, epoch: int, sequence: int) -> bool:
        number = served.books.moves.number_at(producer, base)
        everywhere = (sibling.books.moves.get(producer) or () for sibling in self._siblings(served))
        return is_hidden(chain.from_iterable(everywhere), number, epoch, sequence)

    def _suppressed(self, served: ServedPartition, batch: Buffer) -> Buffer:
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
