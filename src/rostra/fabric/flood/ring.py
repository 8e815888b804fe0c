"""The ring: its members, the view of those alive, and this broker's neighbours.

Members spread by gossip: a digest in every heartbeat shows a difference, and a removal wins over any other information.
Each broker has its own view: the members that it hears and that hear it. The ring is the view in order of node id, so
the order in which brokers joined does not matter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import msgspec
from xxhash import xxh3_64_intdigest

from rostra.fabric.api import Connect, Disconnect, KnownNodes, LogLine, Persist, Send
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.messages import RingHeartbeat, RingMember, RingMembers
from rostra.model.ids import Epoch, NodeId
from rostra.model.view import View

MEMBERS = "flood/members"
DIGEST_MASK = (1 << 63) - 1


class PeerReport:
    """The last heartbeat of a peer."""

    __slots__ = ("boot", "heard_us", "hears", "leaving", "lost")

    def __init__(self, boot: int, at_us: int) -> None:
        self.boot = boot
        self.heard_us = at_us
        self.hears = False
        """Whether the peer hears this broker."""
        self.leaving = False
        self.lost = False


class Ring:
    def __init__(self, context: FloodContext) -> None:
        self._context = context
        self.members: dict[NodeId, RingMember] = {}
        self.removed: dict[NodeId, None] = {}
        self._heard: dict[NodeId, PeerReport] = {}
        self._links: dict[NodeId, str] = {}
        self._digest = 0
        self._known_nodes: tuple[str, ...] = ()
        self.view = View.of(Epoch(0), ())
        self.peer_restarted: Callable[[NodeId], None] = lambda peer: None
        """Called when another broker has restarted."""
        self.view_changed: Callable[[], None] = lambda: None
        self.leaving = False
        """This broker stops or its disk has failed: the others close the ring around it."""

    # --- members -------------------------------------------------------------------------------------

    def restore(self, packed: bytes) -> None:
        """Restores the members persisted by an earlier start."""
        stored = msgspec.msgpack.decode(packed, type=RingMembers)
        self.members = {member.node: member for member in stored.members}
        self.removed = dict.fromkeys(stored.removed)

    def start(self) -> None:
        context = self._context
        own = RingMember(context.node, context.address, context.peer_address, context.boot, context.name)
        if self.is_removed:
            context.out.append(self._removal_line(context.node))
        self._merge((own,), ())
        self._update_links()
        self.update_view()

    def _removal_line(self, node: NodeId) -> LogLine:
        if node == self._context.node:
            return LogLine("error", "this node was removed from its cluster", {"node": node})
        return LogLine("info", "member removed", {"node": node})

    def members_received(self, message: RingMembers) -> None:
        if self._merge(message.members, message.removed):
            self._update_links()
            self.update_view()

    def peer_identified(self, peer: NodeId, peer_address: str) -> None:
        """A broker at one of the addresses to join through has identified itself."""
        if peer not in self._links:
            self._links[peer] = peer_address
        self._context.out.append(Send(peer, self._members()))

    def remove(self, node: NodeId) -> None:
        self._merge((), (node,))
        self._update_links()
        self.broadcast_members()
        self.update_view()

    def _merge(self, members: tuple[RingMember, ...], removed: tuple[NodeId, ...]) -> bool:
        """Merges members and removals; returns whether anything was new."""
        context = self._context
        news = False
        for node in removed:
            if node not in self.removed:
                self.removed[node] = None
                self.members.pop(node, None)
                context.out.append(self._removal_line(node))
                news = True
        for member in members:
            known = self.members.get(member.node)
            if member.node in self.removed or (known is not None and known.boot >= member.boot):
                continue
            self.members[member.node] = member
            news = True
        if news or not self._digest:
            packed = msgspec.msgpack.encode(self._members())
            self._digest = xxh3_64_intdigest(packed) & DIGEST_MASK
            context.out.append(Persist(MEMBERS, packed))
        return news

    def _members(self) -> RingMembers:
        members = tuple(self.members[node] for node in sorted(self.members))
        return RingMembers(members, tuple(sorted(self.removed)))

    def others(self) -> list[RingMember]:
        return [self.members[node] for node in sorted(self.members) if node != self._context.node]

    @property
    def is_removed(self) -> bool:
        return self._context.node in self.removed

    def _update_links(self) -> None:
        """Connects to all members; notifies and disconnects removed ones."""
        context = self._context
        for member in self.others():
            if self._links.get(member.node) != member.peer_address:
                self._links[member.node] = member.peer_address
                context.out.append(Connect(member.node, member.peer_address))
        for node in [node for node in self._links if node in self.removed]:
            context.out += [Send(node, self._members()), Disconnect(node)]
            del self._links[node]
            self._heard.pop(node, None)

    def broadcast_members(self) -> None:
        self._context.out += [Send(member.node, self._members()) for member in self.others()]

    # --- the view --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Sends heartbeats, and drops silent brokers from the view."""
        context = self._context
        now_us = context.now.mono_us
        hears = tuple(sorted(node for node, report in self._heard.items() if self._is_heard(report, now_us)))
        heartbeat = RingHeartbeat(
            context.boot, self._digest, context.peer_address, hears, self.leaving or self.is_removed
        )
        context.out += [Send(peer, heartbeat) for peer in sorted(self._links)]
        self.update_view()

    def heartbeat_received(self, peer: NodeId, message: RingHeartbeat) -> None:
        context = self._context
        if peer in self.removed:
            if peer not in self._links:
                self._links[peer] = message.peer_address
                context.out.append(Connect(peer, message.peer_address))
            context.out.append(Send(peer, self._members()))
            return
        if self._links.get(peer) != message.peer_address:
            self._links[peer] = message.peer_address
            context.out.append(Connect(peer, message.peer_address))
        report = self._heard.get(peer)
        if report is None or report.boot != message.boot:
            if report is not None and report.boot > message.boot:
                return
            report = self._heard[peer] = PeerReport(message.boot, context.now.mono_us)
            self.peer_restarted(peer)
        report.heard_us = context.now.mono_us
        report.lost = False
        report.hears = context.node in message.hears
        report.leaving = message.leaving
        if message.members_digest != self._digest:
            context.out.append(Send(peer, self._members()))
        self.update_view()

    def peer_lost(self, peer: NodeId) -> None:
        """The link to the peer is closed: it leaves the view at once."""
        report = self._heard.get(peer)
        if report is not None:
            report.lost = True
            self.update_view()

    def is_alive(self, node: NodeId) -> bool:
        return node in self.view.active

    def _is_heard(self, report: PeerReport, now_us: int) -> bool:
        return not report.lost and now_us - report.heard_us < self._context.settings.failure_timeout_ms * 1000

    def update_view(self) -> None:
        """Recomputes the view; on a change relinks the ring."""
        context = self._context
        now_us = context.now.mono_us
        alive = [context.node]
        if not (self.leaving or self.is_removed):
            alive += [
                node
                for node, report in sorted(self._heard.items())
                if node in self.members and report.hears and not report.leaving and self._is_heard(report, now_us)
            ]
        if tuple(sorted(alive)) == self.view.active:
            self._report_known_nodes()
            return
        missing = [node for node in sorted(self.members) if node not in alive]
        self.view = View.of(Epoch(self.view.epoch + 1), alive, missing=missing)
        context.out.append(LogLine("info", "view changed", {"view": self.view.epoch, "members": len(alive)}))
        self._report_known_nodes()
        self.view_changed()

    def _report_known_nodes(self) -> None:
        """Reports the other brokers' client addresses, alive ones first, for failover."""
        others = self.others()
        ordered = [member for member in others if self.is_alive(member.node)] + [
            member for member in others if not self.is_alive(member.node)
        ]
        addresses = tuple(member.address for member in ordered)
        if addresses != self._known_nodes:
            self._known_nodes = addresses
            self._context.out.append(KnownNodes(addresses))

    # --- neighbours ----------------------------------------------------------------------------------

    @property
    def next(self) -> NodeId | None:
        """The broker that this one forwards records to; None if it is alone."""
        active = self.view.active
        if len(active) < 2:
            return None
        return active[bisect_right(active, self._context.node) % len(active)]

    @property
    def previous(self) -> NodeId | None:
        active = self.view.active
        if len(active) < 2:
            return None
        return active[active.index(self._context.node) - 1]
