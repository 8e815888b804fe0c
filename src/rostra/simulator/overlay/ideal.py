"""How a ring of given members should look, and where one differs from it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.routing import finger_start
from rostra.fabric.overlay.state import Overlay
from rostra.model.ids import NodeId
from rostra.model.keyspace import Key

SHOWN_MAX = 5


def in_order(overlays: Iterable[Overlay]) -> list[Overlay]:
    """Members of a ring by key."""
    return sorted((one for one in overlays if one.joined), key=lambda one: (one.me.key, one.me.node))


def owner_of(members: Sequence[Member], keys: Sequence[Key], key: Key) -> Member:
    """The first member at or clockwise after a key; `keys` are those of the members, ascending."""
    at = bisect_left(keys, key)
    return members[at] if at < len(members) else members[0]


def wrong_neighbours(overlays: Iterable[Overlay]) -> list[str]:
    """Every node that runs must be a member, with the right successor list and predecessor."""
    everybody = list(overlays)
    ring = in_order(everybody)
    wrong = [f"{one.me} is no member" for one in everybody if not one.joined]
    members = [one.me for one in ring]
    count = len(members)
    for at, overlay in enumerate(ring):
        length = min(overlay.settings.successors_max, count - 1)
        expected = tuple(members[(at + ahead) % count] for ahead in range(1, length + 1))
        if overlay.successors != expected:
            wrong.append(f"{overlay.me} has successors {shown(overlay.successors)}, not {shown(expected)}")
        before = members[at - 1] if count > 1 else None
        if overlay.predecessor != before:
            wrong.append(f"{overlay.me} has predecessor {overlay.predecessor}, not {before}")
    return wrong


def wrong_fingers(overlays: Iterable[Overlay]) -> list[str]:
    """Finger k of every member is the successor of its id plus 2**k."""
    ring = in_order(overlays)
    members = [one.me for one in ring]
    keys = [member.key for member in members]
    wrong: list[str] = []
    if len(ring) < 2:
        return wrong
    for overlay in ring:
        for index, finger in enumerate(overlay.fingers):
            expected = owner_of(members, keys, finger_start(overlay, index))
            if finger != expected:
                wrong.append(f"{overlay.me} has finger {index + 1} {finger}, not {expected}")
    return wrong


def largest_gap(overlays: Iterable[Overlay]) -> int:
    """The joins and losses between a member and the successor it would use, where there are most of them."""
    everybody = list(overlays)
    live = {one.me for one in everybody}
    largest = 0
    for overlay in in_order(everybody):
        lost = 0
        first = overlay.me
        for successor in overlay.successors:
            if successor in live:
                first = successor
                break
            lost += 1
        joined = sum(one.me != overlay.me and overlay.between(one.me, first) for one in everybody)
        largest = max(largest, lost + joined)
    return largest


def acquainted(overlays: Iterable[Overlay]) -> list[set[NodeId]]:
    """Groups of nodes that can find each other, the largest first: one has the other as neighbour, contact, or on its
    passive list. Nobody but an operator can bring two groups together."""
    everybody = list(overlays)
    groups = {one.me.node: {one.me.node} for one in everybody}
    for one in everybody:
        near = (*one.successors, *((one.predecessor,) if one.predecessor else ()))
        for known in (*near, *one.passive.values(), *one.contacts, *one.detections):
            mine, theirs = groups[one.me.node], groups.get(known.node)
            if theirs is not None and theirs is not mine:
                mine |= theirs
                groups.update(dict.fromkeys(theirs, mine))
    distinct = {id(group): group for group in groups.values()}
    return sorted(distinct.values(), key=lambda group: (-len(group), min(group)))


def shown(members: Sequence[Member]) -> str:
    return "[" + ", ".join(map(str, members)) + "]"
