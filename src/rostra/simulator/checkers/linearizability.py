"""Topic metadata is linearizable: requests about a name take effect one by one, each between request and reply.

The algorithm of Wing and Gong: search for an order in which every reply is that of a single registry. Requests with an
unknown outcome, or that were sent more than once, may have taken effect at any later time, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rostra.simulator.history import History, TopicNameRequest

STEPS_MAX = 50_000
"""A history whose search takes longer counts as possible."""
NEVER_US = 1 << 62
NONE, SOME = 0, -1
"""No topic has the name; a topic with an unknown id has it."""


def check(history: History) -> list[str]:
    names = dict.fromkeys(request.name for request in history.name_requests)
    found: list[str] = []
    for name in names:
        request = [one for one in history.name_requests if one.name == name]
        if not is_possible(request):
            found.append(f"no order explains the replies about {name}: {'; '.join(map(_describe, request))}")
    return found


def is_possible(history: Iterable[TopicNameRequest]) -> bool:
    requests, musts = _requests(history)
    everything = (1 << musts) - 1
    seen: set[tuple[int, int]] = set()
    stack = [(0, NONE)]
    steps = 0
    while stack:
        done, topic = stack.pop()
        if done & everything == everything:
            return True
        if (done, topic) in seen:
            continue
        seen.add((done, topic))
        steps += 1
        if steps > STEPS_MAX:
            return True
        stack += _following(requests, done, topic)
    return False


def _requests(history: Iterable[TopicNameRequest]) -> tuple[list[TopicNameRequest], int]:
    """Requests that must have taken effect, latest reply first, then those that may have; the number of the former."""
    musts: list[TopicNameRequest] = []
    mays: list[TopicNameRequest] = []
    for one in history:
        changes = one.what in ("create", "delete")
        if one.outcome is not None:
            musts.append(one)
        if changes and (one.outcome is None or not one.sent_once):
            mays.append(one._replace(outcome=None, ended_us=NEVER_US))
        if changes and one.outcome is None and not one.sent_once:
            mays.append(mays[-1])
    return [*sorted(musts, key=lambda one: one.ended_us, reverse=True), *mays], len(musts)


def _following(requests: list[TopicNameRequest], done: int, topic: int) -> Iterator[tuple[int, int]]:
    left = [(at, one) for at, one in enumerate(requests) if not done >> at & 1]
    first_us = min(one.ended_us for _, one in left)
    for at, one in left:
        if one.began_us <= first_us:
            after = _after(one, topic)
            if after is not None:
                yield done | 1 << at, after


def _after(request: TopicNameRequest, topic: int) -> int | None:
    """The topic of the name after this request; None if its reply was not possible."""
    outcome = request.outcome
    match request.what:
        case "create":
            if outcome == -1:
                return topic if topic != NONE else None
            if topic == NONE:
                return outcome or SOME
            # A retry is answered with the existing topic, which its first attempt may have created.
            return outcome if outcome is not None and not request.sent_once and topic in (outcome, SOME) else None
        case "delete":
            if outcome == 0:
                return NONE if topic == NONE else None
            # A retry succeeds when there is nothing left to delete.
            return NONE if topic != NONE or not request.sent_once else None
        case _:
            if topic == SOME and outcome:
                return outcome
            return topic if topic == outcome else None


def _describe(request: TopicNameRequest) -> str:
    outcome = (
        "?" if request.outcome is None else {0: "none", -1: "some"}.get(request.outcome, f"{request.outcome % 9973}")
    )
    again = "" if request.sent_once else " (again)"
    return f"{request.who} {request.what} {request.began_us / 1e6:.3f}-{request.ended_us / 1e6:.3f} {outcome}{again}"
