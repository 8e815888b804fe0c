"""Rings that were apart become one: the passive list, and ring unification after Shafaat, Ghodsi and Haridi.

Members that were lost are tried now and then. One that answers from another ring is searched for in this ring, and
this node in that one; where a search ends, a member of one ring learns its neighbours in the other, and both search for
those in turn. With a fanout above 1 each search enlists other nodes, so that the rings are joined in many places at
once. Searches only name candidates: a successor is adopted as always, after it has answered.
"""

from __future__ import annotations

from rostra.fabric.overlay.join import is_collision, join_through, take_new_key
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import Detected, KeyTaken, MergeLookup, Probe, TryMerge
from rostra.fabric.overlay.pending_request import Purpose
from rostra.fabric.overlay.ring import consider, rectify, remember
from rostra.fabric.overlay.routing import known_members, preceding_hop
from rostra.fabric.overlay.rpc import ask, awaits, send
from rostra.fabric.overlay.state import Overlay
from rostra.safeguards import Safeguard

KEY_TAKEN = KeyTaken()


def probe(overlay: Overlay) -> None:
    """Tries the member lost longest ago; a ring of one tries all of them at once."""
    if not overlay.joined or not overlay.passive:
        return
    count = len(overlay.passive) if overlay.lone else 1
    for _ in range(count):
        node = next(iter(overlay.passive))
        member = overlay.passive.pop(node)
        overlay.passive[node] = member
        if not awaits(overlay, Purpose.PROBE, member):
            ask(overlay, member, Probe(overlay.lone), Purpose.PROBE)


def found_again(overlay: Overlay, other: Member, other_is_lone: bool) -> None:
    """A member lost earlier is there again, or one that had lost this node has found it."""
    if not overlay.joined or other.node == overlay.me.node:
        return
    if overlay.lone:
        # Not forgotten yet: joining through it may fail.
        remember(overlay, other)
        lower = (other.key, other.node) < (overlay.me.key, overlay.me.node)
        if not other_is_lone or lower:
            join_through(overlay, other)
        return
    if overlay.passive.pop(other.node, None) is not None:
        overlay.changed = True
    if not other_is_lone:
        detect(overlay, other, overlay.settings.merge_fanout)


def detect(overlay: Overlay, member: Member, fanout: int) -> None:
    """Leaves a member of another ring to the next round, which begins the search for it."""
    waiting = overlay.detections
    if Safeguard.UNIFICATION in overlay.without or len(waiting) >= overlay.settings.detections_max:
        return
    waiting.setdefault(member, fanout)


def unify(overlay: Overlay) -> None:
    """Begins the searches for those that were detected since the last round."""
    waiting, overlay.detections = overlay.detections, {}
    for member, fanout in waiting.items():
        search(overlay, member, fanout)
        send(overlay, member, MergeLookup(overlay.me, fanout))


def search(overlay: Overlay, member: Member, fanout: int) -> None:
    """Takes a search one step on: to the member if it belongs next to this node, else towards its place."""
    successor, predecessor = overlay.successor, overlay.predecessor
    if not overlay.joined or member in (overlay.me, successor) or member.node == overlay.me.node:
        return
    if overlay.lone:
        join_through(overlay, member)
        return
    if is_collision(overlay, member):
        settle_collision(overlay, member)
        return
    if fanout > 1:
        fanout -= 1
        known = known_members(overlay)
        if known:
            send(overlay, overlay.random.choice(known), Detected(member, fanout))
    if successor is not None and overlay.between(member, successor):
        send(overlay, member, TryMerge(overlay.me, successor))
    elif predecessor is not None and _lies_behind(overlay, predecessor, member):
        send(overlay, member, TryMerge(predecessor, overlay.me))
    else:
        hop = preceding_hop(overlay, member.key)
        if hop is not None:
            send(overlay, hop, MergeLookup(member, fanout))


def settle_collision(overlay: Overlay, other: Member) -> None:
    """Of two members with the same key the one with the higher node id takes another."""
    if overlay.me.node > other.node:
        take_new_key(overlay, other)
    else:
        send(overlay, other, KEY_TAKEN)


def _lies_behind(overlay: Overlay, predecessor: Member, member: Member) -> bool:
    mask = overlay.mask
    return 0 < (member.key - predecessor.key) & mask < (overlay.me.key - predecessor.key) & mask


def try_merge(overlay: Overlay, predecessor: Member, successor: Member) -> None:
    """Two neighbours in another ring: each is searched for here, and considered as neighbour."""
    if not overlay.joined or awaits(overlay, Purpose.ADOPT, successor):
        return
    if overlay.lone:
        # It lost its ring since it was searched for. Joining gives it a whole list at once.
        join_through(overlay, successor)
        return
    fanout = overlay.settings.merge_fanout
    search(overlay, successor, fanout)
    consider(overlay, successor)
    search(overlay, predecessor, fanout)
    if overlay.predecessor is None or _lies_behind(overlay, overlay.predecessor, predecessor):
        rectify(overlay, predecessor)
