"""Shows that the cluster works again when a majority is back: one change of the catalogue, one record per partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from rostra.client.core.effects import Ack, Result
from rostra.client.core.options import ProducerSettings
from rostra.client.core.producer.producer_state import ProducerState
from rostra.errors import RostraError, TopicError, TopicExists
from rostra.model.ids import Partition
from rostra.simulator.clients.applications import Application
from rostra.simulator.clients.simulated_client import SimulatedClient
from rostra.simulator.clock import MS_US
from rostra.simulator.history import LivenessDemand, RecordAcked, RecordFailed, RecordSent
from rostra.wire.messages import Topic, TopicSettings

TOPIC = "progress"
AGAIN_US = 20 * MS_US


class LivenessProbe(Application):
    """One thing after the other; `done` when all of it succeeded."""

    def __init__(
        self, client: SimulatedClient, random: Random, places: list[tuple[Partition, str]], ends_us: int
    ) -> None:
        super().__init__(client, random, [TOPIC], ends_us)
        self._since_us = client.clock.now_us
        self._left = places
        self._tries = 0
        self.done = False

    def begin(self) -> None:
        self.client.start()
        self._create()

    def give_up(self) -> None:
        """The time is over."""
        if not self.done:
            what = self._record() if self._created else "a change of the catalogue"
            self.history.demands.append(LivenessDemand(what, self._since_us, self.ends_us, 0))

    _created = False

    def _record(self) -> str:
        partition, name = self._left[0]
        return f"a record in {(name, int(partition.index))}"

    def _achieved(self, what: str) -> None:
        self.history.demands.append(LivenessDemand(what, self._since_us, self.ends_us, self.clock.now_us))

    def _create(self) -> None:
        self.history.operations += 1
        call = self.client.call("create progress", self._made)
        self.client.core.create_topic(self.clock.now_us, call, TOPIC, TopicSettings(partitions=1))
        self.client.act()

    def _made(self, result: Result | RostraError) -> None:
        if isinstance(result, Topic | TopicExists):
            self._created = True
            self._achieved("a change of the catalogue")
            self._next()
        else:
            self._soon(self._create)

    def _soon(self, act: Callable[[], None]) -> None:
        if not self.over:
            self.clock.after(AGAIN_US, act)

    def _next(self) -> None:
        if self._left:
            self._soon(self._publish)
        else:
            self.done = True

    def _publish(self) -> None:
        partition, name = self._left[0]
        call = self.client.call(f"herald's producer on {name}", self._opened)
        settings = ProducerSettings(acks="all", partition=int(partition.index))
        self._producing = self.client.core.open_producer(self.clock.now_us, call, name, settings)
        self.client.act()

    def _opened(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._refused(result)
        elif self._producing.topic != self._left[0][0].topic:
            # Another has its name now, and nobody knows how many copies of that one are there.
            self.clock.after(0, self._close, self._producing)
            self._left.pop(0)
            self._next()
        else:
            self.clock.after(0, self._send, self._producing)

    def _send(self, producing: ProducerState) -> None:
        self._tries += 1
        value = b"herald.%d" % self._tries
        producer = f"herald/{producing.producer_id:x}"
        self.history.operations += 1
        self.history.sent[value] = RecordSent(value, producer, self._tries, producing.name, "all", self.clock.now_us)
        call = self.client.call(f"publish of {value!r}", partial(self._settled, value, producing))
        producing.add(self.clock.now_us, value, call=call)
        producing.end_turn(self.clock.now_us)
        self.client.act()

    def _settled(self, value: bytes, producing: ProducerState, result: Result | RostraError) -> None:
        now_us = self.clock.now_us
        if isinstance(result, Ack):
            self.history.acked[value] = RecordAcked(value, producing.topic, result.partition, result.offset, now_us)
            self._achieved(self._record())
            self._left.pop(0)
            self.clock.after(0, self._close, producing)
            self._next()
            return
        assert isinstance(result, RostraError)
        self.history.failed[value] = RecordFailed(value, result)
        self._refused(result)

    def _close(self, producing: ProducerState) -> None:
        self.client.core.close_producer(producing)
        self.client.act()

    def _refused(self, error: RostraError) -> None:
        if isinstance(error, TopicError):
            # Somebody's wish to delete it took effect meanwhile.
            self._left.pop(0)
            self._next()
        else:
            self._soon(self._publish)
