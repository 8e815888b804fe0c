"""The ring itself: stabilize, rectify and notify, successor lists, and what the death of a neighbour means.

After Zave: a node takes a nearer successor only when that one has answered, and with its list; a successor list is
always the list of one other node behind that node itself; a predecessor is replaced by one further back only when it
is dead.
"""

from __future__ import annotations

from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import GetNeighbours, Neighbours, OverlayNotify, OverlayPing
from rostra.fabric.overlay.pending_request import OverlayRequest, Purpose
from rostra.fabric.overlay.routing import known_members
from rostra.fabric.overlay.rpc import ask, awaits, send
from rostra.fabric.overlay.state import Overlay
from rostra.safeguards import Safeguard

GET_NEIGHBOURS = GetNeighbours()
NOTIFY = OverlayNotify()
PING = OverlayPing()


def stabilize(overlay: Overlay) -> None:
    """Asks the successor for its neighbours."""
    successor = overlay.successor
    if successor is None:
        recover(overlay)
    elif not awaits(overlay, Purpose.STABILIZE):
        ask(overlay, successor, GET_NEIGHBOURS, Purpose.STABILIZE)


def successor_answered(overlay: Overlay, request: OverlayRequest, answer: Neighbours) -> None:
    """The successor's neighbours: its list becomes ours behind it, and its predecessor may be nearer to us."""
    successor = request.to
    if overlay.successor != successor:
        return
    # Without a list of its own it is a ring of one that we are joining, or has lost everybody: ours is all there is.
    follow(overlay, successor, answer.successors or overlay.successors[1:])
    nearer = answer.predecessor
    if nearer is None or not overlay.between(nearer, successor):
        send(overlay, successor, NOTIFY)
    elif Safeguard.CHECK_BEFORE_ADOPT in overlay.without:
        set_successors(overlay, (nearer, *overlay.successors[1:]))
        send(overlay, nearer, NOTIFY)
    else:
        consider(overlay, nearer)


def consider(overlay: Overlay, member: Member) -> None:
    """A member that may be a nearer successor is asked for its list before it becomes one."""
    successor = overlay.successor or overlay.me
    if overlay.joined and overlay.between(member, successor) and not awaits(overlay, Purpose.ADOPT, member):
        ask(overlay, member, GET_NEIGHBOURS, Purpose.ADOPT)


def candidate_answered(overlay: Overlay, request: OverlayRequest, answer: Neighbours) -> None:
    candidate = request.to
    successor = overlay.successor
    if successor is None:
        # The one who answered may lie behind this node, and know who comes after it. What it lists may be dead.
        lost = overlay.passive.values()
        ahead = [member for member in answer.successors if overlay.distance(member) and member not in lost]
        nearest = min((candidate, *ahead), key=overlay.distance)
        if nearest != candidate:
            consider(overlay, nearest)
            return
    elif not answer.successors or not overlay.between(candidate, successor):
        # A ring of one has no list to give; only a node that has none either may follow it.
        return
    follow(overlay, candidate, answer.successors)
    nearer = answer.predecessor
    if nearer is not None and overlay.between(nearer, candidate):
        # Many joined in this gap, or a ring is being unified: one of them a round would take as many rounds.
        consider(overlay, nearer)
    else:
        send(overlay, candidate, NOTIFY)


def candidate_silent(overlay: Overlay, request: OverlayRequest) -> None:
    """It is dead. The successor that named it must check it too."""
    lose_if_known(overlay, request.to)
    if overlay.successor is not None:
        send(overlay, overlay.successor, NOTIFY)
    else:
        remember(overlay, request.to)
        recover(overlay)


def follow(overlay: Overlay, successor: Member, following: tuple[Member, ...]) -> None:
    """Takes a successor with the list behind it, up to where this node itself would come."""
    listed = [successor]
    reach = overlay.distance(successor)
    for member in following[: overlay.settings.successors_max - 1]:
        ahead = overlay.distance(member)
        if ahead <= reach and Safeguard.LIST_ORDER not in overlay.without:
            break
        listed.append(member)
        reach = ahead
    set_successors(overlay, tuple(listed))


def set_successors(overlay: Overlay, successors: tuple[Member, ...]) -> None:
    if successors != overlay.successors:
        overlay.successors = successors
        overlay.changed = True


def set_predecessor(overlay: Overlay, member: Member | None) -> None:
    if member != overlay.predecessor:
        overlay.predecessor = member
        overlay.changed = True


def rectify(overlay: Overlay, member: Member) -> None:
    """A member says that it may be the predecessor. One further back has to wait until the present one is dead."""
    if not overlay.joined or member.key == overlay.me.key:
        return
    predecessor = overlay.predecessor
    if predecessor is None:
        set_predecessor(overlay, member)
    elif (member.key - predecessor.key) & overlay.mask < (overlay.me.key - predecessor.key) & overlay.mask:
        if member.key != predecessor.key or (member.node == predecessor.node and member.boot > predecessor.boot):
            set_predecessor(overlay, member)
    elif Safeguard.RECTIFY not in overlay.without:
        overlay.contender = member
        check(overlay, predecessor)
    if not overlay.successors:
        consider(overlay, member)


def heartbeat(overlay: Overlay) -> None:
    """Asks the neighbours whether they live."""
    if overlay.successor is not None:
        check(overlay, overlay.successor)
    if overlay.predecessor is not None and Safeguard.RECTIFY not in overlay.without:
        check(overlay, overlay.predecessor)


def check(overlay: Overlay, member: Member) -> None:
    if not awaits(overlay, Purpose.HEARTBEAT, member):
        ask(overlay, member, PING, Purpose.HEARTBEAT)


def lose(overlay: Overlay, member: Member) -> None:
    """A member is dead: the next of the list replaces a successor, a predecessor is forgotten, fingers too."""
    remember(overlay, member)
    if overlay.contender == member:
        overlay.contender = None
    if overlay.predecessor == member:
        set_predecessor(overlay, overlay.contender)
        overlay.contender = None
    if member in overlay.fingers:
        overlay.fingers = [None if finger == member else finger for finger in overlay.fingers]
    if member in overlay.successors:
        was_first = overlay.successors[0] == member
        set_successors(overlay, tuple(one for one in overlay.successors if one != member))
        if was_first:
            for token in [t for t, r in overlay.pending.items() if r.purpose is Purpose.STABILIZE]:
                del overlay.pending[token]
            stabilize(overlay)


def lose_if_known(overlay: Overlay, member: Member) -> None:
    if member in overlay.successors or member in overlay.fingers or member == overlay.predecessor:
        lose(overlay, member)


def recover(overlay: Overlay) -> None:
    """Without a successor: the nearest finger that answers becomes one, else whom the predecessor names.

    More successors died at once than the list holds, or a split took them. Stabilize then finds the way back from the
    finger to the true successor.
    """
    if awaits(overlay, Purpose.ADOPT):
        return
    for member in known_members(overlay):
        ask(overlay, member, GET_NEIGHBOURS, Purpose.ADOPT)
        return


def remember(overlay: Overlay, member: Member) -> None:
    """Puts a lost member on the passive list; at its bound the oldest goes."""
    if Safeguard.PASSIVE_LIST in overlay.without or member.node == overlay.me.node:
        return
    overlay.passive.pop(member.node, None)
    overlay.passive[member.node] = member
    overlay.changed = True
    while len(overlay.passive) > overlay.settings.passive_max:
        del overlay.passive[next(iter(overlay.passive))]
