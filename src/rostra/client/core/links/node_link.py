"""The connection to one node: handshake, heartbeats, numbered requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from rostra.client.core.effects import Buffer, ClientEffect, LinkNumber, Write
from rostra.wire.features import FEATURES
from rostra.wire.frames import encode
from rostra.wire.messages import PROTOCOL_MAX, PROTOCOL_MIN, ClientMessage, Hello, Ping, Welcome

if TYPE_CHECKING:
    from rostra.client.core.producer.partition_sender import PartitionSender, SentBatch
    from rostra.client.core.producer.publisher_registration import PendingRegistration
    from rostra.client.core.routing.coordinator_request import Rpc
    from rostra.client.core.routing.partition_route import PartitionRoute
    from rostra.client.core.routing.pending_requests import PendingRequest
    from rostra.client.core.subscription.topic_subscription import PartitionFeed, PendingUnsubscribe
    from rostra.client.core.subscription.topic_watches import TopicWatch

    Waiter: TypeAlias = (
        PendingRequest | SentBatch | PartitionFeed | PendingUnsubscribe | TopicWatch | Rpc | PendingRegistration
    )

SILENT_HEARTBEATS_MAX = 3
PINGS_PER_LEASE = 4
"""So that two pings in a row may be late."""
BATCH_BYTES_MAX = 1 << 20
"""Assumed until a node's Welcome states its own limit."""
HEARTBEAT_MS_MIN = 10
UNANSWERED_MAX = 1024
DOUBT_MS = 1_000
"""Interval of checks for requests without an answer. One that stays unanswered from one check to the next makes its
node suspect: another node may own its partitions by now.
"""


class LinkState(Enum):
    DIALING = auto()
    HANDSHAKE = auto()
    UP = auto()
    CLOSED = auto()


class NodeLink:
    """One connection, or the attempt to open one. A closed link is never opened again."""

    def __init__(self, number: LinkNumber, address: str, due_us: int, out: list[ClientEffect]) -> None:
        self.number = number
        self.address = address
        self.out = out
        self.state = LinkState.DIALING
        self.up = False
        self.node = 0
        """The id in its Welcome; 0 before that."""
        self.congested = False
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.features: tuple[str, ...] = ()
        """The features that the node and this client share."""
        self.awaiting: dict[int, Waiter] = {}
        """Who receives the answer, by request number."""
        self.unanswered: deque[tuple[int, PartitionSender, int]] = deque(maxlen=UNANSWERED_MAX)
        """The latest batches sent with acks `none`, with their producer epoch; only refusals are answered."""
        self.routes: dict[PartitionRoute, None] = {}
        """The partitions reached through this link, in the order they were added."""
        self.watches: dict[TopicWatch, None] = {}
        """The topic watches that its node serves."""
        self.unused_since_us: int | None = None
        self.last_request = 0
        """The number of the latest request."""
        self.due_us = due_us
        self._heartbeat_us = 0
        self._ping_us = 0
        """Interval of pings; shorter than the node's heartbeat if a publisher's lease requires it."""
        self._heartbeat_due_us = 0
        """When the current heartbeat interval ends."""
        self.missed_heartbeats = 0
        """Heartbeat intervals since anything was received from the node."""
        self.check_at_us = 0
        """When to check for requests without an answer; 0 while there are none."""
        self.suspect = False
        """A check found a request without an answer, and nothing was received since."""
        self._oldest = 0
        """The oldest request without an answer at the last check."""

    @property
    def unused(self) -> bool:
        return not self.routes and not self.awaiting and not self.watches

    # --- opening and closing -------------------------------------------------------------------------

    def send_hello(self, name: str) -> None:
        self.state = LinkState.HANDSHAKE
        self.last_request = 1
        self.write(Hello(1, PROTOCOL_MIN, PROTOCOL_MAX, FEATURES, name))

    def welcomed(self, now_us: int, welcome: Welcome) -> None:
        self.state = LinkState.UP
        self.up = True
        self.node = welcome.node
        self.batch_bytes_max = welcome.batch_bytes_max
        self.features = welcome.features
        self._ping_us = self._heartbeat_us = max(welcome.heartbeat_ms, HEARTBEAT_MS_MIN) * 1000
        self.due_us = self._heartbeat_due_us = now_us + self._heartbeat_us

    def mark_closed(self) -> None:
        self.state = LinkState.CLOSED
        self.up = False
        self.congested = False
        self.awaiting.clear()
        self.unanswered.clear()

    # --- while connected -----------------------------------------------------------------------------

    def require_pings(self, lease_ms: int) -> None:
        """Send several pings within the lease of a publisher on this link."""
        ping_us = max(lease_ms // PINGS_PER_LEASE, HEARTBEAT_MS_MIN) * 1000
        if ping_us < self._ping_us:
            # Ping now, because the time of the last ping is not known here.
            self._ping_us, self.due_us = ping_us, 0

    def write(self, message: ClientMessage, payload: Buffer | None = None) -> None:
        if payload is None:
            self.out.append(Write(self.number, (encode(message),)))
        else:
            self.out.append(Write(self.number, (encode(message, len(payload)), payload)))

    def send_request(
        self, waiter: Waiter, message: Callable[[int], ClientMessage], payload: Buffer | None = None
    ) -> int:
        """Send a message under the next request number; `waiter` receives the answer."""
        request = self.last_request = self.last_request + 1
        self.awaiting[request] = waiter
        self.write(message(request), payload)
        return request

    @property
    def has_pending(self) -> bool:
        """Whether a request or a ping is without an answer."""
        return bool(self.awaiting or self.missed_heartbeats)

    def arm_check(self, now_us: int) -> None:
        """Schedule a check for the answer to what was just sent."""
        if not self.check_at_us or (
            self.check_at_us <= now_us and len(self.awaiting) <= 1 and not self.missed_heartbeats
        ):
            self.check_at_us = now_us + DOUBT_MS * 1000
            self._oldest = next(iter(self.awaiting), 0)

    def check(self, now_us: int) -> bool:
        """Whether the same request, or a ping, was without an answer at the last check and still is."""
        before, self._oldest = self._oldest, next(iter(self.awaiting), 0)
        self.check_at_us = now_us + DOUBT_MS * 1000 if self.has_pending else 0
        self.suspect = self.up and (before == self._oldest != 0 or self.missed_heartbeats > 0)
        return self.suspect

    def next_request(self) -> int:
        self.last_request += 1
        return self.last_request

    # --- time ----------------------------------------------------------------------------------------

    def tick(self, now_us: int) -> str | None:
        """Send a ping if one is due; return the reason if the link is to be closed."""
        if now_us < self.due_us:
            return None
        match self.state:
            case LinkState.DIALING | LinkState.HANDSHAKE:
                return "no answer in time"
            case LinkState.UP if (
                self.missed_heartbeats + 1 >= SILENT_HEARTBEATS_MAX and now_us >= self._heartbeat_due_us
            ):
                return f"silent for {SILENT_HEARTBEATS_MAX} heartbeats"
            case LinkState.UP:
                # Pings are sent even while the node sends, because it expects them. Silence is counted in pings rather
                # than time: a driver that slept must not blame the node.
                if not self.has_pending:
                    self.check_at_us = 0
                if now_us >= self._heartbeat_due_us:
                    self.missed_heartbeats += 1
                    self._heartbeat_due_us = now_us + self._heartbeat_us
                self.due_us = min(now_us + self._ping_us, self._heartbeat_due_us)
                self.write(Ping(self.next_request()))
                self.arm_check(now_us)
            case LinkState.CLOSED:
                pass
        return None
