"""Which topic a name means, and where its partitions are served, as far as this client has been told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rostra.client.core.asks import Ask, Asks
from rostra.client.core.link import Link
from rostra.errors import PeerViolation, RostraError
from rostra.wire.messages import Locate, Located, NodeMessage

NAMES_MAX = 10_000

OnPlace = Callable[[int, Located], None]
OnError = Callable[[int, RostraError], None]


class Directory:
    """Answers of `Locate`, kept; a name is asked for once however many wait for it."""

    def __init__(self, link: Link, asks: Asks, *, create: bool, timeout_us: int) -> None:
        self._link = link
        self._asks = asks
        self._create = create
        self._timeout_us = timeout_us
        self._known: dict[str, Located] = {}
        self._waiting: dict[str, list[tuple[OnPlace, OnError]]] = {}

    def find(self, now_us: int, name: str, found: OnPlace, failed: OnError) -> None:
        known = self._known.get(name)
        if known is not None:
            found(now_us, known)
            return
        waiting = self._waiting.setdefault(name, [])
        waiting.append((found, failed))
        if len(waiting) == 1:
            build = partial(Locate, name=name, create=self._create)
            ask = Ask(
                f"locate {name}",
                build,
                partial(self._found, name),
                partial(self._failed, name),
                now_us + self._timeout_us,
            )
            self._asks.add(now_us, ask)

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def forget_all(self) -> None:
        self._known.clear()

    def _found(self, name: str, now_us: int, message: NodeMessage) -> None:
        if not isinstance(message, Located):
            raise PeerViolation("message not expected now", f"{type(message).__name__} to Locate")
        if len(self._known) >= NAMES_MAX:
            del self._known[next(iter(self._known))]
        self._known[name] = message
        for place in message.places:
            self._link.learn(place.address)
        for found, _ in self._waiting.pop(name, ()):
            found(now_us, message)

    def _failed(self, name: str, now_us: int, error: RostraError) -> None:
        for _, failed in self._waiting.pop(name, ()):
            failed(now_us, error)
