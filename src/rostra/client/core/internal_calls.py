"""Calls and subscriptions that the core itself starts. Their results stay in the core and do not reach the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, Finish, Result, SubscriptionNumber
from rostra.errors import RostraError

Outcome = Callable[[int, Result | RostraError], None]
"""Called with the time and the result."""


class InternalCalls:
    """Calls with negative numbers. Their results are processed in the next tick, which is due at once."""

    def __init__(self) -> None:
        self.started = 0
        """Number of calls so far."""
        self._open: dict[CallNumber, Outcome] = {}
        self._watched: dict[SubscriptionNumber, Outcome] = {}
        self._unwatched: dict[SubscriptionNumber, None] = {}
        """Subscriptions closed since the last `intercept`; a `Finish` of theirs is ignored."""
        self._completed: deque[tuple[Outcome, Result | RostraError]] = deque()

    def new(self, outcome: Outcome) -> CallNumber:
        self.started += 1
        self._open[-self.started] = outcome
        return -self.started

    def forget(self, call: CallNumber) -> None:
        self._open.pop(call, None)

    def watch(self, subscription: SubscriptionNumber, finished: Outcome) -> None:
        """Call `finished` when the subscription ends without having been closed."""
        self._watched[subscription] = finished

    def unwatch(self, subscription: SubscriptionNumber) -> None:
        if self._watched.pop(subscription, None) is not None:
            self._unwatched[subscription] = None

    def intercept(self, effects: list[ClientEffect]) -> list[ClientEffect]:
        """Remove the effects for internal calls and subscriptions, and return those for the driver."""
        others: list[ClientEffect] = []
        for effect in effects:
            match effect:
                case Done(call=call, result=result) if call < 0:
                    self._complete(self._open.pop(call, None), result)
                case Fail(call=call, error=error) if call < 0:
                    self._complete(self._open.pop(call, None), error)
                case Finish(subscription=number, error=error) if number in self._watched:
                    self._complete(self._watched.pop(number), error)
                case Finish(subscription=number) if number in self._unwatched:
                    pass
                case _:
                    others.append(effect)
        self._unwatched.clear()
        return others

    def _complete(self, outcome: Outcome | None, result: Result | RostraError) -> None:
        if outcome is not None:
            self._completed.append((outcome, result))

    def deadline_us(self) -> int | None:
        return 0 if self._completed else None

    def tick(self, now_us: int) -> None:
        while self._completed:
            outcome, result = self._completed.popleft()
            outcome(now_us, result)
