"""One overlay node as its driver sees it: packets and time in, effects out."""

from __future__ import annotations

from typing import assert_never

from rostra.fabric.overlay import fingers, join, ring, unification
from rostra.fabric.overlay.effects import Effect, NeighboursChanged
from rostra.fabric.overlay.lookup import (
    answer_find_predecessor,
    lookup_answered,
    lookup_timed_out,
    report_lookup,
)
from rostra.fabric.overlay.lookup_state import Lookup, Use
from rostra.fabric.overlay.messages import (
    CloserNode,
    Detected,
    FindPredecessor,
    GetNeighbours,
    KeyTaken,
    MergeLookup,
    Neighbours,
    Notified,
    OverlayHello,
    OverlayNotify,
    OverlayPing,
    OverlayPong,
    Packet,
    PredecessorFound,
    Probe,
    ProbeAnswer,
    SuccessorHint,
    TryMerge,
)
from rostra.fabric.overlay.pending_request import OverlayRequest, Purpose
from rostra.fabric.overlay.rpc import expired, send
from rostra.fabric.overlay.state import Overlay, former_neighbours
from rostra.safeguards import Safeguard

PONG = OverlayPong()
_MS_US = 1000


def take(overlay: Overlay) -> list[Effect]:
    """What is to be done since the last call, in order."""
    effects, overlay.effects = overlay.effects, []
    if overlay.changed:
        overlay.changed = False
        effects.append(NeighboursChanged(overlay.predecessor, overlay.successors, former_neighbours(overlay)))
    return effects


def wake_at_us(overlay: Overlay) -> int:
    """When `wake` is due next."""
    return min(overlay.stabilize_us, overlay.heartbeat_us, overlay.probe_us, overlay.due_us)


def wake(overlay: Overlay, now_us: int) -> None:
    """Does what is due: gives up on silent nodes, sends heartbeats, begins a round."""
    overlay.now_us = now_us
    if now_us >= overlay.due_us:
        for request in expired(overlay):
            _given_up(overlay, request)
    settings = overlay.settings
    if now_us >= overlay.heartbeat_us:
        overlay.heartbeat_us = now_us + settings.heartbeat_ms * _MS_US
        ring.heartbeat(overlay)
    if now_us >= overlay.stabilize_us:
        period_ms = overlay.random.uniform(settings.stabilize_ms_min, settings.stabilize_ms_max)
        overlay.stabilize_us = now_us + int(period_ms * _MS_US)
        _round(overlay)
    if now_us >= overlay.probe_us:
        overlay.probe_us = now_us + settings.probe_ms * _MS_US
        unification.probe(overlay)


def _round(overlay: Overlay) -> None:
    join.attempt(overlay)
    if overlay.joined:
        if not overlay.settings.heartbeat_ms:
            ring.heartbeat(overlay)
        ring.stabilize(overlay)
        fingers.fix_fingers(overlay)
        unification.unify(overlay)


def receive(overlay: Overlay, now_us: int, packet: Packet) -> None:
    """Takes one packet. What is meant for an earlier life of this node has no answer, as if the node were dead."""
    overlay.now_us = now_us
    body, sender = packet.body, packet.sender
    fenced = Safeguard.BOOT_FENCE not in overlay.without or packet.to.node != overlay.me.node
    if packet.to != overlay.me and fenced and not isinstance(body, OverlayHello | Probe | ProbeAnswer):
        return
    match body:
        case Neighbours() | OverlayPong() | CloserNode() | PredecessorFound() | Notified() | ProbeAnswer():
            request = overlay.pending.get(packet.token)
            if request is not None and request.to.node == sender.node:
                del overlay.pending[packet.token]
                _answered(overlay, request, packet)
        case _ if not overlay.joined:
            # Without a ring there is nothing to tell of, and nothing to change.
            pass
        case GetNeighbours():
            send(overlay, sender, Neighbours(overlay.predecessor, overlay.successors), packet.token)
        case OverlayPing() | OverlayHello():
            send(overlay, sender, PONG, packet.token)
        case FindPredecessor():
            send(overlay, sender, answer_find_predecessor(overlay, body), packet.token)
        case OverlayNotify():
            ring.rectify(overlay, sender)
            if packet.token:
                send(overlay, sender, Notified(overlay.predecessor, bool(overlay.successors)), packet.token)
        case SuccessorHint():
            ring.consider(overlay, sender)
        case Probe():
            send(overlay, sender, ProbeAnswer(overlay.lone), packet.token)
            unification.found_again(overlay, sender, body.lone)
        case MergeLookup():
            unification.search(overlay, body.member, body.fanout)
        case TryMerge():
            unification.try_merge(overlay, body.predecessor, body.successor)
        case Detected():
            unification.detect(overlay, body.member, body.fanout)
        case KeyTaken():
            if join.is_collision(overlay, sender):
                join.take_new_key(overlay, sender)
        case _:
            assert_never(body)


def _answered(overlay: Overlay, request: OverlayRequest, packet: Packet) -> None:
    body = packet.body
    match request.purpose, body:
        case Purpose.STABILIZE, Neighbours():
            if body.predecessor is not None and join.is_collision(overlay, body.predecessor):
                unification.settle_collision(overlay, body.predecessor)
            else:
                ring.successor_answered(overlay, request, body)
        case Purpose.ADOPT, Neighbours():
            ring.candidate_answered(overlay, request, body)
        case Purpose.INTRODUCE, Notified():
            join.introduced(overlay, request.to, body)
        case Purpose.CONTACT, OverlayPong():
            join.contacted(overlay, packet.sender)
        case Purpose.LOOKUP, CloserNode() | PredecessorFound():
            if request.lookup is not None and lookup_answered(overlay, request.lookup, body):
                _ended(overlay, request.lookup)
        case Purpose.LOOKUP, OverlayPong():
            if request.lookup is not None:
                _ended(overlay, request.lookup)
        case Purpose.PROBE, ProbeAnswer():
            unification.found_again(overlay, packet.sender, body.lone)
        case _:
            # A heartbeat needs no more than its answer; an answer of another kind counts as none.
            pass


def _given_up(overlay: Overlay, request: OverlayRequest) -> None:
    match request.purpose:
        case Purpose.STABILIZE | Purpose.HEARTBEAT:
            ring.lose_if_known(overlay, request.to)
        case Purpose.INTRODUCE | Purpose.CONTACT:
            ring.lose_if_known(overlay, request.to)
            join.not_answered(overlay)
        case Purpose.ADOPT:
            ring.candidate_silent(overlay, request)
        case Purpose.LOOKUP:
            if request.lookup is not None and lookup_timed_out(overlay, request.lookup, request.to):
                _ended(overlay, request.lookup)
        case Purpose.PROBE:
            pass
        case _:
            assert_never(request.purpose)


def _ended(overlay: Overlay, lookup: Lookup) -> None:
    match lookup.use:
        case Use.JOIN:
            join.looked_up(overlay, lookup)
        case Use.FINGER:
            fingers.set_finger(overlay, lookup)
        case Use.CALLER:
            report_lookup(overlay, lookup)
        case _:
            assert_never(lookup.use)
