"""The driver of a query that writes exactly once, as a streaming engine runs it: stage, commit, next batch.

It does what goes wrong with engines: it repeats commits, with the same parts or with new ones; aborts after a failure;
stages for attempts that are never committed and for batches that are decided already; skips a batch; and two drivers
run the same query from the same checkpoint.
"""

from __future__ import annotations

from functools import partial
from random import Random

from rostra.client.core.effects import Result, SinkDecision
from rostra.client.core.sink_requests import SinkTask
from rostra.errors import RostraError, SinkOutOfOrder, StagingLost, TopicExists
from rostra.model.encode import encode
from rostra.simulator.clients.applications import Application
from rostra.simulator.clients.simulated_client import SimulatedClient
from rostra.simulator.clock import EPOCH_US, MS_US, SECOND_US
from rostra.simulator.history import CreatedTopic, RecordSent, SinkCommitHistory, SinkHistory
from rostra.wire.messages import Topic, TopicSettings
from rostra.wire.sinks import StagedPart

RETRY_US = 300 * MS_US
BATCHES_MAX = 60


class SinkDriver(Application):
    """One driver. All drivers of a query share its history, which stands for their checkpoint."""

    def __init__(
        self,
        client: SimulatedClient,
        random: Random,
        topics: dict[str, TopicSettings],
        ends_us: int,
        query: SinkHistory,
        *,
        creates: bool,
    ) -> None:
        super().__init__(client, random, list(topics), ends_us)
        self._settings = topics
        self._query = query
        self._creates = creates
        self._recreates = creates and random.random() < 0.3
        self._batch = 0
        self._attempt = 0
        self._commit: SinkCommitHistory | None = None
        """What is being staged, or committed."""
        self._parts: list[StagedPart] = []
        self._staging = 0
        self._failed: RostraError | None = None
        self.is_idle = False
        """Whether it has nothing left to do."""

    def begin(self) -> None:
        if self._creates:
            for topic in self.topics:
                self._create(topic)
            if self._recreates:
                self.later(5 * SECOND_US, 15 * SECOND_US, self._delete, self.topics[-1])
        self.later(SECOND_US, 4 * SECOND_US, self._start)

    # --- topics ---

    def _create(self, topic: str) -> None:
        call = self.client.call(f"create {topic}", partial(self._created, topic))
        self.client.core.create_topic(self.clock.now_us, call, topic, self._settings[topic])
        self.client.run_effects()

    def _created(self, topic: str, result: Result | RostraError) -> None:
        if isinstance(result, Topic):
            self.history.created.append(CreatedTopic(result.topic, topic))
        elif not isinstance(result, TopicExists):
            self.later(100 * MS_US, SECOND_US, self._create, topic)

    def _delete(self, topic: str) -> None:
        if self.over:
            return
        self.history.delete_asked.add(topic)
        call = self.client.call(f"delete {topic}", lambda _: self.later(1, SECOND_US, self._create, topic))
        self.client.core.delete_topic(self.clock.now_us, call, topic)
        self.client.run_effects()

    # --- one batch ---

    def _start(self) -> None:
        """Starts, or restarts, from the checkpoint, which may be a batch behind the last decision."""
        self._batch = max(0, max(self._query.decided, default=-1) + self.random.choice((0, 1)))
        self._stage_batch()

    def _stage_batch(self) -> None:
        if self.over or self._batch >= BATCHES_MAX:
            self.is_idle = True
            return
        self._attempt += 1
        self._parts, self._staging, self._failed = [], 0, None
        batch = self._batch + (1 if self.random.random() < 0.05 else 0)
        self._commit = SinkCommitHistory(batch)
        self._query.commits.append(self._commit)
        for task in range(self.random.choice((0, 1, 2, 2, 3))):
            self._stage(batch, task, self._commit)
        if self.random.random() < 0.2:
            # The slower attempt of a task, or of a batch that is decided: never committed.
            self._stage(max(0, batch - self.random.choice((0, 1))), 9, None)
        if not self._staging:
            self.later(MS_US, 20 * MS_US, self._send_commit)

    def _stage(self, batch: int, task: int, commit: SinkCommitHistory | None) -> None:
        topic = self.random.choice(self.topics)
        partition = self.random.randrange(self._settings[topic].partitions)
        name = f"{self.client.name}-{self._attempt}-{task}"
        values = [f"{self._query.query}/{batch}/{name}/{one}".encode() for one in range(self.random.randint(1, 3))]
        for order, value in enumerate(values):
            self.history.sent[value] = RecordSent(value, name, order, topic, "none", self.clock.now_us)
        if commit is not None:
            commit.values.update(dict.fromkeys(values, topic))
            self._staging += 1
        self.history.operations += 1
        encoded = encode(values, timestamp_us=EPOCH_US + self.clock.now_us)
        call = self.client.call(f"stage {name}", partial(self._staged, commit))
        described = SinkTask(self._query.query, batch, task, self._attempt)
        self.client.core.sinks.stage(self.clock.now_us, call, topic, partition, encoded, described)
        self.client.run_effects()

    def _staged(self, commit: SinkCommitHistory | None, result: Result | RostraError) -> None:
        if commit is None:
            return
        self._staging -= 1
        if isinstance(result, StagedPart):
            self._parts.append(result)
        elif isinstance(result, RostraError):
            self._failed = result
        if self._staging:
            return
        if self._failed is None:
            # Long enough, now and then, for leases to end.
            self.later(MS_US, self.random.choice((20, 20, 20, 2_000)) * MS_US, self._send_commit)
        else:
            self._end_attempt(self._failed)

    def _send_commit(self) -> None:
        assert self._commit is not None
        self._commit.sent = True
        self.history.operations += 1
        call = self.client.call(f"commit {self._commit.batch}", partial(self._committed, self._commit))
        query, batch = self._query.query, self._commit.batch
        self.client.core.sinks.commit(self.clock.now_us, call, query, batch, self._parts)
        self.client.run_effects()

    def _committed(self, commit: SinkCommitHistory, result: Result | RostraError) -> None:
        if isinstance(result, SinkDecision):
            self._query.decided.add(result.batch)
            if commit.batch <= result.batch:
                self._query.decided.add(commit.batch)
            commit.decided = commit.decided or not result.repeated
            self._batch = result.batch + 1
            if self.random.random() < 0.15:
                # The reply was lost: a new driver writes the batch again.
                self._batch -= 1
            self.later(MS_US, 600 * MS_US, self._stage_batch)
        elif isinstance(result, StagingLost):
            commit.refused = True
            self._end_attempt(result)
        elif isinstance(result, SinkOutOfOrder):
            commit.refused = True
            self._query.decided.add(result.decided)
            self._batch = result.decided + 1
            self._end_attempt(result)
        elif self.random.random() < 0.5:
            self.later(RETRY_US, 3 * RETRY_US, self._send_commit)
        else:
            assert isinstance(result, RostraError)
            self._end_attempt(result)

    def _end_attempt(self, error: RostraError) -> None:
        """The attempt failed, or its outcome is unknown: perhaps aborts it, then writes the batch again."""
        if isinstance(error, SinkOutOfOrder) and not self._commit_was_sent():
            self._batch = max(self._batch, error.decided + 1)
        if self.random.random() < 0.5 and self._commit is not None:
            call = self.client.call("abort", lambda _: None)
            query, batch = self._query.query, self._commit.batch
            self.client.core.sinks.abort(self.clock.now_us, call, query, batch, self._parts)
            self.client.run_effects()
        self.later(RETRY_US, 3 * RETRY_US, self._stage_batch)

    def _commit_was_sent(self) -> bool:
        return self._commit is not None and self._commit.sent
