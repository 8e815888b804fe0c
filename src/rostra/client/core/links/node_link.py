"""The connection to a node: greeting, heartbeats, numbered requests."""

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
"""One may be late, and the next one too."""
BATCH_BYTES_MAX = 1 << 20
"""Until a node has told its own."""
HEARTBEAT_MS_MIN = 10
UNANSWERED_MAX = 1024
DOUBT_MS = 1_000
"""What is unanswered from one look to the next, so far apart, makes a node doubtful: another may own its partitions."""


class LinkState(Enum):
    DIALING = auto()
    HANDSHAKE = auto()
    UP = auto()
    CLOSED = auto()


class NodeLink:
    """One connection, or the attempt at one. What is gone stays gone: another one has another number."""

    def __init__(self, number: LinkNumber, address: str, due_us: int, out: list[ClientEffect]) -> None:
        self.number = number
        self.address = address
        self.out = out
        self.state = LinkState.DIALING
        self.up = False
        self.node = 0
        """Who answered, as long as nobody did: 0."""
        self.congested = False
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.features: tuple[str, ...] = ()
        """What the node of this connection and this client both have."""
        self.awaiting: dict[int, Waiter] = {}
        """Who gets the answer to which request of this connection."""
        self.unanswered: deque[tuple[int, PartitionSender, int]] = deque(maxlen=UNANSWERED_MAX)
        """The latest batches sent with acks `none`, with their producer epoch: only a refusal is ever heard of them."""
        self.routes: dict[PartitionRoute, None] = {}
        """The partitions that are reached through it, in the order they came."""
        self.watches: dict[TopicWatch, None] = {}
        """The watches that its node keeps."""
        self.unused_since_us: int | None = None
        self.last_request = 0
        """The number of the last one."""
        self.due_us = due_us
        self._heartbeat_us = 0
        self._ping_us = 0
        """How often the node hears us: more often than it asks for, where a publisher's lease is short."""
        self._heartbeat_due_us = 0
        """When the present heartbeat is over."""
        self.missed_heartbeats = 0
        """Heartbeats since the node was last heard."""
        self.check_at_us = 0
        """When it is looked whether what was asked is answered; 0 while nothing is."""
        self.suspect = False
        """Not heard since a look found something unanswered."""
        self._oldest = 0
        """The oldest request without an answer at the last look."""

    @property
    def unused(self) -> bool:
        return not self.routes and not self.awaiting and not self.watches

    # --- coming and going ----------------------------------------------------------------------------

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

    # --- while it stands -----------------------------------------------------------------------------

    def require_pings(self, lease_ms: int) -> None:
        """A publisher on it must be heard several times in its lease."""
        ping_us = max(lease_ms // PINGS_PER_LEASE, HEARTBEAT_MS_MIN) * 1000
        if ping_us < self._ping_us:
            # The next one at once: nobody knows here how long ago the last was.
            self._ping_us, self.due_us = ping_us, 0

    def write(self, message: ClientMessage, payload: Buffer | None = None) -> None:
        if payload is None:
            self.out.append(Write(self.number, (encode(message),)))
        else:
            self.out.append(Write(self.number, (encode(message, len(payload)), payload)))

    def send_request(self, waiter: Waiter, message: Callable[[int], ClientMessage]) -> int:
        """Send under the next request number; the answer is the waiter's."""
        request = self.last_request = self.last_request + 1
        self.awaiting[request] = waiter
        self.write(message(request))
        return request

    @property
    def has_pending(self) -> bool:
        """Whether something that was asked has no answer yet."""
        return bool(self.awaiting or self.missed_heartbeats)

    def arm_check(self, now_us: int) -> None:
        """Something was asked: it shall not go unanswered unnoticed."""
        if not self.check_at_us or (
            self.check_at_us <= now_us and len(self.awaiting) <= 1 and not self.missed_heartbeats
        ):
            self.check_at_us = now_us + DOUBT_MS * 1000
            self._oldest = next(iter(self.awaiting), 0)

    def check(self, now_us: int) -> bool:
        """Whether the node has left the same question, or a ping, unanswered since the last look."""
        before, self._oldest = self._oldest, next(iter(self.awaiting), 0)
        self.check_at_us = now_us + DOUBT_MS * 1000 if self.has_pending else 0
        self.suspect = self.up and (before == self._oldest != 0 or self.missed_heartbeats > 0)
        return self.suspect

    def next_request(self) -> int:
        self.last_request += 1
        return self.last_request

    # --- time ----------------------------------------------------------------------------------------

    def tick(self, now_us: int) -> str | None:
        """Pings when due; the reason when the link is to be given up."""
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
                # Sent even while the node is heard, for it wants to hear us. Silence is counted in pings and not in
                # time: a driver that slept must not blame the node.
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
