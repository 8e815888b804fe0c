"""Zave's invariants of a Chord ring, checked after every event.

- Every member has a live successor in its list.
- Every list, with the member itself in front, goes clockwise once round at most.
- At least r+1 members are principals: no list skips them.

From these follows, and is checked too: the members and their first live successors form exactly one ring, in the order
of the keys, which every other member leads to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from rostra.fabric.overlay.lookup_state import Use
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import Neighbours, Packet, PredecessorFound
from rostra.fabric.overlay.state import Overlay
from rostra.model.ids import NodeId
from rostra.simulator.overlay.ideal import in_order, shown


def unordered_list(overlay: Overlay) -> str | None:
    """The invariant of order; it holds at every size, in a ring of one too."""
    reach = 0
    for member in overlay.successors:
        ahead = overlay.distance(member)
        if ahead <= reach:
            return f"{overlay.me} has a list out of order: {shown(overlay.successors)}"
        reach = ahead
    return None


def broken_invariants(nodes: Iterable[Overlay], successors_max: int) -> list[str]:
    """What is wrong with one ring of more than r members."""
    ring = in_order(nodes)
    live = {one.me: at for at, one in enumerate(ring)}
    found = [wrong for one in ring if (wrong := unordered_list(one)) is not None]
    firsts: list[int] = []
    for one in ring:
        first = next((live[member] for member in one.successors if member in live), None)
        if first is None:
            found.append(f"{one.me} has no live successor in {shown(one.successors)}")
            return found
        firsts.append(first)
    principals = count_principals(ring, [(one.me, one.successors) for one in ring])
    if principals <= successors_max:
        found.append(f"{principals} principals among {len(ring)} members; {successors_max + 1} are needed")
    return found + _broken_ring(ring, firsts)


def _broken_ring(ring: Sequence[Overlay], firsts: Sequence[int]) -> list[str]:
    """Follows first live successors: there must be one cycle, and it must go round once."""
    seen = [-1] * len(ring)
    cycles = 0
    for start in range(len(ring)):
        at = start
        while seen[at] < 0:
            seen[at] = start
            at = firsts[at]
        if seen[at] == start:
            cycles += 1
            round_trip, walked = 0, at
            while True:
                round_trip += ring[walked].distance(ring[firsts[walked]].me)
                walked = firsts[walked]
                if walked == at:
                    break
            if round_trip != ring[at].mask + 1:
                return [f"the ring through {ring[at].me} is not in order"]
    return [] if cycles == 1 else [f"{cycles} rings among {len(ring)} members"]


def count_principals(ring: Sequence[Overlay], lists: Iterable[tuple[Member, Sequence[Member]]]) -> int:
    """Members that no list skips. Dead entries of a list count as gone, which is what they are about to be."""
    live = {one.me: at for at, one in enumerate(ring)}
    keys = [one.me.key for one in ring]
    skipped: set[int] = set()
    count = len(ring)
    for begin, successors in lists:
        at = live.get(begin)
        if at is None:
            at = bisect_right(keys, begin.key) - 1
        for member in successors:
            to = live.get(member)
            if to is None:
                continue
            if to != (at + 1) % count:
                ahead = (at + 1) % count
                while ahead != to:
                    skipped.add(ahead)
                    ahead = (ahead + 1) % count
            at = to
    return count - len(skipped)


def keeps_promise(
    ring: dict[NodeId, Overlay],
    nodes: dict[NodeId, Overlay],
    under_way: Iterable[Packet],
    successors_max: int,
    *,
    victim: NodeId | None = None,
    claimed: bool = True,
) -> bool:
    """Whether a ring, after the crash of a victim, is one that it is promised to survive as.

    Every list, those under way to any node too, keeps a live successor, and enough principals remain.
    """
    rest = in_order(one for node, one in ring.items() if node != victim)
    live = {one.me for one in rest}
    if len(rest) < 2:
        return False
    lists = [(one.me, one.successors) for one in rest if one.successors]
    lists += [arriving for packet in under_way if (arriving := _arriving(packet, nodes)) is not None]
    # The victim's own lists die with it.
    lists = [(begin, listed) for begin, listed in lists if begin.node != victim]
    if any(not any(member in live for member in listed) for _, listed in lists):
        return False
    return not claimed or count_principals(rest, lists) > successors_max


def _arriving(packet: Packet, nodes: dict[NodeId, Overlay]) -> tuple[Member, tuple[Member, ...]] | None:
    """The list that a node will have when an answer arrives that is under way to it."""
    receiver = nodes.get(packet.to.node)
    request = receiver.pending.get(packet.token) if receiver is not None else None
    if receiver is None or request is None or packet.to != receiver.me:
        return None
    body = packet.body
    if isinstance(body, Neighbours):
        listed = (packet.sender, *body.successors)
    elif isinstance(body, PredecessorFound) and request.lookup is not None and request.lookup.use is Use.JOIN:
        listed = body.successors or (packet.sender,)
    else:
        return None
    ordered: list[Member] = []
    for member in listed[: receiver.settings.successors_max]:
        if receiver.distance(member) <= (receiver.distance(ordered[-1]) if ordered else 0):
            break
        ordered.append(member)
    return packet.to, tuple(ordered)
