"""Clients that want to know which topics match their patterns, now and as topics come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.broker.api import Conn
from rostra.broker.sessions import Session
from rostra.errors import InvalidPattern, LimitExceeded, NodeStopping, RostraError, WatchEnded
from rostra.fabric.api import Confirm
from rostra.model.patterns import Pattern, PatternTrie
from rostra.safeguards import Safeguard
from rostra.wire.messages import Agreed, Ended, NodeMessage, Topic, TopicsAppeared, TopicsGone, Unwatch, Watch, Watched

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class ConnectionWatch:
    """One watch of one connection."""

    __slots__ = ("begun", "behind", "conn", "number", "patterns", "request")

    def __init__(self, conn: Conn, number: int, patterns: tuple[Pattern, ...], request: int) -> None:
        self.conn = conn
        self.number = number
        self.patterns = patterns
        self.request = request
        """With which it was asked for: what the fabric says to an earlier one of its number does not concern it."""
        self.begun = False
        """False until it is certain that this node knows all topics there are."""
        self.behind = False
        """Something was not told, because the connection had no room for it."""


class PatternWatches:
    """What a topic's coming costs depends on who watches for it, not on who watches for others.

    A watch begins when the fabric has confirmed the catalogue, and goes on only while it does so again and again: a
    node that is cut off would tell of nothing, and its watchers would not know what they miss.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._watchers: dict[Conn, dict[int, ConnectionWatch]] = {}
        self._trie: PatternTrie[ConnectionWatch] = PatternTrie()
        self._doubt: int | None = None
        """The token under which the fabric is asked whether this node still knows all topics."""

    # --- requests ---

    def watch(self, conn: Conn, session: Session, message: Watch) -> None:
        watcher = self._find(conn, message.watch)
        if message.after:
            error = self._next_page(message, watcher)
        else:
            error = self._broker.too_many(session) or self._open(conn, message, watcher)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
        elif Safeguard.CONFIRMED_WATCH in self._broker.without and not message.after:
            self.begin(conn, message)
        elif not message.after:
            self._broker.topics.confirm(conn, session, message, "")

    def _open(self, conn: Conn, message: Watch, there: ConnectionWatch | None) -> RostraError | None:
        """The same number again is the same client that starts over."""
        bound = self._broker.settings.watches_per_connection_max
        if self._broker.stopping:
            return NodeStopping()
        if there is None and len(self._watchers.get(conn, ())) >= bound:
            return LimitExceeded("watches_per_connection_max", bound)
        try:
            patterns = tuple(dict.fromkeys(Pattern.parse(written) for written in message.patterns))
        except InvalidPattern as error:
            return error
        self.forget(conn, message.watch)
        self._watchers.setdefault(conn, {})[message.watch] = ConnectionWatch(
            conn, message.watch, patterns, message.request
        )
        return None

    def begin(self, conn: Conn, message: Watch) -> None:
        """This node's catalogue was confirmed since the watch was asked for."""
        watcher = self._find(conn, message.watch)
        if watcher is None or watcher.request != message.request:
            self._broker.refuse(conn, message.request, WatchEnded("it was given up meanwhile"))
            return
        if not watcher.begun:
            watcher.begun = True
            for pattern in watcher.patterns:
                self._trie.add(pattern, watcher)
        self._page(message, watcher)

    def give_up(self, conn: Conn, message: Watch) -> None:
        """It could not be confirmed. Whoever lost patience, and asked again since, has another watch by that number."""
        watcher = self._find(conn, message.watch)
        if watcher is not None and watcher.request == message.request:
            self.forget(conn, message.watch)

    def _next_page(self, message: Watch, watcher: ConnectionWatch | None) -> RostraError | None:
        if watcher is None or not watcher.begun:
            return WatchEnded("there is no such watch")
        self._page(message, watcher)
        return None

    def _page(self, message: Watch, watcher: ConnectionWatch) -> None:
        topics, after = self._broker.catalogue.matching(watcher.patterns, message.after, message.limit)
        answer = Watched(message.request, watcher.number, topics, after, self._broker.neighbours)
        self._broker.reply(watcher.conn, answer)

    def unwatch(self, conn: Conn, message: Unwatch) -> None:
        self.forget(conn, message.watch)
        self._broker.reply(conn, Agreed(message.request))

    # --- coming and going ---

    def appeared(self, topic: Topic) -> None:
        for watcher in self._trie.match(topic.name):
            self._tell(watcher, TopicsAppeared(watcher.number, (topic,)))

    def gone(self, topic: Topic) -> None:
        for watcher in self._trie.match(topic.name):
            self._tell(watcher, TopicsGone(watcher.number, (topic.topic,)))

    def _tell(self, watcher: ConnectionWatch, message: NodeMessage) -> None:
        # Nobody asked for this message, so nothing else bounds how many wait for a client that reads none.
        if watcher.behind or self._broker.delivery.is_congested(watcher.conn):
            watcher.behind = True
        else:
            self._broker.reply(watcher.conn, message)

    def drained(self, conn: Conn) -> None:
        for watcher in list(self._watchers.get(conn, {}).values()):
            if watcher.behind:
                self._end(watcher, WatchEnded("the connection was full"))

    def forget(self, conn: Conn, number: int) -> None:
        watcher = self._watchers.get(conn, {}).pop(number, None)
        if watcher is not None and watcher.begun:
            for pattern in watcher.patterns:
                self._trie.remove(pattern, watcher)

    def lose(self, conn: Conn) -> None:
        for number in list(self._watchers.get(conn, ())):
            self.forget(conn, number)
        self._watchers.pop(conn, None)

    def _find(self, conn: Conn, number: int) -> ConnectionWatch | None:
        return self._watchers.get(conn, {}).get(number)

    def _end(self, watcher: ConnectionWatch, error: RostraError) -> None:
        self.forget(watcher.conn, watcher.number)
        self._broker.reply(watcher.conn, Ended(watcher.number, type(error).__name__, error.carried()))

    # --- doubts ---

    def doubt(self) -> None:
        """Asks the fabric, now and then, whether this node still hears of all topics."""
        if self._trie and self._doubt is None:
            self._doubt = self._broker.next_token()
            self._broker.ask_fabric(Confirm(self._doubt, ""))

    def confirmed(self, token: int) -> bool:
        """True if the token was that of a doubt."""
        if token != self._doubt:
            return False
        self._doubt = None
        return True

    def refused(self, token: int, error: RostraError) -> bool:
        if token != self._doubt:
            return False
        self._doubt = None
        for watchers in list(self._watchers.values()):
            for watcher in [watcher for watcher in watchers.values() if watcher.begun]:
                self._end(watcher, WatchEnded("the node has lost the others"))
        return True
