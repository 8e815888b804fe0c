"""Brokers that go: one that stops waits for the next to have what it has; one that is removed, for all of them.

Whoever is told to remove a member asks it first to retire. It takes nothing more then, and answers when every broker of
its view has on stable storage whatever it published, and the next has whatever else it holds. A member that is away
cannot be asked: what nobody else has goes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.errors import MemberRemoved, NodeStopping, RostraError, Unavailable, UnknownMember
from rostra.fabric.api import OperationDone, Refused, RemoveNode, Send, StopPrepared
from rostra.fabric.flood.messages import LeaveRing, LeftRing
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood


class Departure:
    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._stops_us: int | None = None
        """By when this broker goes that was told to stop."""
        self._until_us = 0
        """While it retires: if it is not removed by then, it goes on as before."""
        self._asked_by: dict[NodeId, None] = {}
        self._removing: dict[NodeId, tuple[int, list[int]]] = {}
        """Members that this broker was told to remove: until when they may take, and who waits for it."""

    def refusal(self) -> RostraError | None:
        """Why this broker takes nothing new, if so."""
        if self._flood.ring.is_removed:
            return MemberRemoved(self._flood.node)
        return NodeStopping() if self._flood.now.mono_us < self._until_us else None

    # --- stopping ------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._stops_us = self._flood.now.mono_us + self._flood.settings.leave_ms * 1000

    def leave_ring(self) -> None:
        self._flood.ring.out = True
        self._flood.ring.beat()

    # --- removing another ----------------------------------------------------------------------------

    def remove(self, given: RemoveNode) -> None:
        flood, node = self._flood, given.node
        if node not in flood.ring.members:
            flood.out.append(Refused(given.token, UnknownMember(node)))
            return
        until_us = flood.now.mono_us + flood.settings.retire_ms * 1000
        self._removing.setdefault(node, (until_us, []))[1].append(given.token)
        if node == flood.node:
            self._begin(node)
        self._look_after(node)

    def retired(self, peer: NodeId) -> None:
        if peer in self._removing:
            self._gone(peer)

    def _look_after(self, node: NodeId) -> None:
        """Asks the member again, or finds that there is nobody to wait for."""
        flood = self._flood
        until_us, tokens = self._removing[node]
        if node != flood.node and not flood.ring.is_there(node):
            self._gone(node)
        elif flood.now.mono_us >= until_us:
            del self._removing[node]
            error = Unavailable("", 0, "the member has not passed on all that it has; stop it, then remove it")
            flood.out += [Refused(token, error) for token in tokens]
        elif node != flood.node:
            flood.out.append(Send(node, LeaveRing()))

    def _gone(self, node: NodeId) -> None:
        _, tokens = self._removing.pop(node)
        self._flood.ring.remove(node)
        self._flood.out += [OperationDone(token) for token in tokens]

    # --- being removed -------------------------------------------------------------------------------

    def asked(self, peer: NodeId) -> None:
        self._begin(peer)

    def _begin(self, asker: NodeId) -> None:
        self._asked_by[asker] = None
        self._until_us = self._flood.now.mono_us + self._flood.settings.retire_ms * 1000

    def _has_passed_on(self) -> bool:
        """Whether the others have everything, and what was published here on stable storage."""
        flood = self._flood
        if flood.ring.next is None:
            return len(flood.ring.members) == 1
        covered = flood.circle.covered
        own = [copy for copy in flood.copies.values() if copy.own and not copy.part.local]
        whole = all(copy.synced == copy.end and covered.get(copy.partition, 0) >= copy.end for copy in own)
        return whole and all(link.open and not link.lacks() for link in flood.links.values())

    # --- time ----------------------------------------------------------------------------------------

    def beat(self) -> None:
        for node in list(self._removing):
            self._look_after(node)

    def look(self) -> None:
        """At the end of a step."""
        flood = self._flood
        if self._stops_us is not None:
            lacking = sum(link.lacks() for link in flood.links.values())
            if not lacking or flood.now.mono_us >= self._stops_us:
                self._stops_us = None
                self.leave_ring()
                flood.out.append(StopPrepared())
        if flood.now.mono_us >= self._until_us:
            self._asked_by.clear()
        if self._asked_by and self._has_passed_on():
            askers, self._asked_by = self._asked_by, {}
            for asker in askers:
                if asker != flood.node:
                    flood.out.append(Send(asker, LeftRing()))
                elif asker in self._removing:
                    self._gone(asker)
