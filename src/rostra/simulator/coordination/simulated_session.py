"""A node's session with the simulated service, on virtual time: what `runtime/coordination` does with the real one.

Requests and messages travel in order, each after a drawn delay. A disconnect loses the messages on their way; of the
requests on their way the first few still arrive, unless the session has moved to another server before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from rostra.fabric.coordination import (
    CoordinationAnswer,
    CoordinationMessage,
    CoordinationRequest,
    FailureReason,
    RequestFailed,
    SessionDisconnected,
    SessionExpired,
    SessionResumed,
    SessionStarted,
)
from rostra.simulator.clock import MS_US, Clock
from rostra.simulator.coordination.service import CoordinationService, ServerConnection, ServerMessage

DELAY_US_MAX = 2 * MS_US
RECONNECT_US_MAX = 200 * MS_US
OUTSTANDING_MAX = 1024


class SimulatedSession:
    """Opens a session, reconnects and replaces an expired session by itself, until `end`."""

    def __init__(
        self,
        service: CoordinationService,
        clock: Clock,
        random: Random,
        deliver: Callable[[CoordinationMessage], None],
        *,
        delay_us_max: int = DELAY_US_MAX,
        outstanding_max: int = OUTSTANDING_MAX,
    ) -> None:
        self.reachable = True
        """Whether this node can connect to the service at all; see `isolate`."""
        self.next_server: int | None = None
        """The server to connect to; None draws one."""
        self._service = service
        self._clock = clock
        self._random = random
        self._deliver = deliver
        self._delay_us_max = delay_us_max
        self._outstanding_max = outstanding_max
        self._session = 0
        self._link: _Link | None = None
        self._outstanding: deque[int] = deque()
        self._last_seen = 0
        self._disconnected_us = 0
        self._ended = False

    @property
    def session(self) -> int:
        """The current session, connected or not; 0 before the first."""
        return self._session

    @property
    def connected(self) -> bool:
        return self._link is not None

    def start(self) -> None:
        self._clock.after(self._random.randint(0, self._delay_us_max), self._connect)

    def submit(self, request: CoordinationRequest) -> None:
        if self._link is None:
            self._deliver(CoordinationAnswer(request.number, RequestFailed(FailureReason.NOT_CONNECTED)))
        elif len(self._outstanding) >= self._outstanding_max:
            self._deliver(CoordinationAnswer(request.number, RequestFailed(FailureReason.TOO_MANY)))
        else:
            self._outstanding.append(request.number)
            self._link.request(request)

    def end(self, *, closed: bool) -> None:
        """The node stops and closes its session, or crashes and leaves it to the timeout."""
        self._ended = True
        if self._link is not None:
            self._link.break_off(0)
            self._link = None
        if closed:
            self._service.expire(self._session)

    # --- faults ---

    def disconnect(self, requests_arriving: int | None = None) -> None:
        """Breaks the connection; of the requests on their way this many still arrive (None draws it)."""
        if self._link is None:
            return
        if requests_arriving is None:
            requests_arriving = self._random.randint(0, self._link.requests_under_way)
        self._link.break_off(requests_arriving)
        self._link = None
        for number in self._outstanding:
            self._deliver(CoordinationAnswer(number, RequestFailed(FailureReason.OUTCOME_UNKNOWN)))
        self._outstanding.clear()
        self._disconnected_us = self._clock.now_us
        self._deliver(SessionDisconnected())
        self._reconnect_later()

    def isolate(self) -> None:
        """Cuts this node off from every server until `rejoin`."""
        self.reachable = False
        self.disconnect()

    def rejoin(self) -> None:
        self.reachable = True

    def lose_messages_after(self, answers: int) -> None:
        """Loses everything that comes after this many answers; the connection must be broken afterwards."""
        if self._link is not None:
            self._link.answers_left = answers

    # --- connection ---

    def _reconnect_later(self) -> None:
        self._clock.after(self._random.randint(1, RECONNECT_US_MAX), self._connect)

    def _connect(self) -> None:
        if self._ended or self._link is not None:
            return
        if not self.reachable or not self._service.running:
            self._reconnect_later()
            return
        if self._session and not self._service.is_alive(self._session):
            expired, self._session, self._last_seen = self._session, 0, 0
            self._deliver(SessionExpired(expired))
        started = not self._session
        if started:
            self._session = self._service.open_session()
        drawn = self._random.randrange(len(self._service.servers))
        link = _Link(self, self._service, self._clock, self._random, self._delay_us_max)
        index = drawn if self.next_server is None else self.next_server
        connection = self._service.connect(self._session, index, self._last_seen, link.send)
        if connection is None:
            # Servers that were wiped or restored will never be where this client was: see `runtime/coordination`.
            if self._clock.now_us - self._disconnected_us > self._service.session_timeout_us:
                self._last_seen = 0
            self._reconnect_later()
            return
        link.connection = connection
        connection.on_close = link.closed_by_server
        self._link = link
        self._deliver(SessionStarted(self._session) if started else SessionResumed(self._session))

    def receive(self, link: _Link, message: ServerMessage, shows: int) -> None:
        if link is not self._link:
            return
        self._last_seen = max(self._last_seen, shows)
        if isinstance(message, CoordinationAnswer):
            assert self._outstanding.popleft() == message.number
        self._deliver(message)

    def lost(self, link: _Link) -> None:
        if link is self._link:
            self.disconnect(0)


class _Link:
    """One connection: two streams, each in order."""

    def __init__(
        self, session: SimulatedSession, service: CoordinationService, clock: Clock, random: Random, delay_us_max: int
    ) -> None:
        self.connection: ServerConnection | None = None
        self.answers_left: int | None = None
        self.requests_under_way = 0
        self._session = session
        self._service = service
        self._clock = clock
        self._random = random
        self._delay_us_max = delay_us_max
        self._requests_arriving: int | None = None
        """How many more requests arrive; None: all."""
        self._last_arrival_us = {"request": 0, "message": 0}

    def request(self, request: CoordinationRequest) -> None:
        self.requests_under_way += 1
        self._clock.at(self._arrival_us("request"), self._request_arrives, request)

    def _request_arrives(self, request: CoordinationRequest) -> None:
        self.requests_under_way -= 1
        assert self.connection is not None
        if self._requests_arriving is None:
            self.connection.receive(request)
        elif self._requests_arriving > 0:
            self._requests_arriving -= 1
            self.connection.receive(request)

    def send(self, message: ServerMessage, shows: int) -> None:
        if self.answers_left == 0:
            return
        if self.answers_left is not None and isinstance(message, CoordinationAnswer):
            self.answers_left -= 1
        self._clock.at(self._arrival_us("message"), self._session.receive, self, message, shows)

    def break_off(self, requests_arriving: int) -> None:
        assert self.connection is not None
        self._requests_arriving = requests_arriving
        self._service.client_left(self.connection)

    def closed_by_server(self) -> None:
        self._clock.at(self._arrival_us("message"), self._session.lost, self)

    def _arrival_us(self, stream: str) -> int:
        arrival = max(self._clock.now_us + self._random.randint(0, self._delay_us_max), self._last_arrival_us[stream])
        self._last_arrival_us[stream] = arrival
        return arrival
