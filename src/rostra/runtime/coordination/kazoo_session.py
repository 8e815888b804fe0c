"""A node's session with the coordination service, through kazoo.

Two threads meet here: the loop's, on which the node submits requests and gets messages, and kazoo's connection thread,
which reports states of the connection to `_state_changed`. A request belongs to the connection that the node knew when
it made it: `_lock` and `_connection` make sure that none is left for a later connection, or even session.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from rostra.fabric.coordination import (
    CoordinationAnswer,
    CoordinationMessage,
    CoordinationRequest,
    FailureReason,
    Operation,
    RequestFailed,
    Result,
    SessionDisconnected,
    SessionExpired,
    SessionRefused,
    SessionResumed,
    SessionStarted,
    request_bytes,
)
from rostra.runtime.coordination.kazoo_translation import (
    CONNECTION_ERRORS,
    OWN_ACL,
    event_of,
    failure_of,
    kazoo_request,
    result_of,
)
from rostra.runtime.coordination.loop_handler import LoopHandler
from rostra.runtime.coordination.settings import CoordinationSettings

log = structlog.get_logger()

RECONNECT_DELAY_S = 0.05


class KazooSession:
    """Opens a session, reconnects, and replaces an expired session by itself, until `close`.

    `deliver` is called on the loop, never from within `submit`. Made on the thread of the loop.
    """

    def __init__(self, settings: CoordinationSettings, deliver: Callable[[CoordinationMessage], None]) -> None:
        self._settings = settings
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._outstanding: dict[int, Operation] = {}
        """By request number, in the order of requests."""
        self._session = 0
        self._connected = False
        self._known_connection = 0
        """The number of the connection that the node was told of."""
        self._lock = threading.Lock()
        self._connection = 0
        """Rises whenever a connection is made or lost; written by the connection thread."""
        self._last_event: WatchedEvent | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self._client = self._make_client()
        self._client.add_listener(self._state_changed)

    def _make_client(self) -> KazooClient:
        settings, tls = self._settings, self._settings.tls
        handler = LoopHandler(self._loop)
        silent = logging.getLogger(f"{__name__}.kazoo")
        silent.propagate = False
        silent.addHandler(logging.NullHandler())
        credentials = settings.user is not None
        return KazooClient(
            settings.hosts,
            timeout=settings.session_timeout_ms / 1000,
            handler=handler,
            auth_data=[("digest", f"{settings.user}:{settings.password or ''}")] if credentials else None,
            default_acl=OWN_ACL if credentials else None,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=RECONNECT_DELAY_S,
                max_delay=settings.reconnect_delay_ms_max / 1000,
                sleep_func=handler.sleep_func,
            ),
            logger=silent,
            use_ssl=tls is not None,
            ca=tls and tls.ca,
            certfile=tls and tls.certificate,
            keyfile=tls and tls.key,
            check_hostname=tls is not None and tls.check_hostname,
        )

    @property
    def session_key(self) -> tuple[int, bytes] | None:
        """The id and the password of the session, while there is a connection."""
        key: tuple[int, bytes] | None = self._client.client_id
        return key

    @property
    def outstanding(self) -> int:
        """How many requests have no answer yet."""
        return len(self._outstanding)

    def start(self) -> None:
        """Begins to connect; `SessionStarted` tells when a session is open."""
        self._client.start_async()

    async def close(self) -> None:
        """Ends the session, with its ephemeral znodes if the service can be reached. Nothing is delivered any more."""
        self._deliver = _ignore
        self._client.remove_listener(self._state_changed)
        self._cancel_give_up()
        await self._loop.run_in_executor(None, self._stop_client)

    def _stop_client(self) -> None:
        self._client.stop()
        self._client.close()

    # --- requests ---

    def submit(self, request: CoordinationRequest) -> None:
        """Sends a request. Its answer comes later, in order, whatever happens to it."""
        number, operation = request.number, request.operation
        if not self._connected:
            return self._refuse(number, FailureReason.NOT_CONNECTED)
        if len(self._outstanding) >= self._settings.outstanding_max:
            return self._refuse(number, FailureReason.TOO_MANY)
        if request_bytes(operation) > self._settings.request_bytes_max:
            return self._refuse(number, FailureReason.TOO_LARGE)
        self._outstanding[number] = operation
        with self._lock:
            if self._connection != self._known_connection:
                return  # The loss of this connection is on its way to the loop, and answers the request.
            completion = self._client.handler.async_result()
            completion.rawlink(partial(self._completed, number))
            self._client._call(kazoo_request(self._client, operation, self._watched), completion)

    def _refuse(self, number: int, reason: FailureReason) -> None:
        self._loop.call_soon(self._send, CoordinationAnswer(number, RequestFailed(reason)))

    def _completed(self, number: int, outcome: Any) -> None:
        operation = self._outstanding.get(number)
        if operation is None:
            return  # Answered when its connection was lost.
        result: Result
        if outcome.successful():
            result = result_of(self._client, operation, outcome.value)
        elif isinstance(outcome.exception, CONNECTION_ERRORS):
            return  # The loss of the connection follows, and answers all that is open in order.
        else:
            result = failure_of(outcome.exception)
        del self._outstanding[number]
        self._send(CoordinationAnswer(number, result))

    def _watched(self, event: WatchedEvent) -> None:
        # When a znode is deleted, kazoo calls its watch of the data and its watch of the children with the same event.
        if event is not self._last_event:
            self._last_event = event
            fired = event_of(event)
            if fired is not None:
                self._send(fired)

    def _send(self, message: CoordinationMessage) -> None:
        self._deliver(message)

    # --- states of the connection ---

    def _state_changed(self, state: str) -> None:
        """Called by the connection thread."""
        client = self._client
        with self._lock:
            self._connection += 1
            connection = self._connection
            if state == KazooState.SUSPENDED:
                # Kazoo has failed all open requests before it calls this; one made in between would be sent later.
                client._notify_pending(KeeperState.CONNECTING)
        match state:
            case KazooState.CONNECTED:
                client.handler.put(partial(self._on_connected, connection, client.client_id[0]))
            case KazooState.SUSPENDED:
                client.handler.put(self._on_disconnected)
            case _:
                client.handler.put(partial(self._on_lost, client.client_state))

    def _on_connected(self, connection: int, session: int) -> None:
        self._cancel_give_up()
        self._known_connection = connection
        self._connected = True
        resumed = session == self._session
        self._session = session
        log.info("coordination connected", session=f"{session:#x}", resumed=resumed)
        self._send(SessionResumed(session) if resumed else SessionStarted(session))

    def _on_disconnected(self) -> None:
        if not self._connected:
            return
        self._connected = False
        open_requests, self._outstanding = self._outstanding, {}
        for number in open_requests:
            self._send(CoordinationAnswer(number, RequestFailed(FailureReason.OUTCOME_UNKNOWN)))
        log.warning("coordination disconnected", requests=len(open_requests))
        self._send(SessionDisconnected())
        self._await_connection()

    def _on_lost(self, state: str) -> None:
        self._on_disconnected()
        if state == KeeperState.EXPIRED_SESSION:
            log.warning("coordination session expired", session=f"{self._session:#x}")
            expired, self._session = self._session, 0
            self._send(SessionExpired(expired))
        elif state == KeeperState.AUTH_FAILED:
            log.error("coordination credentials refused")
            self._send(SessionRefused())

    # --- a service that lost its state ---

    def _await_connection(self) -> None:
        self._give_up = self._loop.call_later(self._settings.session_timeout_ms / 1000, self._forget_position)

    def _forget_position(self) -> None:
        """A server refuses a client that has seen more transactions than it has itself. A service that was wiped or
        restored may never have as many, so after the session timeout the client no longer insists: it learns whether
        its session is still there, and the fabric reads everything again."""
        self._client.last_zxid = 0
        # An attempt that was under way may have set it again.
        self._await_connection()

    def _cancel_give_up(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None


def _ignore(message: CoordinationMessage) -> None:
    """Takes the place of the receiver when the session is closed."""
