"""A link to a neighbour: it begins with the neighbour's vector, and sends what that lacks.

Dedup, resending what was under way, catching up and healing after a split are this one rule. New batches are passed on
as they come as long as the neighbour keeps up; who is behind is fed from the log.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rostra.fabric.api import LogLine, Read, Send
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, LinkOpening, Offer, Records, Vector
from rostra.fabric.flood.origin_partition import OriginLog, VectorEntry
from rostra.model.batch import base_offset
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood


class PartitionFlow:
    """What the neighbour has of one part, and what is on its way to it."""

    __slots__ = ("flying", "have", "moved_us", "owns", "reading", "sent")

    def __init__(self, have: int, *, owns: bool = False) -> None:
        self.owns = owns
        """Whether the neighbour is where it all comes from: there the circle ends."""
        self.have = have
        self.sent = have
        self.reading = 0
        """The token of a read that is under way for it."""
        self.flying: deque[tuple[int, int]] = deque()
        self.moved_us = 0
        """When the neighbour last confirmed something of it, or the first unconfirmed batch was sent."""


class RingLink:
    def __init__(self, flood: Flood, peer: NodeId, number: int) -> None:
        self._flood = flood
        self.peer = peer
        self.number = number
        self.open = False
        self.flows: dict[Partition, PartitionFlow] = {}
        self._vector: dict[int, Vector] = {}
        self._flying_bytes = 0
        self._waiting: dict[Partition, None] = {}
        """Parts that wait for room on the way."""
        self._checked_us = flood.now.mono_us
        """When unconfirmed batches were last looked for, or the link's opening was sent."""
        self._ask()

    def _ask(self) -> None:
        self._flood.out.append(Send(self.peer, LinkOpening(self.number)))

    # --- what the neighbour has ----------------------------------------------------------------------

    def told(self, message: Vector) -> None:
        if self.open:
            return
        self._vector[message.index] = message
        if len(self._vector) < message.count:
            return
        self.open = True
        flood = self._flood
        flood.out.append(LogLine("info", "link opened", {"peer": self.peer}))
        resends = Safeguard.RESEND_BY_HOLDER not in flood.without
        for index in sorted(self._vector):
            for entry in self._vector[index].entries:
                copy = flood.copies.get(entry.partition)
                self.flows[entry.partition] = PartitionFlow(entry.end, owns=entry.owns)
                if copy is not None and not resends:
                    self.flows[entry.partition] = PartitionFlow(max(entry.end, copy.passable))
        self._vector.clear()
        self.offer([copy for copy in flood.copies.values() if copy.partition not in self.flows])
        for copy in list(flood.copies.values()):
            self.pump(copy)

    def offer(self, copies: list[OriginLog]) -> None:
        """Parts that the neighbour does not know; empty ones interest nobody."""
        if not self.open:
            return
        parts = [
            copy.part
            for copy in copies
            if copy.passable > 0 and copy.partition not in self.flows and not copy.part.local
        ]
        for at in range(0, len(parts), ENTRIES_PER_MESSAGE):
            chunk = tuple(parts[at : at + ENTRIES_PER_MESSAGE])
            self._flood.out.append(Send(self.peer, Offer(self.number, chunk)))

    def took(self, entries: tuple[VectorEntry, ...], *, gap: bool) -> None:
        for entry in entries:
            flow = self.flows.get(entry.partition)
            if flow is None:
                flow = self.flows[entry.partition] = PartitionFlow(entry.end, owns=entry.owns)
            elif gap:
                self._rewind(flow, entry.end)
            elif entry.end > flow.have:
                self._landed(flow, entry.end)
            self._pump_named(entry.partition)
        waiting, self._waiting = self._waiting, {}
        for partition in waiting:
            self._pump_named(partition)

    def holds(self, partition: Partition, end: int) -> None:
        """The neighbour has sent it itself."""
        flow = self.flows.get(partition)
        if flow is not None and end > flow.have:
            self._landed(flow, end)

    def _landed(self, flow: PartitionFlow, end: int) -> None:
        flow.have = end
        flow.moved_us = self._flood.now.mono_us
        flow.sent = max(flow.sent, end)
        while flow.flying and flow.flying[0][0] <= end:
            self._flying_bytes -= flow.flying.popleft()[1]

    def _rewind(self, flow: PartitionFlow, have: int) -> None:
        self._flying_bytes -= sum(size for _, size in flow.flying)
        flow.flying.clear()
        flow.have = flow.sent = have

    # --- sending -------------------------------------------------------------------------------------

    def pass_on(self, copy: OriginLog, base: int, end: int, batch: bytearray, hops: int) -> None:
        """A batch that is new here. If the neighbour is behind, its turn comes later."""
        flow = self.flows.get(copy.partition)
        if flow is None:
            self.offer([copy])
        elif flow.owns:
            self._landed(flow, end)
        elif flow.sent == base and not flow.reading and self._has_room():
            self._send(copy, flow, base, end, batch, hops)
        else:
            self.pump(copy)

    def _has_room(self) -> bool:
        return self._flying_bytes < self._flood.settings.window_bytes

    def _send(
        self, copy: OriginLog, flow: PartitionFlow, base: int, end: int, batches: bytes | bytearray, hops: int
    ) -> None:
        if not flow.flying:
            flow.moved_us = self._flood.now.mono_us
        flow.sent = end
        flow.flying.append((end, len(batches)))
        self._flying_bytes += len(batches)
        message = Records(self.number, copy.partition, base, copy.first, hops)
        self._flood.out.append(Send(self.peer, message, (batches,)))

    def _pump_named(self, partition: Partition) -> None:
        copy = self._flood.copies.get(partition)
        if copy is not None:
            self.pump(copy)

    def pump(self, copy: OriginLog) -> None:
        """Goes on with what the neighbour lacks of this part, from the log; of a damaged one, what is before that."""
        flow = self.flows.get(copy.partition)
        if not self.open or flow is None or flow.owns or flow.reading or flow.sent >= copy.passable:
            return
        if not self._has_room():
            self._waiting[copy.partition] = None
            return
        # What retention has taken here cannot be sent: the neighbour's copy begins later, too.
        flow.sent = max(flow.sent, copy.first)
        flow.reading = self._flood.next_read(self, copy.partition)
        bytes_max = self._flood.settings.read_bytes
        self._flood.out.append(Read(flow.reading, copy.partition, flow.sent, copy.passable, bytes_max))

    def read_done(self, token: int, partition: Partition, batches: bytes, following: int) -> None:
        flow, copy = self.flows.get(partition), self._flood.copies.get(partition)
        if flow is None or copy is None or flow.reading != token:
            return
        flow.reading = 0
        if batches:
            base = base_offset(batches)
            if base <= flow.sent < following:
                self._send(copy, flow, base, following, batches, 1)
            self.pump(copy)

    def read_failed(self, token: int, partition: Partition) -> None:
        flow = self.flows.get(partition)
        if flow is not None and flow.reading == token:
            flow.reading = 0

    # --- time ----------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Sends again what was not confirmed in time, and the opening of a link that has no vector yet.

        Each partition has a time of its own: traffic of one, or notices of a gap that nobody can fill, must not keep
        what another lost from being sent again.
        """
        flood = self._flood
        resend_us = flood.settings.resend_ms * 1000
        if flood.now.mono_us - self._checked_us < resend_us:
            return
        self._checked_us = flood.now.mono_us
        if not self.open:
            self._ask()
            return
        for flow in self.flows.values():
            if flow.flying and flood.now.mono_us - flow.moved_us >= resend_us:
                self._rewind(flow, flow.have)
        self.offer(list(flood.copies.values()))
        for copy in list(flood.copies.values()):
            self.pump(copy)

    def lacks(self) -> int:
        """How many records the neighbour has not confirmed, as far as is known."""
        lacking = 0
        for partition, copy in self._flood.copies.items():
            flow = self.flows.get(partition)
            if not copy.part.local and (flow is None or not flow.owns):
                lacking += max(copy.passable - max(flow.have if flow is not None else 0, copy.first), 0)
        return lacking
