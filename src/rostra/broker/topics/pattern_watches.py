"""Watches: clients that are notified of the topics that match their patterns, as these are created and deleted."""

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

    __slots__ = ("behind", "conn", "number", "patterns", "request", "started")

    def __init__(self, conn: Conn, number: int, patterns: tuple[Pattern, ...], request: int) -> None:
        self.conn = conn
        self.number = number
        self.patterns = patterns
        self.request = request
        """The request that opened it: a late answer to an earlier watch of the same number is ignored."""
        self.started = False
        """False until the fabric has confirmed that this node knows all topics."""
        self.behind = False
        """A notification was skipped because the connection was congested."""


class PatternWatches:
    """A trie finds the watches that match a topic: others cost nothing.

    A watch starts when the fabric has confirmed the topic table, and is rechecked periodically: a node that is cut off
    would miss topics without its watchers noticing.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._watches: dict[Conn, dict[int, ConnectionWatch]] = {}
        self._trie: PatternTrie[ConnectionWatch] = PatternTrie()
        self._recheck_token: int | None = None
        """Token of the pending recheck."""

    # --- requests ---

    def watch(self, conn: Conn, session: Session, message: Watch) -> None:
        watch = self._find(conn, message.watch)
        if message.after:
            error = self._next_page(message, watch)
        else:
            error = self._broker.over_limit(session) or self._open(conn, message, watch)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
        elif Safeguard.CONFIRMED_WATCH in self._broker.without and not message.after:
            self.start(conn, message)
        elif not message.after:
            self._broker.topic_requests.confirm(conn, session, message, "")

    def _open(self, conn: Conn, message: Watch, there: ConnectionWatch | None) -> RostraError | None:
        """The same number again replaces the watch."""
        bound = self._broker.settings.watches_per_connection_max
        if self._broker.stopping:
            return NodeStopping()
        if there is None and len(self._watches.get(conn, ())) >= bound:
            return LimitExceeded("watches_per_connection_max", bound)
        try:
            patterns = tuple(dict.fromkeys(Pattern.parse(written) for written in message.patterns))
        except InvalidPattern as error:
            return error
        self.forget(conn, message.watch)
        self._watches.setdefault(conn, {})[message.watch] = ConnectionWatch(
            conn, message.watch, patterns, message.request
        )
        return None

    def start(self, conn: Conn, message: Watch) -> None:
        """The topic table was confirmed after the watch was requested."""
        watch = self._find(conn, message.watch)
        if watch is None or watch.request != message.request:
            self._broker.refuse(conn, message.request, WatchEnded("it was cancelled meanwhile"))
            return
        if not watch.started:
            watch.started = True
            for pattern in watch.patterns:
                self._trie.add(pattern, watch)
        self._page(message, watch)

    def cancel(self, conn: Conn, message: Watch) -> None:
        """It could not be confirmed. If the client has asked again since, another watch has that number."""
        watch = self._find(conn, message.watch)
        if watch is not None and watch.request == message.request:
            self.forget(conn, message.watch)

    def _next_page(self, message: Watch, watch: ConnectionWatch | None) -> RostraError | None:
        if watch is None or not watch.started:
            return WatchEnded("there is no such watch")
        self._page(message, watch)
        return None

    def _page(self, message: Watch, watch: ConnectionWatch) -> None:
        topics, after = self._broker.topic_table.matching(watch.patterns, message.after, message.limit)
        answer = Watched(message.request, watch.number, topics, after, self._broker.known_nodes)
        self._broker.reply(watch.conn, answer)

    def unwatch(self, conn: Conn, message: Unwatch) -> None:
        self.forget(conn, message.watch)
        self._broker.reply(conn, Agreed(message.request))

    # --- notifications ---

    def topic_added(self, topic: Topic) -> None:
        for watch in self._trie.match(topic.name):
            self._notify(watch, TopicsAppeared(watch.number, (topic,)))

    def topic_removed(self, topic: Topic) -> None:
        for watch in self._trie.match(topic.name):
            self._notify(watch, TopicsGone(watch.number, (topic.topic,)))

    def _notify(self, watch: ConnectionWatch, message: NodeMessage) -> None:
        # Unsolicited messages have no other limit on how many wait for a client that does not read.
        if watch.behind or self._broker.delivery.is_congested(watch.conn):
            watch.behind = True
        else:
            self._broker.reply(watch.conn, message)

    def drained(self, conn: Conn) -> None:
        for watch in list(self._watches.get(conn, {}).values()):
            if watch.behind:
                self._end(watch, WatchEnded("the connection was full"))

    def forget(self, conn: Conn, number: int) -> None:
        watch = self._watches.get(conn, {}).pop(number, None)
        if watch is not None and watch.started:
            for pattern in watch.patterns:
                self._trie.remove(pattern, watch)

    def connection_lost(self, conn: Conn) -> None:
        for number in list(self._watches.get(conn, ())):
            self.forget(conn, number)
        self._watches.pop(conn, None)

    def _find(self, conn: Conn, number: int) -> ConnectionWatch | None:
        return self._watches.get(conn, {}).get(number)

    def _end(self, watch: ConnectionWatch, error: RostraError) -> None:
        self.forget(watch.conn, watch.number)
        self._broker.reply(watch.conn, Ended(watch.number, type(error).__name__, error.carried()))

    # --- rechecks ---

    def recheck(self) -> None:
        """Asks the fabric whether this node still learns of all topics."""
        if self._trie and self._recheck_token is None:
            self._recheck_token = self._broker.next_token()
            self._broker.step_fabric(Confirm(self._recheck_token, ""))

    def confirmed(self, token: int) -> bool:
        """True if the token belongs to a recheck."""
        if token != self._recheck_token:
            return False
        self._recheck_token = None
        return True

    def refused(self, token: int, error: RostraError) -> bool:
        if token != self._recheck_token:
            return False
        self._recheck_token = None
        for watches in list(self._watches.values()):
            for watch in [watch for watch in watches.values() if watch.started]:
                self._end(watch, WatchEnded("the node has lost its peers"))
        return True
