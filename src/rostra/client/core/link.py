"""The connection to a node: which address is next, greeting, heartbeats, numbered requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from rostra.client.core.effects import Buffer, ClientEffect, Dial, HangUp, Write
from rostra.client.core.options import Options
from rostra.wire.features import FEATURES
from rostra.wire.frames import encode
from rostra.wire.messages import PROTOCOL_MAX, PROTOCOL_MIN, ClientMessage, Hello, Ping, Welcome

if TYPE_CHECKING:
    from rostra.client.core.asks import Ask
    from rostra.client.core.lane import Lane, Outgoing
    from rostra.client.core.subscribing import Feed, Leaving

    Waiter: TypeAlias = Ask | Outgoing | Feed | Leaving

SILENT_HEARTBEATS_MAX = 3
ADDRESSES_MAX = 64
BATCH_BYTES_MAX = 1 << 20
"""Until a node has told its own."""
HEARTBEAT_MS_MIN = 10
UNANSWERED_MAX = 1024


class State(Enum):
    IDLE = auto()
    WAITING = auto()
    DIALING = auto()
    GREETING = auto()
    UP = auto()


class Link:
    """At most one connection at a time. `number` tells it from the ones before, whose late news nobody wants."""

    def __init__(self, options: Options, random: Random, out: list[ClientEffect]) -> None:
        self.options = options
        self.random = random
        self.out = out
        self.state = State.IDLE
        self.up = False
        self.number = 0
        self.addresses = list(dict.fromkeys(options.addresses))
        self.address = self.addresses[0]
        self.failures = 0
        self.last_reason = "not tried"
        self.congested = False
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.features: tuple[str, ...] = ()
        """What the node of this connection and this client both have."""
        self.awaiting: dict[int, Waiter] = {}
        """Who gets the answer to which request of this connection."""
        self.unanswered: deque[tuple[int, Lane, int]] = deque(maxlen=UNANSWERED_MAX)
        """The latest batches sent with acks `none`, with their producer epoch: only a refusal is ever heard of them."""
        self._place = -1
        self._request = 0
        self._due_us = 0
        self._heartbeat_us = 0
        self._silent = 0
        """Pings sent since the node was last heard."""

    # --- towards a connection ------------------------------------------------------------------------

    def dial(self, now_us: int) -> None:
        self._place = (self._place + 1) % len(self.addresses)
        self.address = self.addresses[self._place]
        self.number += 1
        self.state = State.DIALING
        # A share of the time for each address, so that one that swallows everything does not use it up.
        self._due_us = now_us + self.options.connect_timeout_ms * 1000 // len(self.addresses)
        self.out.append(Dial(self.number, self.address))

    def learn(self, address: str) -> None:
        """An address that a node named."""
        if address and address not in self.addresses and len(self.addresses) < ADDRESSES_MAX:
            self.addresses.append(address)

    def prefer(self, address: str) -> None:
        """Try this address first when dialing next."""
        self.learn(address)
        if address in self.addresses:
            self._place = self.addresses.index(address) - 1

    def greet(self, now_us: int) -> None:
        self.state = State.GREETING
        self._request = 1
        self.write(Hello(1, PROTOCOL_MIN, PROTOCOL_MAX, FEATURES, self.options.name))

    def welcomed(self, now_us: int, welcome: Welcome) -> None:
        self.state = State.UP
        self.up = True
        self.failures = 0
        self.congested = False
        self.batch_bytes_max = welcome.batch_bytes_max
        self.features = welcome.features
        self._heartbeat_us = max(welcome.heartbeat_ms, HEARTBEAT_MS_MIN) * 1000
        self._due_us = now_us + self._heartbeat_us
        self.heard()

    def broken(self, now_us: int, reason: str, *, hang_up: bool) -> None:
        """Gone, or never came about; the next attempt is due after a pause, shorter while addresses are untried."""
        if hang_up:
            self.out.append(HangUp(self.number))
        self.state = State.WAITING
        self.up = False
        self.congested = False
        self.last_reason = reason
        self.awaiting.clear()
        self.unanswered.clear()
        self.failures += 1
        rounds, untried = divmod(self.failures, len(self.addresses))
        self._due_us = now_us + (0 if untried and self.failures > 1 else self.pause_us(rounds))

    def stop(self) -> None:
        if self.state in (State.DIALING, State.GREETING, State.UP):
            self.out.append(HangUp(self.number))
        self.state = State.IDLE
        self.up = False
        self.awaiting.clear()
        self.unanswered.clear()

    def pause_us(self, failures: int) -> int:
        """Exponential, with jitter, so that clients of a lost node do not come back all at once."""
        options = self.options
        full_ms = min(options.backoff_ms << min(failures, 16), options.backoff_ms_max)
        return int(full_ms * 1000 * (0.5 + self.random.random() / 2))

    # --- while it stands -----------------------------------------------------------------------------

    def heard(self) -> None:
        self._silent = 0

    def write(self, message: ClientMessage, payload: Buffer | None = None) -> None:
        if payload is None:
            self.out.append(Write(self.number, (encode(message),)))
        else:
            self.out.append(Write(self.number, (encode(message, len(payload)), payload)))

    def ask(self, waiter: Waiter, message: Callable[[int], ClientMessage]) -> int:
        """Send under the next request number; the answer is the waiter's."""
        request = self._request = self._request + 1
        self.awaiting[request] = waiter
        self.write(message(request))
        return request

    def next_request(self) -> int:
        self._request += 1
        return self._request

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        return None if self.state is State.IDLE else self._due_us

    def tick(self, now_us: int) -> str | None:
        """Dials or pings when due; the reason when the link is to be given up."""
        due = self.deadline_us()
        if due is None or now_us < due:
            return None
        match self.state:
            case State.WAITING:
                self.dial(now_us)
            case State.DIALING | State.GREETING:
                return "no answer in time"
            case State.UP if self._silent + 1 >= SILENT_HEARTBEATS_MAX:
                return f"silent for {SILENT_HEARTBEATS_MAX} heartbeats"
            case State.UP:
                # Sent even while the node is heard, for it wants to hear us. Silence is counted in pings and not in
                # time: a driver that slept must not blame the node.
                self._silent += 1
                self._due_us = now_us + self._heartbeat_us
                self.write(Ping(self.next_request()))
            case State.IDLE:
                pass
        return None
