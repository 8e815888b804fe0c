"""Rings laid out as they would be after a long quiet time, for experiments with static tables."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from random import Random

from rostra.fabric.overlay.lookup import answer_find_predecessor
from rostra.fabric.overlay.lookup_state import Lookup, Use, advance, finish, retreat
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import CloserNode, FindPredecessor
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.fabric.overlay.state import Overlay
from rostra.model.ids import NodeId
from rostra.model.keyspace import Key


def draw_keys(random: Random, count: int, bits: int) -> list[Key]:
    """Distinct keys, ascending."""
    drawn: set[int] = set()
    while len(drawn) < count:
        drawn.add(random.getrandbits(bits))
    return [Key(key) for key in sorted(drawn)]


def lay_out(keys: Sequence[Key], settings: OverlaySettings, random: Random, first_node: int = 1) -> list[Overlay]:
    """A ring of these keys in which every list and finger is right. Its timers are not set."""
    members = [Member(key, NodeId(first_node + at)) for at, key in enumerate(keys)]
    count, mask = len(members), settings.size - 1
    length = min(settings.successors_max, count - 1)
    round_trip = members + members[:length]
    ring = []
    for at, member in enumerate(members):
        overlay = Overlay(member, settings, random)
        overlay.joined = True
        ring.append(overlay)
        if count == 1:
            break
        overlay.predecessor = members[at - 1]
        overlay.successors = tuple(round_trip[at + 1 : at + 1 + length])
        successor = round_trip[(at + 1) % count] if length else members[(at + 1) % count]
        near = ((successor.key - member.key) & mask).bit_length()
        fingers: list[Member | None] = [successor] * near
        for index in range(near, settings.bits):
            place = bisect_left(keys, (member.key + (1 << index)) & mask)
            fingers.append(members[place] if place < count else members[0])
        overlay.fingers = fingers
    return ring


def walk(origin: Overlay, key: Key, nodes: dict[NodeId, Overlay]) -> Lookup:
    """A lookup step by step without messages; a node that is missing does not answer, and nobody repairs anything."""
    lookup = Lookup(key, origin.me, Use.CALLER)
    mask, excluded_max = origin.mask, origin.settings.excluded_max
    while not lookup.found:
        asked = nodes.get(lookup.at.node)
        if asked is None:
            if not retreat(lookup, excluded_max):
                break
            continue
        answer = answer_find_predecessor(asked, FindPredecessor(key, lookup.excluded))
        if isinstance(answer, CloserNode):
            if not advance(lookup, answer.member, mask):
                break
        else:
            finish(lookup, answer.successors, mask)
    return lookup
