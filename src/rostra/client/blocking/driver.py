"""The driver that carries out the core's effects on blocking sockets, inside the application's calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom
from threading import RLock
from time import monotonic_ns, sleep, time_ns
from types import EllipsisType
from typing import TYPE_CHECKING, assert_never

from rostra.client.blocking.blocking_socket import SLICE_US, BlockingSocket
from rostra.client.blocking.heartbeat_thread import HeartbeatThread
from rostra.client.blocking.socket_set import BlockingSockets
from rostra.client.connection_errors import reason_of
from rostra.client.core import Core
from rostra.client.core.effects import (
    Acknowledged,
    BatchRefused,
    ClientEffect,
    Deliver,
    Dial,
    Done,
    Fail,
    Finish,
    HangUp,
    Notify,
    RecordsReady,
    Result,
    Resume,
    Write,
)
from rostra.client.core.events import ClientEvent
from rostra.client.core.options import CLOSE_FLUSH_MS_MAX, Options
from rostra.errors import ClientClosed, NotAcknowledged, PeerViolation, RostraError

if TYPE_CHECKING:
    from rostra.client.background_thread import BackgroundThread
    from rostra.client.blocking.producer import Producer
    from rostra.client.blocking.subscription import BlockingInbox
    from rostra.client.client_trace import ClientTrace

EVENTS_KEPT_MAX = 1000


class BlockingDriver:
    """One core and its sockets. Nothing happens between calls, except for the heartbeats of publishers with a lease."""

    def __init__(
        self, options: Options, on_event: Callable[[ClientEvent], None] | None, trace: ClientTrace | None = None
    ) -> None:
        self.core = Core(options, SystemRandom(), time_ns() // 1000 - now_us())
        self.trace = trace
        self.lock = RLock()
        self.producers: dict[int, Producer] = {}
        self.inboxes: dict[int, BlockingInbox] = {}
        self.heartbeat = HeartbeatThread(self)
        self.events: deque[ClientEvent] = deque(maxlen=EVENTS_KEPT_MAX)
        self._on_event = on_event
        self._sockets = BlockingSockets(options.busy_poll_ms)
        self._answers: dict[int, Result | RostraError | EllipsisType] = {}
        self._last_call = 0
        self.background: BackgroundThread | None = None
        """Runs the named subscriptions, if there are any."""
        self.background_events: deque[ClientEvent] = deque(maxlen=EVENTS_KEPT_MAX)
        """Events of named subscriptions, until the application's next call."""

    # --- opening and closing -------------------------------------------------------------------------

    def start(self) -> None:
        with self.lock:
            try:
                self.call(lambda call: self.core.start(now_us(), call))
            except BaseException:
                self.close(flush=False)
                raise

    def close(self, *, flush: bool = True) -> None:
        """Flush what producers have sent, then close; raises if some of it was not acknowledged."""
        error = None
        try:
            if flush and not self.core.closed:
                error = self._flush()
        finally:
            self._close()
        if error is not None:
            raise error

    def exit(self, kind: type[BaseException] | None) -> None:
        """Close at the end of a `with` block, which raised an exception of this kind, or none."""
        # The exception of the block must not be hidden by ours; an interrupted program does not wait.
        with suppress(*(() if kind is None else (RostraError,))):
            self.close(flush=kind is None or issubclass(kind, Exception))

    def _flush(self) -> RostraError | None:
        """Wait for what producers have sent; the first error."""
        with self.lock:
            unsettled = self.core.unsettled_producers
            due_us = now_us() + CLOSE_FLUSH_MS_MAX * 1000
            calls = [self.new_call() for _ in unsettled]
            answers = self._answers
            answers.update(dict.fromkeys(calls, Ellipsis))
            for call, state in zip(calls, unsettled, strict=True):
                state.flush(now_us(), call)
            self.run()
            while now_us() < due_us and any(answers[call] is Ellipsis for call in calls):
                self.step(due_us)
            results = [answers.pop(call) for call in calls]
            unacknowledged = sum(state.unacknowledged for state in unsettled)
            obstacle = next((state.obstacle() for state in unsettled if state.unacknowledged), "")
        if unacknowledged:
            return NotAcknowledged(unacknowledged, CLOSE_FLUSH_MS_MAX, obstacle)
        return next((result for result in results if isinstance(result, RostraError)), None)

    def _close(self) -> None:
        background, self.background = self.background, None
        if background is not None:
            background.stopping().result()
            background.finish()
            self.forward_background_events()
        with self.lock:
            self.core.close(now_us())
            self.run()
            self._sockets.close_all()
            trace, self.trace = self.trace, None
            if trace is not None:
                trace.close()
        self.heartbeat.stop()

    # --- calls ---------------------------------------------------------------------------------------

    def call(self, begin: Callable[[int], object]) -> Result:
        with self.lock:
            call = self.new_call()
            begin(call)
            return self.answer(call)

    def new_call(self) -> int:
        if self.core.closed:
            raise ClientClosed()
        self._last_call += 1
        return self._last_call

    def answer(self, call: int) -> Result:
        """Drive the core until the call is answered."""
        answers = self._answers
        answers[call] = Ellipsis
        try:
            self.run()
            while answers[call] is Ellipsis:
                self.step(None)
            answer = answers[call]
        finally:
            del answers[call]
        if isinstance(answer, RostraError):
            raise answer
        return answer  # type: ignore[return-value]

    def step(self, due_us: int | None) -> None:
        """Wait until something is received, a timer is due, or the caller's time has come."""
        with self.lock:
            try:
                now = now_us()
                timer_us = self.core.deadline_us()
                if timer_us is not None and timer_us <= now:
                    self._tick()
                    return
                wait_us = SLICE_US if timer_us is None else timer_us - now
                if due_us is not None:
                    wait_us = min(wait_us, due_us - now)
                if self._sockets.only is None and not self._sockets:
                    sleep(max(min(wait_us, SLICE_US), 0) / 1_000_000)
                else:
                    self.receive(wait_us)
            except Exception:
                raise
            except BaseException:
                # An interruption may lose bytes between a socket and the core, so start with new connections.
                for number in self._sockets.close_all():
                    self.core.lost(now_us(), number, "interrupted")
                self.run()
                raise

    def _tick(self) -> None:
        # Read the sockets first: a node is not silent just because nothing was read.
        while self.receive(0):
            pass
        now = now_us()
        self.core.set_wall_offset(time_ns() // 1000 - now)
        self.core.tick(now)
        self.run()

    def receive(self, wait_us: int) -> bool:
        only = self._sockets.only
        if only is not None:
            return self._read(only, wait_us)
        heard = False
        for number in self._sockets.wait(wait_us) if self._sockets else ():
            if not self._dialed(number):
                ready = self._sockets.by_number.get(number)
                heard = (ready is not None and self._read(ready, 0)) or heard
        return heard

    def _read(self, ready: BlockingSocket, wait_us: int) -> bool:
        try:
            messages = ready.read(wait_us)
        except (OSError, PeerViolation) as error:
            self._lost(ready.number, reason_of(error))
            return False
        now = now_us()
        core = self.core
        number = ready.number
        for message, payload in messages:
            core.received(now, number, message, payload)
        if ready.reported_congested and not ready.congested:
            ready.reported_congested = False
            core.drained(number)
        if core.out:
            self.run()
        return bool(messages)

    def _dialed(self, number: int) -> bool:
        """Process an event of a socket that is being dialed; False if it is not one."""
        try:
            opened = self._sockets.opened(number)
        except OSError as error:
            self._lost(number, reason_of(error))
            return True
        if opened:
            self.core.opened(now_us(), number)
            self.run()
        return opened is not None

    def _lost(self, number: int, reason: str) -> None:
        self._sockets.close(number)
        self.core.lost(now_us(), number, reason)
        self.run()

    # --- effects -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Carry out the effects, and those they cause; callbacks of the application run last."""
        core = self.core
        callbacks: list[Callable[[], None]] = []
        while core.out:
            for effect in core.take():
                if type(effect) is Write:
                    self._write(effect)
                else:
                    self._carry_out(effect, callbacks)
        for callback in callbacks:
            callback()

    def _carry_out(self, effect: ClientEffect, callbacks: list[Callable[[], None]]) -> None:
        match effect:
            case Write():
                self._write(effect)
            case Done():
                if effect.call in self._answers:
                    self._answers[effect.call] = effect.result
            case Fail():
                if effect.call in self._answers:
                    self._answers[effect.call] = effect.error
            case Acknowledged():
                if self.trace is not None:
                    self.trace.published(effect.producer, effect.partition, effect.offset, effect.count)
                producer = self.producers.get(effect.producer)
                if producer is not None and producer.on_ack is not None:
                    on_ack = producer.on_ack
                    callbacks.append(lambda: on_ack(effect))
            case Finish():
                inbox = self.inboxes.pop(effect.subscription, None)
                if inbox is not None:
                    inbox.error = effect.error
            case Dial():
                self._dial(effect)
            case HangUp():
                self._sockets.close(effect.link)
            case Notify():
                self.events.append(effect.event)
                if self._on_event is not None:
                    on_event, event = self._on_event, effect.event
                    callbacks.append(lambda: on_event(event))
            case Resume() | BatchRefused() | Deliver() | RecordsReady():
                # A caller that waits checks the window itself; the producer keeps its first error for `flush`.
                # Batches are in the subscription's inbox; named subscriptions have another driver.
                pass
            case _:
                assert_never(effect)

    def forward_background_events(self) -> None:
        """Pass on events of named subscriptions, on the application's own thread."""
        while self.background_events:
            event = self.background_events.popleft()
            self.events.append(event)
            if self._on_event is not None:
                self._on_event(event)

    def _write(self, effect: Write) -> None:
        there = self._sockets.by_number.get(effect.link)
        if there is None:
            return
        try:
            there.write(effect.buffers)
        except OSError as error:
            self._sockets.close(effect.link)
            self.core.lost(now_us(), effect.link, reason_of(error))
            return
        if there.congested:
            there.reported_congested = True
            self.core.congested(effect.link)

    def _dial(self, effect: Dial) -> None:
        # Of the links only: producers may be woken earlier than needed.
        due_us = self.core.links.deadline_us()
        timeout_s = 0.001 if due_us is None else max((due_us - now_us()) / 1_000_000, 0.001)
        try:
            opened = self._sockets.dial(effect.link, effect.address, timeout_s)
        except OSError as error:
            self.core.lost(now_us(), effect.link, reason_of(error))
        else:
            if opened:
                self.core.opened(now_us(), effect.link)


def now_us() -> int:
    return monotonic_ns() // 1000
