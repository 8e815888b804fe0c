"""The simulated driver of a client: executes the effects of the client core on virtual time."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from random import Random
from typing import assert_never

from rostra.client.core.core import Core
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
from rostra.client.core.options import Options
from rostra.errors import PartitionDamaged, PeerViolation, RostraError, from_wire
from rostra.simulator.clock import EPOCH_US, SECOND_US, Clock
from rostra.simulator.history import History
from rostra.simulator.network.client_network import BUFFER_HIGH, ClientNetwork, SimulatedConnection
from rostra.simulator.trace import Trace
from rostra.wire.frames import FROM_NODE, FrameReader
from rostra.wire.messages import CreateTopic, DeleteTopic, Ended, Failed, Locate, NodeMessage, Pong, Subscribed

FRAME_BYTES_MAX = 8 << 20
KIND_AT = slice(8, 10)
CHANGES = (CreateTopic.kind, DeleteTopic.kind)
LOCATES_MAX = 100
"""Per second: lookups of a topic are spaced out, and there are few topics."""

Outcome = Callable[[Result | RostraError], None]


class SimulatedClient:
    """One client. A call gets its result through the function passed to `call`."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        trace: Trace,
        history: History,
        network: ClientNetwork,
        options: Options,
        random: Random,
    ) -> None:
        self.name = name
        self.clock = clock
        self.trace = trace
        self.history = history
        self.network = network
        self.core = Core(options, random, EPOCH_US)
        self.delivered: dict[int, Callable[[Deliver], None]] = {}
        self.finished: dict[int, Callable[[RostraError], None]] = {}
        self.resumed: dict[int, Callable[[], None]] = {}
        self.ready: dict[int, Callable[[], None]] = {}
        self.event_listeners: list[Callable[[ClientEvent], None]] = []
        self.on_subscribed: list[Callable[[Subscribed], None]] = []
        self.credit_bytes = 0
        """Credit of all its subscriptions, which bounds the bytes in flight to it."""
        self.changes_sent = 0
        """Requests to create or delete a topic, retries included."""
        self._links: dict[int, tuple[SimulatedConnection, FrameReader[NodeMessage]]] = {}
        self._call = 0
        self._waiting: dict[int, tuple[str, Outcome]] = {}
        self._armed_us: int | None = None
        self._locates = (0, 0)
        """A second, and the number of Locate requests in it."""
        self._due_us: int | None = None
        """The deadline of the core after the last effects."""

    # --- for applications ----------------------------------------------------------------------------

    @property
    def waiting(self) -> list[str]:
        return [what for what, _ in self._waiting.values()]

    def call(self, what: str, outcome: Outcome) -> int:
        """The number of a new call; `outcome` gets its result."""
        self._call += 1
        self._waiting[self._call] = (what, outcome)
        return self._call

    def close(self) -> None:
        self.core.close(self.clock.now_us)
        self.run_effects()

    def kill(self) -> None:
        """Kills the program: closes its connections without sending anything."""
        self.core.close(self.clock.now_us)
        self.core.take()
        self._waiting.clear()
        links, self._links = self._links, {}
        for link, _ in links.values():
            link.client_closes()

    def start(self) -> None:
        self.core.start(self.clock.now_us, self.call("connect", lambda _: None))
        self.run_effects()

    def run_effects(self) -> None:
        """Executes the effects of the core, and arms its timer."""
        core = self.core
        try:
            while core.out:
                for effect in core.take():
                    self._carry_out(effect)
            due_us = core.deadline_us()
        except Exception:
            self._record_exception("acting")
            return
        self._due_us = due_us
        if due_us is not None and (self._armed_us is None or due_us < self._armed_us):
            self._arm(due_us)

    def _arm(self, due_us: int) -> None:
        self._armed_us = max(due_us, self.clock.now_us)
        self.clock.at(self._armed_us, self._tick, self._armed_us)

    def _carry_out(self, effect: ClientEffect) -> None:
        match effect:
            case Write():
                found = self._links.get(effect.link)
                if found is not None and found[0].client_open:
                    chunk = b"".join(effect.buffers)
                    kind = int.from_bytes(chunk[KIND_AT], "little")
                    self.changes_sent += kind in CHANGES
                    if kind == Locate.kind:
                        self._count_locate()
                    self.trace.note(self.name, "sends", chunk)
                    found[0].up.send(chunk)
            case Done():
                self._answer(effect.call, effect.result)
            case Fail():
                self._answer(effect.call, effect.error)
            case Deliver():
                deliver = self.delivered.get(effect.subscription)
                if deliver is not None:
                    deliver(effect)
            case RecordsReady():
                ready = self.ready.get(effect.subscription)
                if ready is not None:
                    ready()
            case Finish():
                self.trace.note(self.name, "finish", b"%d" % effect.subscription, effect)
                self.delivered.pop(effect.subscription, None)
                self.finished.pop(effect.subscription)(effect.error)
            case Acknowledged() | BatchRefused():
                pass
            case Resume():
                resumed = self.resumed.get(effect.producer)
                if resumed is not None:
                    resumed()
            case Dial():
                link = self.network.dial(self, effect.link, effect.address)
                self._links[effect.link] = link, FrameReader(FROM_NODE, FRAME_BYTES_MAX)
                self.trace.note(self.name, "dials", effect.address.encode(), (effect.link, effect.address))
            case HangUp():
                found = self._links.pop(effect.link, None)
                if found is not None:
                    found[0].client_closes()
            case Notify():
                self.trace.note(self.name, "event", detail=effect.event)
                for listener in self.event_listeners:
                    listener(effect.event)
            case _:
                assert_never(effect)

    def _count_locate(self) -> None:
        """Counts Locate requests, to catch clients that retry without a pause."""
        second = self.clock.now_us // SECOND_US
        self._locates = (second, self._locates[1] + 1 if self._locates[0] == second else 1)
        self.history.record_queue_size("Locate requests of a client in a second", self._locates[1], LOCATES_MAX)

    def _answer(self, call: int, result: Result | RostraError) -> None:
        if not call:
            return
        what, outcome = self._waiting.pop(call)
        self.trace.note(self.name, "answered", b"%d" % call, (what, result))
        outcome(result)

    def _tick(self, armed_us: int) -> None:
        if self._armed_us != armed_us:
            return
        self._armed_us = None
        if self._due_us is None or self._due_us > self.clock.now_us:
            # The deadline was moved meanwhile.
            if self._due_us is not None:
                self._arm(self._due_us)
            return
        try:
            self.core.tick(self.clock.now_us)
        except Exception:
            self._record_exception("ticking")
        self.run_effects()

    def _record_exception(self, where: str) -> None:
        self.history.exceptions.append(f"{self.name} {where}: {traceback.format_exc()}")
        self.trace.note(self.name, "escaped", detail=where)

    # --- for the network -----------------------------------------------------------------------------

    def opened(self, link: SimulatedConnection) -> None:
        self.core.opened(self.clock.now_us, link.number)
        self.run_effects()

    def received(self, link: SimulatedConnection, chunk: bytes) -> None:
        found = self._links.get(link.number)
        if found is None:
            return
        self.trace.note(self.name, "received", chunk)
        pongs_only = True
        try:
            for message, payload in found[1].feed(chunk):
                if not isinstance(message, Pong):
                    pongs_only = False
                    self._observe(message)
                self.core.received(self.clock.now_us, link.number, message, payload)
        except PeerViolation:
            self._record_exception("reading")
        except Exception:
            self._record_exception("receiving")
        # Every third message is a pong, which has no effects and moves no deadline forward.
        if not pongs_only or self.core.out:
            self.run_effects()

    def _observe(self, message: NodeMessage) -> None:
        """Records start offsets of subscriptions and reports of damaged partitions."""
        match message:
            case Subscribed():
                for subscribed in self.on_subscribed:
                    subscribed(message)
            case Ended() | Failed() if message.code == PartitionDamaged.__name__:
                error = from_wire(message.code, message.carried)
                if isinstance(error, PartitionDamaged):
                    listener = (error.topic, error.partition, error.offset)
                    self.history.reported_damage.setdefault(listener, self.clock.now_us)
            case _:
                pass

    def lost(self, link: SimulatedConnection, reason: str) -> None:
        self.record_in_flight(link)
        self._links.pop(link.number, None)
        self.trace.note(self.name, "lost", reason.encode(), reason)
        self.core.lost(self.clock.now_us, link.number, reason)
        self.run_effects()

    def record_in_flight(self, link: SimulatedConnection) -> None:
        bound = BUFFER_HIGH + 3 * self.credit_bytes + (32 << 10)
        self.history.record_queue_size("bytes in flight to a client", link.down.in_flight_bytes_max, bound)

    def congested(self, link: SimulatedConnection) -> None:
        self.core.congested(link.number)
        self.run_effects()

    def drained(self, link: SimulatedConnection) -> None:
        self.core.drained(link.number)
        self.run_effects()
