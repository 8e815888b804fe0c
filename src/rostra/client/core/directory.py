"""Looking up which topic a name means and where its partitions are served."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rostra.client.core.asks import Answer, Ask, Asks
from rostra.client.core.link import Link
from rostra.errors import PeerViolation, RostraError
from rostra.wire.frames import Violation
from rostra.wire.messages import Locate, Located

OnPlace = Callable[[int, Located], None]
OnError = Callable[[int, RostraError], None]


class Directory:
    """A name is asked for once however many wait for it. Producers and subscriptions keep what they were told; whoever
    comes anew asks anew, for the topic may have been created again meanwhile.
    """

    def __init__(self, link: Link, asks: Asks, *, create: bool, timeout_us: int) -> None:
        self._link = link
        self._asks = asks
        self._create = create
        self._timeout_us = timeout_us
        self._waiting: dict[str, list[tuple[OnPlace, OnError]]] = {}

    def find(self, now_us: int, name: str, found: OnPlace, failed: OnError) -> None:
        waiting = self._waiting.setdefault(name, [])
        waiting.append((found, failed))
        if len(waiting) == 1:
            ask = Ask(
                f"locate {name}",
                partial(Locate, name=name, create=self._create),
                partial(self._found, name),
                partial(self._failed, name),
                now_us + self._timeout_us,
            )
            self._asks.add(now_us, ask)

    def _found(self, name: str, now_us: int, message: Answer) -> None:
        if not isinstance(message, Located):
            raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to Locate")
        for place in message.places:
            self._link.learn(place.address)
        for found, _ in self._waiting.pop(name, ()):
            found(now_us, message)

    def _failed(self, name: str, now_us: int, error: RostraError) -> None:
        for _, failed in self._waiting.pop(name, ()):
            failed(now_us, error)
