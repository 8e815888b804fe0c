"""The finger table: one finger is looked up in each round, in turn."""

from __future__ import annotations

from rostra.fabric.overlay.lookup import pursue
from rostra.fabric.overlay.lookup_state import Lookup, Use
from rostra.fabric.overlay.pending_request import Purpose
from rostra.fabric.overlay.routing import finger_start
from rostra.fabric.overlay.state import Overlay


def fix_fingers(overlay: Overlay) -> None:
    """Refreshes the next finger. Those that begin before the successor are it, and cost no lookup."""
    successor = overlay.successor
    if successor is None:
        return
    bits, fingers = overlay.settings.bits, overlay.fingers
    near = overlay.distance(successor).bit_length()
    # start = 2**k <= distance to the successor holds for every k below its bit length.
    for index in range(near):
        fingers[index] = successor
    if near >= bits:
        return
    index = overlay.next_finger if overlay.next_finger >= near else near
    overlay.next_finger = index + 1 if index + 1 < bits else 0
    running = sum(
        request.purpose is Purpose.LOOKUP and request.lookup is not None and request.lookup.use is Use.FINGER
        for request in overlay.pending.values()
    )
    if running < overlay.settings.finger_lookups_max:
        lookup = Lookup(finger_start(overlay, index), overlay.me, Use.FINGER, finger=index)
        if pursue(overlay, lookup):
            set_finger(overlay, lookup)


def set_finger(overlay: Overlay, lookup: Lookup) -> None:
    if lookup.found and lookup.owners:
        overlay.fingers[lookup.finger] = lookup.owners[0]
