"""Members of a consumer group: they process records at their own pace, fail some, leave, crash and rejoin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from rostra.client.core.effects import Result
from rostra.client.core.events import ClientEvent, Skipped
from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.groups.membership import Membership, MembershipState
from rostra.client.core.options import MemberSettings
from rostra.errors import RostraError, UnknownTopic
from rostra.simulator.clients.applications import REOPEN_US, Application
from rostra.simulator.clients.simulated_client import SimulatedClient
from rostra.simulator.clock import MS_US, SECOND_US
from rostra.simulator.history import GroupHistory


class GroupMemberApplication(Application):
    """One member. After healing it stays a member and acknowledges all records."""

    def __init__(
        self,
        client: SimulatedClient,
        random: Random,
        topics: list[str],
        ends_us: int,
        group: GroupHistory,
        new_client: Callable[[str], SimulatedClient],
    ) -> None:
        super().__init__(client, random, topics, ends_us)
        self._group = group
        self._new_client = new_client
        self._session = 0
        self._pace_us = random.choice((30, 120, 500)) * MS_US
        self._lifetime_us = random.choice((3, 9, 60)) * SECOND_US
        self._settings = MemberSettings(
            tuple(topics),
            "earliest",
            lease_ms=random.choice((800, 2_500)),
            credit_bytes=random.choice((600, 100_000)),
        )
        self._membership: Membership | None = None
        self._refused: RostraError | None = None
        """The error of its last attempt to join."""
        self._unacked: list[GroupRecord] = []
        client.event_listeners.append(self._on_event)

    def _on_event(self, event: ClientEvent) -> None:
        if isinstance(event, Skipped):
            self._group.skipped.append((event.topic, event.partition, range(event.offset, event.first)))

    def begin(self) -> None:
        if self.client.core.closed:
            # It could not connect in time.
            self._replace_client()
        self.history.operations += 1
        call = self.client.call(f"member of {self._group.name}", partial(self._joined, self._session))
        self._unacked = []
        self._membership = self.client.core.join(self.clock.now_us, call, self._group.name, self._settings, self)
        self.client.finished[self._membership.number] = partial(self._finished, self._session)
        self.client.run_effects()

    def _joined(self, session: int, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._finished(session, result)
        elif session == self._session:
            self._refused = None
            self.later(0, self._pace_us, self._process, session)
            self.later(self._lifetime_us // 2, self._lifetime_us, self._leave_or_crash, session)

    def _finished(self, session: int, error: RostraError) -> None:
        if session == self._session:
            self._session += 1
            self._refused = error
            self.later(REOPEN_US, 3 * REOPEN_US, self._rejoin, self._session)

    def _rejoin(self, session: int) -> None:
        if session == self._session:
            self.begin()

    # --- records -------------------------------------------------------------------------------------

    def _process(self, session: int) -> None:
        membership = self._membership
        if membership is None or session != self._session or membership.state is MembershipState.ENDED:
            return
        self._record_positions(membership)
        now_us = self.clock.now_us
        for _ in range(50 if self.over else self.random.choice((1, 3, 8))):
            record = membership.dispatcher.take(now_us)
            if record is None:
                break
            assert record.assigned is not None
            self._group.record_delivery(
                record.assigned.topic, record.partition, record.offset, self.client.name, now_us
            )
            self._unacked.append(record)
        idle = not self._unacked
        self.random.shuffle(self._unacked)
        for _ in range(len(self._unacked) if self.over else self.random.randint(0, len(self._unacked))):
            self._settle(self._unacked.pop())
        self.client.run_effects()
        pace_us = 40 * MS_US if self.over else self._pace_us
        if idle:
            pace_us *= 4
        self.later(pace_us // 2, pace_us, self._process, session)

    def _settle(self, record: GroupRecord) -> None:
        self.history.operations += 1
        if not self.over and self.random.random() < 0.1:
            record.retry()
        elif not self.over and self.random.random() < 0.1:
            record.give_back()
        else:
            assert record.assigned is not None
            self._group.acknowledged.add((record.assigned.topic, record.partition, record.offset))
            record.ack()

    def _record_positions(self, membership: Membership) -> None:
        """Records the positions that the coordinator has committed."""
        for (topic, partition), holding in membership.partitions.items():
            if holding.committed is not None:
                self._group.commit_position(topic, partition, holding.committed.offset)

    def ack(self, record: GroupRecord) -> None:
        if self._membership is not None:
            self._membership.dispatcher.ack(self.clock.now_us, record)

    def retry(self, record: GroupRecord) -> None:
        if self._membership is not None:
            self._membership.dispatcher.retry(self.clock.now_us, record)

    def give_back(self, record: GroupRecord) -> None:
        if self._membership is not None:
            self._membership.dispatcher.give_back(self.clock.now_us, record)

    # --- leaving -------------------------------------------------------------------------------------

    def _leave_or_crash(self, session: int) -> None:
        membership = self._membership
        if session != self._session or self.over or membership is None or membership.state is MembershipState.ENDED:
            return
        self._session += 1
        self.history.operations += 1
        if self.random.random() < 0.5:
            call = self.client.call(f"leave {self._group.name}", partial(self._left, self._session))
            self.client.core.leave(self.clock.now_us, call, membership)
            self.client.run_effects()
        else:
            # Crashed, with unacknowledged records; a new client takes its place.
            self.client.close()
            self._replace_client()
            self.later(REOPEN_US, 3 * REOPEN_US, self._rejoin, self._session)

    def _replace_client(self) -> None:
        self.client = self._new_client(f"{self.client.name.split('-')[0]}-{self._session}")
        self.client.event_listeners.append(self._on_event)
        self.client.start()

    def _left(self, session: int, result: Result | RostraError) -> None:
        self.later(REOPEN_US, 3 * REOPEN_US, self._rejoin, session)

    @property
    def generation(self) -> int:
        return 0 if self._membership is None else self._membership.generation

    def is_at_end(self) -> bool:
        """Whether it is a member without lag, or cannot be one because its topic was deleted."""
        if isinstance(self._refused, UnknownTopic):
            return True
        membership = self._membership
        if membership is None or membership.state is not MembershipState.MEMBER or self._unacked:
            return False
        return membership.lag == 0 and all(holding.started for holding in membership.partitions.values())
