"""Members of a consumer group, driven by messages."""

from __future__ import annotations

from typing import Any

import msgspec

from rostra.broker.groups.maintenance import GROUPS_TIMER
from rostra.broker.topics.internal_topics import GROUPS_TOPIC
from rostra.errors import RostraError, from_wire
from rostra.fabric.api import TimerFired
from rostra.wire.groups import (
    CommitPositions,
    CoordinatorLocation,
    DescribeGroup,
    FindCoordinator,
    GroupDescribed,
    GroupEnded,
    GroupJoined,
    JoinGroup,
    LeaveGroup,
    MemberAssignment,
    MemberHeartbeat,
    PartitionPosition,
    Position,
    Released,
)
from rostra.wire.messages import Agreed, ClientMessage, Failed
from tests.unit.broker.broker_driver import BrokerDriver

LEASE_MS = 1000


class GroupMemberClient:
    """One member on its own connection. It holds its latest assignment and releases partitions when `release` is
    called."""

    def __init__(self, driver: BrokerDriver, member: int, name: str = "billing", *, conn: int | None = None) -> None:
        self.driver = driver
        self.member = member
        self.name = name
        self.conn = driver.connect(conn if conn is not None else 1000 + member)
        self.generation = 0
        self.assigned: dict[tuple[int, int], PartitionPosition] = {}
        self.in_use: set[tuple[int, int]] = set()
        """Partitions that it may be handling: all that were assigned, until it releases them."""
        self.ended: list[RostraError] = []

    def ask(self, message: ClientMessage) -> RostraError | None:
        """Sends a request; returns its error, if any."""
        self.driver.send(self.conn, message)
        self.driver.settle()
        failed = self.driver.received(self.conn, Failed)
        self.receive()
        return from_wire(failed[0].code, failed[0].carried) if failed else None

    def receive(self) -> bool:
        """Takes in assignments; True if the set changed."""
        before = dict(self.assigned)
        assignments = self.driver.received(self.conn, MemberAssignment)
        for at, assigned in enumerate(assignments):
            assert (assigned.name, assigned.member) == (self.name, self.member)
            if at == 0 or not assignments[at - 1].more:
                self.assigned = {}
            self.assigned |= {(part.topic, part.partition): part for part in assigned.partitions}
            assert assigned.generation >= self.generation
            self.generation = assigned.generation
            self.in_use |= self.assigned.keys()
        self.ended += [from_wire(one.code, one.carried) for one in self.driver.received(self.conn, GroupEnded)]
        return before != self.assigned

    def join(self, *patterns: str, lease_ms: int = LEASE_MS, **fields: Any) -> RostraError | None:
        error = self.ask(JoinGroup(self.driver.request(), self.name, self.member, patterns, lease_ms, **fields))
        for joined in self.driver.received(self.conn, GroupJoined):
            self.generation = max(self.generation, joined.generation)
        return error

    def release(self) -> RostraError | None:
        self.in_use &= self.assigned.keys()
        return self.ask(Released(self.driver.request(), self.name, self.member, self.generation))

    def move(self, offset: int, *parts: tuple[int, int], tries: int = 0, generation: int = 0) -> RostraError | None:
        positions = tuple(Position(*part, offset, tries) for part in parts or tuple(self.assigned))
        sent_generation = generation or self.generation
        return self.ask(CommitPositions(self.driver.request(), self.name, self.member, sent_generation, positions))

    def heartbeat(self) -> RostraError | None:
        return self.ask(MemberHeartbeat(self.driver.request(), self.name, self.member, self.generation))

    def leave(self) -> RostraError | None:
        return self.ask(LeaveGroup(self.driver.request(), self.name, self.member))

    def described(self, after: tuple[int, int] = (0, -1)) -> GroupDescribed:
        assert self.ask(DescribeGroup(self.driver.request(), self.name, *after)) is None
        (described,) = self.driver.received(self.conn, GroupDescribed)
        return msgspec.structs.replace(described, request=0)

    @property
    def indices(self) -> list[int]:
        return sorted(partition for _, partition in self.assigned)


def agreed(client: GroupMemberClient) -> int:
    return len(client.driver.received(client.conn, Agreed))


def make_groups(driver: BrokerDriver, conn: int) -> CoordinatorLocation:
    """Creates the internal topic, as the first lookup of a coordinator does."""
    driver.send(conn, FindCoordinator(driver.request(), "billing"))
    driver.settle()
    (place,) = driver.received(conn, CoordinatorLocation)
    assert driver.broker.topic_table.by_name(GROUPS_TOPIC) is not None
    return place


def settle_all(*clients: GroupMemberClient) -> None:
    """All members release revoked partitions until no assignment changes any more."""
    news = True
    while news:
        news = False
        for client in clients:
            news = client.receive() or news
            assert client.release() is None


def wait(driver: BrokerDriver, elapsed_ms: int, *heard: GroupMemberClient, step_ms: int = 100) -> None:
    """Time passes, while these members send heartbeats."""
    for _ in range(0, elapsed_ms, step_ms):
        driver.advance_ms(step_ms)
        for client in heard:
            assert client.heartbeat() is None
        fire_group_timer(driver)


def fire_group_timer(driver: BrokerDriver) -> None:
    """Fires the coordinator's timer as often as it is due."""
    for _ in range(10):
        at_us = driver.timers.get(GROUPS_TIMER)
        if at_us is None or at_us > driver.now.mono_us:
            break
        del driver.timers[GROUPS_TIMER]
        driver.step(TimerFired(GROUPS_TIMER))
        driver.settle()
