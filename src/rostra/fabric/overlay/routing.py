"""Where a key lies as seen from one node: its owner, its predecessor, and the next hop towards it."""

from __future__ import annotations

from collections.abc import Sequence

from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.state import Overlay
from rostra.model.keyspace import Key


def owns(overlay: Overlay, key: Key) -> bool:
    """Whether the key belongs to this node: it is the first at or clockwise after the key. Alone it owns every key."""
    predecessor = overlay.predecessor
    if predecessor is None:
        return overlay.lone
    mask = overlay.mask
    span = (overlay.me.key - predecessor.key) & mask or mask + 1
    return 0 < ((key - predecessor.key) & mask or mask + 1) <= span


def finger_start(overlay: Overlay, index: int) -> Key:
    """The key whose successor the finger is; `index` counts from 0, the paper's k from 1."""
    return Key((overlay.me.key + (1 << index)) & overlay.mask)


def preceding_hop(overlay: Overlay, key: Key, excluded: Sequence[Member] = ()) -> Member | None:
    """The closest known node before the key; None if this node is the key's predecessor, as far as it knows.

    Members that are excluded count as dead, in the successor list too.
    """
    mask, mine = overlay.mask, overlay.me.key
    span = (key - mine) & mask or mask + 1
    for successor in overlay.successors:
        if not excluded or successor not in excluded:
            if span <= (successor.key - mine) & mask:
                return None
            break
    return closest_preceding(overlay, span, excluded)


def closest_preceding(overlay: Overlay, span: int, excluded: Sequence[Member] = ()) -> Member | None:
    """Among fingers and successors the furthest one that lies less than `span` ahead."""
    mask, mine, fingers = overlay.mask, overlay.me.key, overlay.fingers
    best, reach = None, 0
    # A finger whose start is at or beyond the span cannot lie before it.
    for index in range((span - 1).bit_length() - 1, -1, -1):
        finger = fingers[index]
        if finger is not None and (not excluded or finger not in excluded):
            ahead = (finger.key - mine) & mask
            if 0 < ahead < span:
                best, reach = finger, ahead
                break
    for successor in reversed(overlay.successors):
        ahead = (successor.key - mine) & mask
        if ahead <= reach:
            break
        if ahead < span and (not excluded or successor not in excluded):
            return successor
    return best


def next_hop(overlay: Overlay, key: Key, excluded: Sequence[Member] = ()) -> Member | None:
    """Where a message for the owner of a key goes next; None if this node is the owner."""
    if owns(overlay, key):
        return None
    hop = preceding_hop(overlay, key, excluded)
    if hop is not None:
        return hop
    return next((member for member in overlay.successors if member not in excluded), None)


def known_members(overlay: Overlay) -> list[Member]:
    """Everybody in the routing table once, the nearest first."""
    known = {member for member in overlay.fingers if member is not None} | set(overlay.successors)
    if overlay.predecessor is not None:
        known.add(overlay.predecessor)
    known.discard(overlay.me)
    return sorted(known, key=lambda member: (overlay.distance(member), member.node, member.boot))
