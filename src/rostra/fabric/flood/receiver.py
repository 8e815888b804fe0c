"""The receiving end of a link: stores records that continue the local log, and answers others with a gap.

Records below this broker's vector are duplicates: neither stored, delivered nor forwarded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rostra.errors import BatchRejected, DiskUntrusted, PeerViolation
from rostra.fabric.api import Append, Broken, Drop, LogLine, Open, Persist, Send, Sync
from rostra.fabric.flood.ack_ring import AckRing
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, HaveUpTo, LinkOpening, Offer, Records, Vector
from rostra.fabric.flood.origin_partition import OriginLog, VectorEntry
from rostra.fabric.flood.producer_barriers import ProducerBarriers
from rostra.fabric.flood.ring import Ring
from rostra.fabric.flood.ring_links import RingLinks
from rostra.fabric.flood.topics import FloodTopics
from rostra.model.batch import base_offset, last_offset
from rostra.model.check import check_stored
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard

DAMAGED = "flood/damaged"
"""Hard state key: the topic whose own partition was found damaged, until a new incarnation has started."""


class IncomingBatch(NamedTuple):
    batch: bytearray
    base: int
    end: int


class Receiver:
    def __init__(
        self,
        context: FloodContext,
        ring: Ring,
        topics: FloodTopics,
        links: RingLinks,
        ack_ring: AckRing,
        barriers: ProducerBarriers,
    ) -> None:
        self._context = context
        self._ring = ring
        self._topics = topics
        self._links = links
        self._ack_ring = ack_ring
        self._barriers = barriers
        self._senders: dict[NodeId, int] = {}
        """The link numbers of the brokers that forward records to this one."""
        self._dedups = Safeguard.DEDUP_BY_VECTOR not in context.without
        self._refused_writes: dict[Partition, int] = {}
        """Ends of partitions for which the disk refused records that the sender believes stored."""
        self._reported_us = 0

    def link_opened(self, peer: NodeId, message: LinkOpening) -> None:
        context = self._context
        self._senders[peer] = message.link
        entries = self._topics.vector()
        count = max(1, -(-len(entries) // ENTRIES_PER_MESSAGE))
        for index in range(count):
            origin_partition = tuple(entries[index * ENTRIES_PER_MESSAGE : (index + 1) * ENTRIES_PER_MESSAGE])
            context.out.append(Send(peer, Vector(message.link, index, count, origin_partition)))

    def offered(self, peer: NodeId, message: Offer) -> None:
        context = self._context
        for origin_partition in message.partitions:
            if origin_partition.local:
                raise PeerViolation("offer", "an internal partition")
            log = context.logs.get(origin_partition.partition)
            if log is not None and log.damaged_at is not None and not log.is_origin:
                self.restart_log(log, self._topics.deleted_end(origin_partition.partition))
        ready = self._topics.add_offered(message.partitions)
        entries = tuple(context.logs[origin_partition.partition].vector_entry() for origin_partition in ready)
        if entries:
            context.out.append(Send(peer, HaveUpTo(message.link, entries)))

    def partition_added(self, partition: Partition) -> None:
        """An offered partition can store records now."""
        self._report(self._context.logs[partition].vector_entry(), gap=False)

    def _report(self, entry: VectorEntry, *, gap: bool) -> None:
        for peer, link in self._senders.items():
            self._context.out.append(Send(peer, HaveUpTo(link, (entry,), gap)))

    def restart_log(self, log: OriginLog, first: int) -> None:
        """Restarts a log, empty, at `first`: it is damaged, or the records that would continue it no longer exist."""
        context = self._context
        log.reset(first)
        self._ack_ring.forget(log.partition)
        context.out += [
            LogLine("warning", "log restarted", {"partition": str(log.partition), "first": first}),
            Drop(log.partition),
            Open(log.partition, log.origin_partition.segment_bytes, first),
        ]
        self._topics.announce(log)

    def log_damaged(self, log: OriginLog, *, blocks_publishing: bool) -> None:
        """A read found damage. Another broker's records are requested again from the previous broker.

        Own records may exist nowhere else. They must not be acknowledged nor their offsets reused: this incarnation
        ends.
        """
        context = self._context
        if log.is_origin and blocks_publishing and not log.origin_partition.local:
            # Persisted, because the next start does not read everything.
            error = DiskUntrusted(f"{log.origin_partition.name} is damaged")
            context.out += [Persist(DAMAGED, log.origin_partition.name.encode(), ()), Broken(error)]
        elif not log.is_origin and self._ring.previous is not None:
            self.restart_log(log, self._topics.deleted_end(log.partition))
            self._report(log.vector_entry(), gap=True)

    # --- records -------------------------------------------------------------------------------------

    def records(self, peer: NodeId, message: Records, payload: bytearray | None) -> None:
        context = self._context
        log = context.logs.get(message.partition)
        if log is None:
            self._recreate_topic(message.partition)
            return
        if payload is None:
            raise PeerViolation("records", "a message without records")
        link = self._links.by_peer.get(peer)
        fits = log.damaged_at is None
        accepted: list[IncomingBatch] = []
        for incoming in _read_batches(payload, message.partition):
            if link is not None:
                link.peer_has(log.partition, incoming.end)
            if (incoming.end <= log.end and self._dedups) or log.is_origin or not fits:
                continue
            if log.end < incoming.base == message.first:
                self.restart_log(log, incoming.base)
            if incoming.base != log.end and self._dedups:
                fits = False
                continue
            log.end = incoming.end
            context.out.append(Append(log.partition, incoming.batch))
            accepted.append(incoming)
        context.out.append(Send(peer, HaveUpTo(message.link, (log.vector_entry(),), not fits)))
        if accepted:
            context.out.append(Sync(log.partition))
            for incoming in accepted:
                self._links.forward(log, incoming.base, incoming.end, incoming.batch, message.hops + 1, peer)
            self._barriers.log_advanced()

    def _recreate_topic(self, partition: Partition) -> None:
        """A record of a topic that was deleted here creates the topic again."""
        topic = self._topics.of_partition(partition)
        if topic is not None and partition in topic.remote:
            self._topics.add_offered((topic.remote[partition],))

    def write_refused(self, log: OriginLog, end: int) -> None:
        self._refused_writes[log.partition] = max(end, self._refused_writes.get(log.partition, 0))

    def tick(self) -> None:
        """Repeats gaps for refused writes until they are filled: an earlier acknowledgement may arrive later."""
        context = self._context
        if not self._refused_writes or context.now.mono_us - self._reported_us < context.settings.resend_ms * 1000:
            return
        self._reported_us = context.now.mono_us
        for partition, end in list(self._refused_writes.items()):
            log = context.logs.get(partition)
            if log is None or log.end >= end:
                del self._refused_writes[partition]
            else:
                self._report(log.vector_entry(), gap=True)


def _read_batches(payload: bytearray, partition: Partition) -> Iterator[IncomingBatch]:
    """Splits a payload into batches and checks each, so that damage does not spread between brokers."""
    at = 0
    whole = len(payload)
    while at < whole:
        try:
            length = check_stored(payload, at, partition)
        except BatchRejected as rejected:
            raise PeerViolation("records", rejected.detail) from None
        batch = payload if length == whole else payload[at : at + length]
        yield IncomingBatch(batch, base_offset(batch), last_offset(batch) + 1)
        at += length
