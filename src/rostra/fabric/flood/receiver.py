"""The other end of a link: what the previous broker passes on is taken if it continues what is here, else refused.

A broker's vector decides: what lies below it has been here and is neither kept, delivered nor passed on again.
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
"""Hard state: the topic whose own part was found damaged, until a new incarnation has begun."""


class IncomingBatch(NamedTuple):
    batch: bytearray
    base: int
    following: int


class Receiver:
    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._links: dict[NodeId, int] = {}
        """Who passes records on to this broker, and under which number."""
        self._dedups = Safeguard.DEDUP_BY_VECTOR not in flood.without
        self._lacking: dict[Partition, int] = {}
        """Parts of which the disk has refused something, and their end: whoever sent that believes that it is here."""
        self._told_us = 0

    def opening(self, peer: NodeId, message: LinkOpening) -> None:
        flood = self._flood
        self._links[peer] = message.link
        entries = flood.topics.vector()
        count = max(1, -(-len(entries) // ENTRIES_PER_MESSAGE))
        for index in range(count):
            part = tuple(entries[index * ENTRIES_PER_MESSAGE : (index + 1) * ENTRIES_PER_MESSAGE])
            flood.out.append(Send(peer, Vector(message.link, index, count, part)))

    def offered(self, peer: NodeId, message: Offer) -> None:
        flood = self._flood
        for part in message.parts:
            if part.local:
                raise PeerViolation("offer", "what a broker keeps for itself")
            copy = flood.copies.get(part.partition)
            if copy is not None and copy.damaged_at is not None and not copy.own:
                self.begin_anew(copy, flood.floor(part.partition))
        ready = flood.topics.hear_of(message.parts)
        entries = tuple(flood.copies[part.partition].entry() for part in ready)
        if entries:
            flood.out.append(Send(peer, HaveUpTo(message.link, entries)))

    def taken_in(self, partition: Partition) -> None:
        """A part that was offered can take records now."""
        self._tell(self._flood.copies[partition].entry(), gap=False)

    def _tell(self, entry: VectorEntry, *, gap: bool) -> None:
        for peer, link in self._links.items():
            self._flood.out.append(Send(peer, HaveUpTo(link, (entry,), gap)))

    def begin_anew(self, copy: OriginLog, first: int) -> None:
        """Empty, from `first` on: the copy is damaged, or what would continue it is nowhere any more."""
        flood = self._flood
        copy.emptied(first)
        flood.circle.forget(copy.partition)
        flood.out += [
            LogLine("warning", "copy is filled anew", {"partition": str(copy.partition), "first": first}),
            Drop(copy.partition),
            Open(copy.partition, copy.part.segment_bytes, first),
        ]
        flood.topics.announce(copy)

    def broken(self, copy: OriginLog, *, matters: bool) -> None:
        """A read has found damage while the ring goes on: the previous broker has it whole.

        Of what is ordered here perhaps nobody has. It must not be acknowledged, and its offsets not given again: this
        incarnation is at its end.
        """
        flood = self._flood
        if copy.own and matters and not copy.part.local:
            # Written down: the next start does not read everything.
            error = DiskUntrusted(f"{copy.part.name} is damaged")
            flood.out += [Persist(DAMAGED, copy.part.name.encode(), ()), Broken(error)]
        elif not copy.own and flood.ring.previous is not None:
            self.begin_anew(copy, flood.floor(copy.partition))
            self._tell(copy.entry(), gap=True)

    # --- records -------------------------------------------------------------------------------------

    def records(self, peer: NodeId, message: Records, payload: bytearray | None) -> None:
        flood = self._flood
        copy = flood.copies.get(message.partition)
        if copy is None:
            self._unknown(message.partition)
            return
        if payload is None:
            raise PeerViolation("records", "a message without any")
        link = flood.links.get(peer)
        fits = copy.damaged_at is None
        took: list[IncomingBatch] = []
        for arriving in _arriving(payload, message.partition):
            if link is not None:
                link.holds(copy.partition, arriving.following)
            if (arriving.following <= copy.end and self._dedups) or copy.own or not fits:
                continue
            if copy.end < arriving.base == message.first:
                self.begin_anew(copy, arriving.base)
            if arriving.base != copy.end and self._dedups:
                fits = False
                continue
            copy.end = arriving.following
            flood.out.append(Append(copy.partition, arriving.batch))
            took.append(arriving)
        flood.out.append(Send(peer, HaveUpTo(message.link, (copy.entry(),), not fits)))
        if took:
            flood.out.append(Sync(copy.partition))
            for arriving in took:
                flood.pass_on(copy, arriving.base, arriving.following, arriving.batch, message.hops + 1, peer)
            flood.barriers.came_further()

    def _unknown(self, partition: Partition) -> None:
        """Deleted here, but published to elsewhere: that makes the topic anew."""
        topic = self._flood.topics.of_part(partition)
        if topic is not None and partition in topic.parts:
            self._flood.topics.hear_of((topic.parts[partition],))

    def refused_by_disk(self, copy: OriginLog, end: int) -> None:
        self._lacking[copy.partition] = max(end, self._lacking.get(copy.partition, 0))

    def beat(self) -> None:
        """Says what was refused until it has come: an earlier word, that it is here, may arrive behind this one."""
        flood = self._flood
        if not self._lacking or flood.now.mono_us - self._told_us < flood.settings.resend_ms * 1000:
            return
        self._told_us = flood.now.mono_us
        for partition, end in list(self._lacking.items()):
            copy = flood.copies.get(partition)
            if copy is None or copy.end >= end:
                del self._lacking[partition]
            else:
                self._tell(copy.entry(), gap=True)


def _arriving(payload: bytearray, partition: Partition) -> Iterator[IncomingBatch]:
    """The batches of a payload, each intact and of this part: damage does not spread from copy to copy."""
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
