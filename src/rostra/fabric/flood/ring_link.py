"""A link to a neighbour: asks for the neighbour's vector when it opens, then sends what the vector lacks.

This one rule covers deduplication (nothing below the vector is sent), resending after a failure (the last holder opens
a link to its new neighbour), catching up, and healing after a split. Per origin partition a flow tracks what the
neighbour has acknowledged and what is in flight. New batches are forwarded as they arrive while the neighbour keeps up;
a neighbour that is behind is served from the log, within a window of bytes. Unknown partitions are offered first.
Batches that are not acknowledged in time are sent again; a gap notice moves the flow back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rostra.fabric.api import LogLine, Read, Send
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, LinkOpening, Offer, Records, Vector
from rostra.fabric.flood.origin_partition import OriginLog, VectorEntry
from rostra.model.batch import base_offset
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard


class PartitionFlow:
    """What the neighbour has of one origin partition, and what is in flight to it."""

    __slots__ = ("acked", "in_flight", "is_origin", "moved_us", "read_token", "sent")

    def __init__(self, acked: int, *, is_origin: bool = False) -> None:
        self.is_origin = is_origin
        """Whether the neighbour is the origin: records are not sent back to it."""
        self.acked = acked
        self.sent = acked
        self.read_token = 0
        """The token of the pending log read, 0 if none."""
        self.in_flight: deque[tuple[int, int]] = deque()
        self.moved_us = 0
        """When the neighbour last confirmed something of it, or the first unconfirmed batch was sent."""


class RingLink:
    """`next_read` draws the token of a log read for this link."""

    def __init__(
        self, context: FloodContext, next_read: Callable[[RingLink, Partition], int], peer: NodeId, number: int
    ) -> None:
        self._context = context
        self._next_read = next_read
        self.peer = peer
        self.number = number
        self.open = False
        self.flows: dict[Partition, PartitionFlow] = {}
        self._vector: dict[int, Vector] = {}
        self._in_flight_bytes = 0
        self._awaiting_window: dict[Partition, None] = {}
        """Partitions that wait for the window to open."""
        self._checked_us = context.now.mono_us
        """When unconfirmed batches were last looked for, or the link's opening was sent."""
        self._request_vector()

    def _request_vector(self) -> None:
        self._context.out.append(Send(self.peer, LinkOpening(self.number)))

    # --- the neighbour's vector ----------------------------------------------------------------------

    def vector_received(self, message: Vector) -> None:
        if self.open:
            return
        self._vector[message.index] = message
        if len(self._vector) < message.count:
            return
        self.open = True
        context = self._context
        context.out.append(LogLine("info", "link opened", {"peer": self.peer}))
        resends = Safeguard.RESEND_BY_HOLDER not in context.without
        for index in sorted(self._vector):
            for entry in self._vector[index].entries:
                log = context.logs.get(entry.partition)
                self.flows[entry.partition] = PartitionFlow(entry.end, is_origin=entry.is_origin)
                if log is not None and not resends:
                    self.flows[entry.partition] = PartitionFlow(max(entry.end, log.sendable))
        self._vector.clear()
        self.offer([log for log in context.logs.values() if log.partition not in self.flows])
        for log in list(context.logs.values()):
            self.send_next(log)

    def offer(self, logs: list[OriginLog]) -> None:
        """Offers non-empty partitions that the neighbour does not know."""
        if not self.open:
            return
        partitions = [
            log.origin_partition
            for log in logs
            if log.sendable > 0 and log.partition not in self.flows and not log.origin_partition.local
        ]
        for at in range(0, len(partitions), ENTRIES_PER_MESSAGE):
            chunk = tuple(partitions[at : at + ENTRIES_PER_MESSAGE])
            self._context.out.append(Send(self.peer, Offer(self.number, chunk)))

    def acknowledged(self, entries: tuple[VectorEntry, ...], *, gap: bool) -> None:
        for entry in entries:
            flow = self.flows.get(entry.partition)
            if flow is None:
                flow = self.flows[entry.partition] = PartitionFlow(entry.end, is_origin=entry.is_origin)
            elif gap:
                self._rewind(flow, entry.end)
            elif entry.end > flow.acked:
                self._advance(flow, entry.end)
            self._send_next_of(entry.partition)
        waiting, self._awaiting_window = self._awaiting_window, {}
        for partition in waiting:
            self._send_next_of(partition)

    def peer_has(self, partition: Partition, end: int) -> None:
        """Notes records that the neighbour itself has sent."""
        flow = self.flows.get(partition)
        if flow is not None and end > flow.acked:
            self._advance(flow, end)

    def _advance(self, flow: PartitionFlow, end: int) -> None:
        flow.acked = end
        flow.moved_us = self._context.now.mono_us
        flow.sent = max(flow.sent, end)
        while flow.in_flight and flow.in_flight[0][0] <= end:
            self._in_flight_bytes -= flow.in_flight.popleft()[1]

    def _rewind(self, flow: PartitionFlow, acked: int) -> None:
        self._in_flight_bytes -= sum(size for _, size in flow.in_flight)
        flow.in_flight.clear()
        flow.acked = flow.sent = acked

    # --- sending -------------------------------------------------------------------------------------

    def forward(self, log: OriginLog, base: int, end: int, batch: bytearray, hops: int) -> None:
        """Forwards a batch that is new here; a neighbour that is behind gets it from the log later."""
        flow = self.flows.get(log.partition)
        if flow is None:
            self.offer([log])
        elif flow.is_origin:
            self._advance(flow, end)
        elif flow.sent == base and not flow.read_token and self._window_open():
            self._send(log, flow, base, end, batch, hops)
        else:
            self.send_next(log)

    def _window_open(self) -> bool:
        return self._in_flight_bytes < self._context.settings.window_bytes

    def _send(
        self, log: OriginLog, flow: PartitionFlow, base: int, end: int, batches: bytes | bytearray, hops: int
    ) -> None:
        if not flow.in_flight:
            flow.moved_us = self._context.now.mono_us
        flow.sent = end
        flow.in_flight.append((end, len(batches)))
        self._in_flight_bytes += len(batches)
        message = Records(self.number, log.partition, base, log.first, hops)
        self._context.out.append(Send(self.peer, message, (batches,)))

    def _send_next_of(self, partition: Partition) -> None:
        log = self._context.logs.get(partition)
        if log is not None:
            self.send_next(log)

    def send_next(self, log: OriginLog) -> None:
        """Reads what the neighbour lacks next from the log; of a damaged log, what precedes the damage."""
        flow = self.flows.get(log.partition)
        if not self.open or flow is None or flow.is_origin or flow.read_token or flow.sent >= log.sendable:
            return
        if not self._window_open():
            self._awaiting_window[log.partition] = None
            return
        # Records deleted by retention cannot be sent: the neighbour's log starts later, too.
        flow.sent = max(flow.sent, log.first)
        flow.read_token = self._next_read(self, log.partition)
        bytes_max = self._context.settings.read_bytes
        self._context.out.append(Read(flow.read_token, log.partition, flow.sent, log.sendable, bytes_max))

    def read_done(self, token: int, partition: Partition, batches: bytes, next_offset: int) -> None:
        flow, log = self.flows.get(partition), self._context.logs.get(partition)
        if flow is None or log is None or flow.read_token != token:
            return
        flow.read_token = 0
        if batches:
            base = base_offset(batches)
            if base <= flow.sent < next_offset:
                self._send(log, flow, base, next_offset, batches, 1)
            self.send_next(log)

    def read_failed(self, token: int, partition: Partition) -> None:
        flow = self.flows.get(partition)
        if flow is not None and flow.read_token == token:
            flow.read_token = 0

    # --- time ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Sends again what was not confirmed in time, and the opening of a link that has no vector yet.

        Each partition has a time of its own: traffic of one, or notices of a gap that nobody can fill, must not keep
        what another lost from being sent again.
        """
        context = self._context
        resend_us = context.settings.resend_ms * 1000
        if context.now.mono_us - self._checked_us < resend_us:
            return
        self._checked_us = context.now.mono_us
        if not self.open:
            self._request_vector()
            return
        for flow in self.flows.values():
            if flow.in_flight and context.now.mono_us - flow.moved_us >= resend_us:
                self._rewind(flow, flow.acked)
        self.offer(list(context.logs.values()))
        for log in list(context.logs.values()):
            self.send_next(log)

    def missing_records(self) -> int:
        """How many records the neighbour has not acknowledged."""
        missing = 0
        for partition, log in self._context.logs.items():
            flow = self.flows.get(partition)
            if not log.origin_partition.local and (flow is None or not flow.is_origin):
                missing += max(log.sendable - max(flow.acked if flow is not None else 0, log.first), 0)
        return missing
