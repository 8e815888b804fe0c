"""Lookups of one node: its questions to others, and what it does with their answers."""

from __future__ import annotations

from rostra.fabric.overlay.effects import LookupDone
from rostra.fabric.overlay.lookup_state import Lookup, Use, advance, finish, retreat
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import CloserNode, FindPredecessor, PredecessorFound
from rostra.fabric.overlay.pending_request import Purpose
from rostra.fabric.overlay.ring import PING, lose_if_known
from rostra.fabric.overlay.routing import preceding_hop
from rostra.fabric.overlay.rpc import ask
from rostra.fabric.overlay.state import Overlay
from rostra.model.keyspace import Key


def find(overlay: Overlay, now_us: int, key: Key) -> int:
    """Looks up the owner of a key; `LookupDone` with this number tells the end."""
    overlay.now_us = now_us
    overlay.lookups_begun += 1
    lookup = Lookup(key, overlay.me, Use.CALLER, number=overlay.lookups_begun)
    if not overlay.joined or pursue(overlay, lookup):
        report_lookup(overlay, lookup)
    return lookup.number


def answer_find_predecessor(overlay: Overlay, question: FindPredecessor) -> CloserNode | PredecessorFound:
    hop = preceding_hop(overlay, question.key, question.excluded)
    return PredecessorFound(overlay.successors) if hop is None else CloserNode(hop)


def pursue(overlay: Overlay, lookup: Lookup) -> bool:
    """Takes the next step of a lookup. True if it has ended, found or not."""
    mask = overlay.mask
    while not lookup.found and lookup.at == overlay.me:
        hop = preceding_hop(overlay, lookup.key, lookup.excluded)
        if hop is None:
            finish(lookup, overlay.successors, mask)
        elif not advance(lookup, hop, mask):
            return True
    if lookup.found:
        return _confirm(overlay, lookup)
    question = FindPredecessor(lookup.key, lookup.excluded)
    return not ask(overlay, lookup.at, question, Purpose.LOOKUP, lookup)


def lookup_answered(overlay: Overlay, lookup: Lookup, answer: CloserNode | PredecessorFound) -> bool:
    """True if the lookup has ended."""
    if isinstance(answer, CloserNode):
        return not advance(lookup, answer.member, overlay.mask) or pursue(overlay, lookup)
    finish(lookup, answer.successors, overlay.mask)
    return _confirm(overlay, lookup)


def lookup_timed_out(overlay: Overlay, lookup: Lookup, member: Member) -> bool:
    """The asked node is dead. True if the lookup has ended."""
    lose_if_known(overlay, member)
    if lookup.found:
        lookup.timeouts += 1
        lookup.owners = lookup.owners[1:]
        return _confirm(overlay, lookup)
    return not retreat(lookup, overlay.settings.excluded_max) or pursue(overlay, lookup)


def _confirm(overlay: Overlay, lookup: Lookup) -> bool:
    """The layer above is told of no owner that has not answered."""
    if lookup.use is not Use.CALLER or not lookup.owners or lookup.owners[0] in (overlay.me, lookup.at):
        return True
    return not ask(overlay, lookup.owners[0], PING, Purpose.LOOKUP, lookup)


def report_lookup(overlay: Overlay, lookup: Lookup) -> None:
    owner = lookup.owners[0] if lookup.found and lookup.owners else None
    predecessor = lookup.at if owner is not None else None
    overlay.effects.append(LookupDone(lookup.number, lookup.key, predecessor, owner, lookup.hops, lookup.timeouts))
