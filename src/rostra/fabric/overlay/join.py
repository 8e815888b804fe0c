"""How a node becomes a member: it founds a ring, joins one through a contact, or begins again after a restart."""

from __future__ import annotations

from rostra.fabric.overlay.effects import Joined
from rostra.fabric.overlay.lookup import pursue
from rostra.fabric.overlay.lookup_state import Lookup, Use
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import Notified, OverlayHello, SuccessorHint
from rostra.fabric.overlay.pending_request import Purpose
from rostra.fabric.overlay.ring import NOTIFY, follow, remember, set_predecessor, stabilize
from rostra.fabric.overlay.rpc import ask, awaits, send
from rostra.fabric.overlay.state import Overlay
from rostra.model.keyspace import Key
from rostra.safeguards import Safeguard

HELLO = OverlayHello()
SUCCESSOR_HINT = SuccessorHint()
_MS_US = 1000


def create(overlay: Overlay, now_us: int) -> None:
    """The first node of a cluster is a ring of one."""
    _start_timers(overlay, now_us)
    overlay.joined = True
    overlay.effects.append(Joined(overlay.me))


def join(overlay: Overlay, now_us: int, contacts: tuple[Member, ...]) -> None:
    """Joins the ring of the contacts, trying them in turn until one leads to it."""
    if not contacts:
        raise ValueError("a node joins through at least one contact; the first node founds the ring")
    _start_timers(overlay, now_us)
    overlay.contacts = contacts
    attempt(overlay)


def restart(overlay: Overlay, now_us: int, former: tuple[Member, ...]) -> None:
    """Begins as a ring of one that tries its former neighbours; what it knew of the ring may long be wrong."""
    _start_timers(overlay, now_us)
    overlay.joined = True
    for member in reversed(former):
        remember(overlay, member)
    if Safeguard.RESTART_ALONE in overlay.without and former:
        follow(overlay, former[0], former[1:])
    overlay.effects.append(Joined(overlay.me))


def join_through(overlay: Overlay, contact: Member) -> None:
    """A ring of one met another ring, and gives up its own."""
    if not overlay.contacts:
        overlay.contacts = (contact,)
        attempt(overlay)


def attempt(overlay: Overlay) -> None:
    """Greets the next contact, unless an attempt is under way."""
    if overlay.join_lookup is not None or not overlay.contacts:
        return
    if not awaits(overlay, Purpose.CONTACT) and not awaits(overlay, Purpose.INTRODUCE):
        contact = overlay.contacts[overlay.join_attempts % len(overlay.contacts)]
        overlay.join_attempts += 1
        ask(overlay, contact, HELLO, Purpose.CONTACT)


def contacted(overlay: Overlay, contact: Member) -> None:
    """A contact has answered: looks up the own key through it."""
    if overlay.join_lookup is not None or not overlay.contacts:
        return
    overlay.join_lookup = lookup = Lookup(overlay.me.key, contact, Use.JOIN)
    if pursue(overlay, lookup):
        looked_up(overlay, lookup)


def not_answered(overlay: Overlay) -> None:
    """An attempt to join failed. A new node tries its next contact; a ring of one waits until it meets another."""
    if overlay.joined:
        overlay.contacts = ()


def looked_up(overlay: Overlay, lookup: Lookup) -> None:
    """The predecessor of the own key is known, with its list: with them the node becomes a member at once."""
    if overlay.join_lookup is not lookup:
        return
    overlay.join_lookup = None
    if overlay.successors or (overlay.joined and overlay.predecessor is not None):
        # Somebody has joined this ring of one meanwhile: two rings now, which unification will join.
        overlay.contacts = ()
        return
    if not lookup.owners:
        not_answered(overlay)
        return
    predecessor = lookup.at
    same = next((m for m in (*lookup.owners, predecessor) if m.key == overlay.me.key), None)
    if same is not None and same.node != overlay.me.node and Safeguard.ID_COLLISION not in overlay.without:
        take_new_key(overlay, lookup.at)
        return
    if same is not None and same.node == overlay.me.node and same != overlay.me:
        # The ring still takes this node's former life for alive; it will notice, and then there is room.
        return
    listed = [m for m in lookup.owners if m.node != overlay.me.node and m != predecessor]
    if listed:
        _become_member(overlay, predecessor, listed[0], tuple(listed[1:]))
    # A ring of one may be joining another ring itself; it has to accept this node as its predecessor first.
    ask(overlay, listed[0] if listed else predecessor, NOTIFY, Purpose.INTRODUCE)


def _become_member(overlay: Overlay, predecessor: Member, successor: Member, following: tuple[Member, ...]) -> None:
    overlay.contacts = ()
    overlay.joined = True
    set_predecessor(overlay, predecessor)
    follow(overlay, successor, following)
    overlay.effects.append(Joined(overlay.me))


def introduced(overlay: Overlay, successor: Member, answer: Notified) -> None:
    """The successor has answered the first notify: the predecessor may be told, so that it need not wait for a round.

    Not before: of two that joined with the same key at once the successor accepts one, and only that one is shown to
    others.
    """
    accepted = answer.predecessor
    if not overlay.joined or overlay.lone:
        # Whoever has successors by now is no ring of one any more: the next round looks up the place in its ring.
        if accepted == overlay.me and not answer.has_successors:
            others = overlay.contacts
            _become_member(overlay, successor, successor, ())
            # It may be a ring of one because it restarted: then the others are where the ring is.
            for contact in others:
                if contact.node != successor.node:
                    remember(overlay, contact)
    elif accepted == overlay.me:
        if overlay.predecessor is not None:
            send(overlay, overlay.predecessor, SUCCESSOR_HINT)
    elif accepted is not None and is_collision(overlay, accepted):
        take_new_key(overlay, accepted)
        return
    stabilize(overlay)


def is_collision(overlay: Overlay, other: Member) -> bool:
    same = other.key == overlay.me.key and other.node != overlay.me.node
    return same and Safeguard.ID_COLLISION not in overlay.without


def take_new_key(overlay: Overlay, contact: Member) -> None:
    """Another node has this key: draws a new one and joins again. Whatever was known belonged to the old place."""
    me = overlay.me
    drawn = Key(overlay.random.getrandbits(overlay.settings.bits))
    overlay.me = Member(drawn, me.node, me.boot, me.address)
    contacts = dict.fromkeys((contact, *overlay.contacts, *overlay.successors))
    overlay.joined = False
    overlay.successors = ()
    overlay.predecessor = overlay.contender = None
    overlay.fingers = [None] * overlay.settings.bits
    overlay.next_finger = 0
    overlay.pending.clear()
    overlay.detections.clear()
    overlay.join_lookup = None
    overlay.changed = True
    overlay.contacts = tuple(contacts)
    overlay.join_attempts = 0
    attempt(overlay)


def _start_timers(overlay: Overlay, now_us: int) -> None:
    """The first round comes somewhere within a period, so that nodes started together do not act in step."""
    settings, random = overlay.settings, overlay.random
    overlay.now_us = now_us
    overlay.stabilize_us = now_us + int(random.uniform(0, settings.stabilize_ms_max) * _MS_US)
    overlay.probe_us = now_us + int(random.uniform(0, settings.probe_ms) * _MS_US)
    if settings.heartbeat_ms:
        overlay.heartbeat_us = now_us + int(random.uniform(0, settings.heartbeat_ms) * _MS_US)
