"""Packets out, and requests that are sent again until they are answered or the limit of misses is reached."""

from __future__ import annotations

from rostra.fabric.overlay.lookup_state import Lookup
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import Body, Packet
from rostra.fabric.overlay.pending_request import OverlayRequest, Purpose
from rostra.fabric.overlay.state import NEVER_US, Overlay
from rostra.safeguards import Safeguard


def send(overlay: Overlay, to: Member, body: Body, token: int = 0) -> None:
    overlay.effects.append(Packet(to, overlay.me, token, body))


def ask(overlay: Overlay, to: Member, body: Body, purpose: Purpose, lookup: Lookup | None = None) -> bool:
    """Sends a request. False if too many wait for an answer: whatever is periodic comes again."""
    if len(overlay.pending) >= overlay.settings.requests_max:
        return False
    overlay.tokens = token = overlay.tokens + 1
    due_us = overlay.now_us + overlay.settings.answer_ms * 1000
    overlay.pending[token] = OverlayRequest(to, body, purpose, due_us, lookup)
    if due_us < overlay.due_us:
        overlay.due_us = due_us
    send(overlay, to, body, token)
    return True


def awaits(overlay: Overlay, purpose: Purpose, to: Member | None = None) -> bool:
    """Whether a request for this purpose, to this member or to any, has no answer yet."""
    return any(request.purpose is purpose and (to is None or request.to == to) for request in overlay.pending.values())


def expired(overlay: Overlay) -> list[OverlayRequest]:
    """Sends again what is overdue; returns the requests that reached the limit of misses."""
    now_us = overlay.now_us
    overdue = [token for token, request in overlay.pending.items() if request.due_us <= now_us]
    limit = 1 if Safeguard.MISS_LIMIT in overlay.without else overlay.settings.misses_max
    given_up = []
    for token in overdue:
        request = overlay.pending[token]
        request.misses += 1
        if request.misses >= limit:
            given_up.append(overlay.pending.pop(token))
        else:
            request.due_us = now_us + overlay.settings.answer_ms * 1000
            send(overlay, request.to, request.body, token)
    overlay.due_us = min((request.due_us for request in overlay.pending.values()), default=NEVER_US)
    return given_up
