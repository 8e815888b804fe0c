"""Members of named subscriptions at a desk, driven by messages."""

from __future__ import annotations

from typing import Any

import msgspec

from rostra.broker.groups.coordinator_locator import GROUPS_TOPIC
from rostra.broker.groups.maintenance import GROUPS_TIMER
from rostra.errors import RostraError, from_wire
from rostra.fabric.api import TimerFired
from rostra.wire.groups import (
    Assignment,
    DescribeGroup,
    FindGroup,
    GroupDescribed,
    GroupEnded,
    GroupJoined,
    GroupPart,
    GroupPlace,
    JoinGroup,
    LeaveGroup,
    MemberHeartbeat,
    MovePositions,
    Position,
    Released,
)
from rostra.wire.messages import Agreed, ClientMessage, Failed
from tests.unit.broker.desk import Desk

LEASE_MS = 1000


class Person:
    """One member on a connection of its own. What it was told last is what it holds; it lets go when told to."""

    def __init__(self, desk: Desk, member: int, name: str = "billing", *, conn: int | None = None) -> None:
        self.desk = desk
        self.member = member
        self.name = name
        self.conn = desk.connect(conn if conn is not None else 1000 + member)
        self.generation = 0
        self.parts: dict[tuple[int, int], GroupPart] = {}
        self.hands: set[tuple[int, int]] = set()
        """What it may be handling: all that it was told to hold, until it says that it has let go."""
        self.ended: list[RostraError] = []

    def ask(self, message: ClientMessage) -> RostraError | None:
        """The refusal, if it is one."""
        self.desk.say(self.conn, message)
        self.desk.settle()
        failed = self.desk.heard(self.conn, Failed)
        self.listen()
        return from_wire(failed[0].code, failed[0].carried) if failed else None

    def listen(self) -> bool:
        """Takes in what was pushed; True if it holds something else now."""
        before = dict(self.parts)
        told = self.desk.heard(self.conn, Assignment)
        for at, assigned in enumerate(told):
            assert (assigned.name, assigned.member) == (self.name, self.member)
            if at == 0 or not told[at - 1].more:
                self.parts = {}
            self.parts |= {(part.topic, part.partition): part for part in assigned.parts}
            assert assigned.generation >= self.generation
            self.generation = assigned.generation
            self.hands |= self.parts.keys()
        self.ended += [from_wire(one.code, one.carried) for one in self.desk.heard(self.conn, GroupEnded)]
        return before != self.parts

    def join(self, *patterns: str, lease_ms: int = LEASE_MS, **fields: Any) -> RostraError | None:
        error = self.ask(JoinGroup(self.desk.request(), self.name, self.member, patterns, lease_ms, **fields))
        for joined in self.desk.heard(self.conn, GroupJoined):
            self.generation = max(self.generation, joined.generation)
        return error

    def release(self) -> RostraError | None:
        self.hands &= self.parts.keys()
        return self.ask(Released(self.desk.request(), self.name, self.member, self.generation))

    def move(self, offset: int, *parts: tuple[int, int], tries: int = 0, generation: int = 0) -> RostraError | None:
        positions = tuple(Position(*part, offset, tries) for part in parts or tuple(self.parts))
        told = generation or self.generation
        return self.ask(MovePositions(self.desk.request(), self.name, self.member, told, positions))

    def beat(self) -> RostraError | None:
        return self.ask(MemberHeartbeat(self.desk.request(), self.name, self.member, self.generation))

    def leave(self) -> RostraError | None:
        return self.ask(LeaveGroup(self.desk.request(), self.name, self.member))

    def described(self, after: tuple[int, int] = (0, -1)) -> GroupDescribed:
        assert self.ask(DescribeGroup(self.desk.request(), self.name, *after)) is None
        (described,) = self.desk.heard(self.conn, GroupDescribed)
        return msgspec.structs.replace(described, request=0)

    @property
    def indices(self) -> list[int]:
        return sorted(partition for _, partition in self.parts)


def agreed(person: Person) -> int:
    return len(person.desk.heard(person.conn, Agreed))


def make_groups(desk: Desk, conn: int) -> GroupPlace:
    """The internal topic, as the first who asks for a coordinator makes it."""
    desk.say(conn, FindGroup(desk.request(), "billing"))
    desk.settle()
    (place,) = desk.heard(conn, GroupPlace)
    assert desk.broker.topic_table.by_name(GROUPS_TOPIC) is not None
    return place


def settle_all(*people: Person) -> None:
    """Everybody lets go of what it was told to, until nobody is told anything more."""
    news = True
    while news:
        news = False
        for person in people:
            news = person.listen() or news
            assert person.release() is None


def wait(desk: Desk, elapsed_ms: int, *heard: Person, step_ms: int = 100) -> None:
    """Time passes, in which these members are heard."""
    for _ in range(0, elapsed_ms, step_ms):
        desk.after_ms(step_ms)
        for person in heard:
            assert person.beat() is None
        fire(desk)


def fire(desk: Desk) -> None:
    """The coordinator's timer, as often as it is due."""
    for _ in range(10):
        at_us = desk.timers.get(GROUPS_TIMER)
        if at_us is None or at_us > desk.now.mono_us:
            break
        del desk.timers[GROUPS_TIMER]
        desk.step(TimerFired(GROUPS_TIMER))
        desk.settle()
