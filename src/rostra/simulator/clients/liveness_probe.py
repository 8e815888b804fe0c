"""Checks that a majority makes progress: one metadata change, then one record per partition."""

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
    """Runs the operations one by one, retrying each; `done` when all succeeded."""

    def __init__(
        self, client: SimulatedClient, random: Random, partitions: list[tuple[Partition, str]], ends_us: int
    ) -> None:
        super().__init__(client, random, [TOPIC], ends_us)
        self._since_us = client.clock.now_us
        self._remaining = partitions
        self._tries = 0
        self.done = False

    def begin(self) -> None:
        self.client.start()
        self._create()

    def give_up(self) -> None:
        """Records the operation that did not succeed in time."""
        if not self.done:
            what = self._record() if self._created else "a metadata change"
            self.history.liveness_demands.append(LivenessDemand(what, self._since_us, self.ends_us, 0))

    _created = False

    def _record(self) -> str:
        partition, name = self._remaining[0]
        return f"a record in {(name, int(partition.index))}"

    def _record_success(self, what: str) -> None:
        self.history.liveness_demands.append(LivenessDemand(what, self._since_us, self.ends_us, self.clock.now_us))

    def _create(self) -> None:
        self.history.operations += 1
        call = self.client.call("create progress", self._on_created)
        self.client.core.create_topic(self.clock.now_us, call, TOPIC, TopicSettings(partitions=1))
        self.client.run_effects()

    def _on_created(self, result: Result | RostraError) -> None:
        if isinstance(result, Topic | TopicExists):
            self._created = True
            self._record_success("a metadata change")
            self._next()
        else:
            self._retry(self._create)

    def _retry(self, callback: Callable[[], None]) -> None:
        if not self.over:
            self.clock.after(AGAIN_US, callback)

    def _next(self) -> None:
        if self._remaining:
            self._retry(self._publish)
        else:
            self.done = True

    def _publish(self) -> None:
        partition, name = self._remaining[0]
        call = self.client.call(f"probe's producer on {name}", self._opened)
        settings = ProducerSettings(acks="all", partition=int(partition.index))
        self._state = self.client.core.open_producer(self.clock.now_us, call, name, settings)
        self.client.run_effects()

    def _opened(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._refused(result)
        elif self._state.topic != self._remaining[0][0].topic:
            # Another topic has this name now, and its replicas may lack a majority.
            self.clock.after(0, self._close, self._state)
            self._remaining.pop(0)
            self._next()
        else:
            self.clock.after(0, self._send, self._state)

    def _send(self, state: ProducerState) -> None:
        self._tries += 1
        value = b"herald.%d" % self._tries
        producer = f"herald/{state.producer_id:x}"
        self.history.operations += 1
        self.history.sent[value] = RecordSent(value, producer, self._tries, state.name, "all", self.clock.now_us)
        call = self.client.call(f"publish of {value!r}", partial(self._settled, value, state))
        state.add(self.clock.now_us, value, call=call)
        state.end_turn(self.clock.now_us)
        self.client.run_effects()

    def _settled(self, value: bytes, state: ProducerState, result: Result | RostraError) -> None:
        now_us = self.clock.now_us
        if isinstance(result, Ack):
            self.history.acked[value] = RecordAcked(value, state.topic, result.partition, result.offset, now_us)
            self._record_success(self._record())
            self._remaining.pop(0)
            self.clock.after(0, self._close, state)
            self._next()
            return
        assert isinstance(result, RostraError)
        self.history.failed[value] = RecordFailed(value, result)
        self._refused(result)

    def _close(self, state: ProducerState) -> None:
        self.client.core.close_producer(state)
        self.client.run_effects()

    def _refused(self, error: RostraError) -> None:
        if isinstance(error, TopicError):
            # The topic was deleted meanwhile.
            self._remaining.pop(0)
            self._next()
        else:
            self._retry(self._publish)
