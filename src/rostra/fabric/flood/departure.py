"""Departure of brokers: a stopping broker waits until its neighbours have its records; a removed one, until all have.

A broker that is told to remove a member first asks it to leave. That member accepts nothing new, and answers when every
broker of its view has all it published on stable storage and its neighbours have everything else. A member that is down
cannot be asked: records that only it has are lost.
"""

from __future__ import annotations

from rostra.errors import MemberRemoved, NodeStopping, RostraError, Unavailable, UnknownMember
from rostra.fabric.api import OperationDone, Refused, RemoveNode, Send, StopPrepared
from rostra.fabric.flood.ack_ring import AckRing
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.messages import LeaveRing, LeftRing
from rostra.fabric.flood.ring import Ring
from rostra.fabric.flood.ring_links import RingLinks
from rostra.model.ids import NodeId, text


class Departure:
    def __init__(self, context: FloodContext, ring: Ring, ack_ring: AckRing, links: RingLinks) -> None:
        self._context = context
        self._ring = ring
        self._ack_ring = ack_ring
        self._links = links
        self._stop_deadline_us: int | None = None
        """While stopping: when this broker stops waiting."""
        self._leave_deadline_us = 0
        """While leaving: if it is not removed by then, it continues as before."""
        self._requesters: dict[NodeId, None] = {}
        self._removing: dict[NodeId, tuple[int, list[int]]] = {}
        """Members that this broker removes: their deadline, and the tokens to answer."""

    def refusal(self) -> RostraError | None:
        """Returns why this broker accepts nothing new, or None."""
        if self._ring.is_removed:
            return MemberRemoved(self._context.name or self._context.address)
        return NodeStopping() if self._context.now.mono_us < self._leave_deadline_us else None

    # --- stopping ------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._stop_deadline_us = self._context.now.mono_us + self._context.settings.stop_timeout_ms * 1000

    def leave_ring(self) -> None:
        self._ring.leaving = True
        self._ring.tick()

    # --- removing another ----------------------------------------------------------------------------

    def remove(self, given: RemoveNode) -> None:
        context, node = self._context, given.node
        if node not in self._ring.members:
            context.out.append(Refused(given.token, UnknownMember(text(node))))
            return
        until_us = context.now.mono_us + context.settings.removal_timeout_ms * 1000
        self._removing.setdefault(node, (until_us, []))[1].append(given.token)
        if node == context.node:
            self._start_leaving(node)
        self._check_removal(node)

    def member_left(self, peer: NodeId) -> None:
        if peer in self._removing:
            self._finish_removal(peer)

    def _check_removal(self, node: NodeId) -> None:
        """Asks the member again; ends the removal if it is down or time is up."""
        context = self._context
        until_us, tokens = self._removing[node]
        if node != context.node and not self._ring.is_alive(node):
            self._finish_removal(node)
        elif context.now.mono_us >= until_us:
            del self._removing[node]
            error = Unavailable("", 0, "the member has not forwarded all its records; stop it, then remove it")
            context.out += [Refused(token, error) for token in tokens]
        elif node != context.node:
            context.out.append(Send(node, LeaveRing()))

    def _finish_removal(self, node: NodeId) -> None:
        _, tokens = self._removing.pop(node)
        self._ring.remove(node)
        self._context.out += [OperationDone(token) for token in tokens]

    # --- being removed -------------------------------------------------------------------------------

    def leave_requested(self, peer: NodeId) -> None:
        self._start_leaving(peer)

    def _start_leaving(self, requester: NodeId) -> None:
        self._requesters[requester] = None
        self._leave_deadline_us = self._context.now.mono_us + self._context.settings.removal_timeout_ms * 1000

    def _has_forwarded_all(self) -> bool:
        """Whether the neighbours have everything, and all brokers have on stable storage what was published here."""
        context = self._context
        if self._ring.next is None:
            return len(self._ring.members) == 1
        covered = self._ack_ring.covered
        own = [log for log in context.logs.values() if log.is_origin and not log.origin_partition.local]
        whole = all(log.synced == log.end and covered.get(log.partition, 0) >= log.end for log in own)
        return whole and all(link.open and not link.missing_records() for link in self._links.by_peer.values())

    # --- time ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        for node in list(self._removing):
            self._check_removal(node)

    def finish_step(self) -> None:
        """Checks at the end of a step whether stopping or leaving is complete."""
        context = self._context
        if self._stop_deadline_us is not None:
            missing = self._links.missing_records()
            if not missing or context.now.mono_us >= self._stop_deadline_us:
                self._stop_deadline_us = None
                self.leave_ring()
                context.out.append(StopPrepared())
        if context.now.mono_us >= self._leave_deadline_us:
            self._requesters.clear()
        if self._requesters and self._has_forwarded_all():
            requesters, self._requesters = self._requesters, {}
            for requester in requesters:
                if requester != context.node:
                    context.out.append(Send(requester, LeftRing()))
                elif requester in self._removing:
                    self._finish_removal(requester)
