"""The receiving end of a link: stores records that continue the local log, and answers others with a gap.

Records below this broker's vector are duplicates: neither stored, delivered nor forwarded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rostra.errors import BatchRejected, DiskUntrusted, PeerViolation
from rostra.fabric.api import Append, Broken, Drop, LogLine, Open, Persist, Send, Sync
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, HaveUpTo, LinkOpening, Offer, Records, Vector
from rostra.fabric.flood.origin_partition import OriginLog, VectorEntry
from rostra.model.batch import base_offset, last_offset
from rostra.model.check import check_stored
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood


DAMAGED = "flood/damaged"
"""Hard state key: the topic whose own partition was found damaged, until a new incarnation has started."""


class IncomingBatch(NamedTuple):
    batch: bytearray
    base: int
    end: int


class Receiver:
    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._senders: dict[NodeId, int] = {}
        """The link numbers of the brokers that forward records to this one."""
        self._dedups = Safeguard.DEDUP_BY_VECTOR not in flood.without
        self._refused_writes: dict[Partition, int] = {}
        """Ends of partitions for which the disk refused records that the sender believes stored."""
        self._reported_us = 0

    def link_opened(self, peer: NodeId, message: LinkOpening) -> None:
        flood = self._flood
        self._senders[peer] = message.link
        entries = flood.topics.vector()
        count = max(1, -(-len(entries) // ENTRIES_PER_MESSAGE))
        for index in range(count):
            origin_partition = tuple(entries[index * ENTRIES_PER_MESSAGE : (index + 1) * ENTRIES_PER_MESSAGE])
            flood.out.append(Send(peer, Vector(message.link, index, count, origin_partition)))

    def offered(self, peer: NodeId, message: Offer) -> None:
        flood = self._flood
        for origin_partition in message.partitions:
            if origin_partition.local:
                raise PeerViolation("offer", "an internal partition")
            log = flood.logs.get(origin_partition.partition)
            if log is not None and log.damaged_at is not None and not log.is_origin:
                self.restart_log(log, flood.deleted_end(origin_partition.partition))
        ready = flood.topics.add_offered(message.partitions)
        entries = tuple(flood.logs[origin_partition.partition].vector_entry() for origin_partition in ready)
        if entries:
            flood.out.append(Send(peer, HaveUpTo(message.link, entries)))

    def partition_added(self, partition: Partition) -> None:
        """An offered partition can store records now."""
        self._report(self._flood.logs[partition].vector_entry(), gap=False)

    def _report(self, entry: VectorEntry, *, gap: bool) -> None:
        for peer, link in self._senders.items():
            self._flood.out.append(Send(peer, HaveUpTo(link, (entry,), gap)))

    def restart_log(self, log: OriginLog, first: int) -> None:
        """Restarts a log, empty, at `first`: it is damaged, or the records that would continue it no longer exist."""
        flood = self._flood
        log.reset(first)
        flood.ack_ring.forget(log.partition)
        flood.out += [
            LogLine("warning", "log restarted", {"partition": str(log.partition), "first": first}),
            Drop(log.partition),
            Open(log.partition, log.origin_partition.segment_bytes, first),
        ]
        flood.topics.announce(log)

    def log_damaged(self, log: OriginLog, *, blocks_publishing: bool) -> None:
        """A read found damage. Another broker's records are requested again from the previous broker.

        Own records may exist nowhere else. They must not be acknowledged nor their offsets reused: this incarnation
        ends.
        """
        flood = self._flood
        if log.is_origin and blocks_publishing and not log.origin_partition.local:
            # Persisted, because the next start does not read everything.
            error = DiskUntrusted(f"{log.origin_partition.name} is damaged")
            flood.out += [Persist(DAMAGED, log.origin_partition.name.encode(), ()), Broken(error)]
        elif not log.is_origin and flood.ring.previous is not None:
            self.restart_log(log, flood.deleted_end(log.partition))
            self._report(log.vector_entry(), gap=True)

    # --- records -------------------------------------------------------------------------------------

    def records(self, peer: NodeId, message: Records, payload: bytearray | None) -> None:
        flood = self._flood
        log = flood.logs.get(message.partition)
        if log is None:
            self._recreate_topic(message.partition)
            return
        if payload is None:
            raise PeerViolation("records", "a message without records")
        link = flood.links.get(peer)
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
            flood.out.append(Append(log.partition, incoming.batch))
            accepted.append(incoming)
        flood.out.append(Send(peer, HaveUpTo(message.link, (log.vector_entry(),), not fits)))
        if accepted:
            flood.out.append(Sync(log.partition))
            for incoming in accepted:
                flood.forward(log, incoming.base, incoming.end, incoming.batch, message.hops + 1, peer)
            flood.barriers.log_advanced()

    def _recreate_topic(self, partition: Partition) -> None:
        """A record of a topic that was deleted here creates the topic again."""
        topic = self._flood.topics.of_partition(partition)
        if topic is not None and partition in topic.remote:
            self._flood.topics.add_offered((topic.remote[partition],))

    def write_refused(self, log: OriginLog, end: int) -> None:
        self._refused_writes[log.partition] = max(end, self._refused_writes.get(log.partition, 0))

    def tick(self) -> None:
        """Repeats gaps for refused writes until they are filled: an earlier acknowledgement may arrive later."""
        flood = self._flood
        if not self._refused_writes or flood.now.mono_us - self._reported_us < flood.settings.resend_ms * 1000:
            return
        self._reported_us = flood.now.mono_us
        for partition, end in list(self._refused_writes.items()):
            log = flood.logs.get(partition)
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
