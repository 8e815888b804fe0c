"""Moves of the members of a named subscription, who read what they hold and acknowledge it."""

from __future__ import annotations

from rostra.errors import NotAMember, StaleGeneration
from rostra.safeguards import ALL_ON, Without
from rostra.wire.groups import GroupPart, MovePositions, Position, ResetGroup
from rostra.wire.messages import Agreed, Failed, Subscribed, Unsubscribe, Unsubscribed
from tests.unit.broker.members import LEASE_MS, Person, make_groups
from tests.unit.broker.play import OPERATOR, Place, move, records_of
from tests.unit.broker.play_publishers import PublishersPlay

MEMBERS_MAX = 3
BEAT_MS = 300


class MembersPlay(PublishersPlay):
    """Members let go when they get to it, not at once: in between everything else may happen."""

    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        super().__init__(seed, without)
        self.people: dict[int, Person] = {}
        self.born = 0
        self.beaten_us = 0
        self.since: dict[tuple[int, tuple[int, int]], int] = {}
        """Since which generation a member knows that it holds a part."""
        make_groups(self.desk, OPERATOR)

    def person(self, drawn: int) -> Person:
        return self.people[sorted(self.people)[drawn % len(self.people)]]

    def _seat(self, member: int) -> Person:
        self.members_from = min(self.members_from, 1 << 20)
        person = self.people[member] = Person(self.desk, member, conn=(1 << 20) + self.next_number())
        return person

    # --- coming and going ---

    @move()
    def join(self) -> None:
        if len(self.people) < MEMBERS_MAX:
            self.born += 1
            assert self._seat(self.born).join("t/+") is None

    @move(who=9)
    def leave(self, *, who: int) -> None:
        if self.people:
            person = self.person(who)
            assert person.leave() is None
            del self.people[person.member]

    @move(who=9)
    def die(self, *, who: int) -> None:
        """A member that was silent for its lease has no say any more."""
        if not self.people:
            return
        dead = self.person(who)
        del self.people[dead.member]
        self.pass_ms(LEASE_MS + 200, 0)
        dead.listen()
        assert isinstance(dead.ended[-1], NotAMember)
        for part in sorted(dead.parts):
            assert isinstance(dead.move(0, part), NotAMember)

    @move(who=9)
    def come_over_another_connection(self, *, who: int) -> None:
        if self.people:
            old = self.person(who)
            self.desk.lose(old.conn)
            self._return(old)

    def _return(self, old: Person) -> None:
        new = self._seat(old.member)
        new.hands = old.hands
        assert new.join("t/+") is None

    def restarted(self) -> None:
        super().restarted()
        self.fire()
        for member in sorted(self.people):
            self._return(self.people[member])

    def moment(self) -> None:
        super().moment()
        if self.desk.now.mono_us - self.beaten_us > BEAT_MS * 1000:
            self.beat()

    def beat(self) -> None:
        self.beaten_us = self.desk.now.mono_us
        for member in sorted(self.people):
            assert self.people[member].beat() is None

    # --- reading ---

    @move(who=9, count=9)
    def work(self, *, who: int, count: int) -> None:
        """A member handles some records of each part that it holds, and acknowledges them."""
        if not self.people:
            return
        person = self.person(who)
        person.listen()
        assert person.release() is None
        for part in sorted(person.parts):
            place = self._place_of(part)
            # Whoever handles one part hears meanwhile what becomes of the others.
            if place is not None and part in person.parts:
                self._goes_on_where_it_should(person, part)
                self._handle(person, part, place, count)

    def _goes_on_where_it_should(self, person: Person, part: tuple[int, int]) -> None:
        given, known = person.parts[part], self.reference.positions.get(part)
        if self.since.get((person.member, part)) != given.since:
            self.since[person.member, part] = given.since
            expected = ("earliest", 0) if known is None else ("offset", known)
            assert (given.start, given.value) == expected

    def _place_of(self, part: tuple[int, int]) -> Place | None:
        return next((place for place in self.places() if (self.topic_id(place), place[1]) == part), None)

    def _handle(self, person: Person, part: tuple[int, int], place: Place, count: int) -> None:
        self.look(place)
        first = self.part(place).first
        at = self.reference.positions.get(part, first)
        number = self.next_number()
        begun = self.answer(self._subscribe(place, number, "offset", at))
        if isinstance(begun, Failed):
            assert begun.code == "OffsetOutOfRange" and (at < first or at > self.part(place).end)
            at = first
            begun = self.ask(self._subscribe(place, number, "offset", at), Subscribed)
        got = [record for record in records_of(self.pushes.pop((OPERATOR, number), []), at) if record.delivered]
        self.ask(Unsubscribe(self.desk.request(), number), Unsubscribed)
        assert got == self.part(place).shown(at)
        done = got[: count + 1]
        at = done[-1].offset + 1 if done else at
        assert person.move(at, part) is None
        self.reference.positions[part] = at

    @move(who=9, power=1, synced=1)
    def crash_while_acknowledging(self, *, who: int, power: int, synced: int) -> None:
        """What was not agreed to when the node crashed may be so or not; what was, is."""
        parts = sorted(self.person(who).parts) if self.people else []
        place = self._place_of(parts[who % len(parts)]) if parts else None
        if place is None:
            return
        person, part, to = self.person(who), parts[who % len(parts)], self.part(place).end
        said = MovePositions(self.desk.request(), person.name, person.member, person.generation, (Position(*part, to),))
        self.desk.say(person.conn, said)
        if synced:
            self.desk.settle()
        agreed = said.request in [one.request for one in self.desk.heard(person.conn, Agreed)]
        self.start_again(bool(power), False)
        found = self._given(part)
        if agreed or (found.start, found.value) == ("offset", to):
            self.reference.positions[part] = to
        known = self.reference.positions.get(part)
        assert (found.start, found.value) == (("earliest", 0) if known is None else ("offset", known))

    def _given(self, part: tuple[int, int]) -> GroupPart:
        """Where whoever has the part now begins; it may have been on its way from one member to another."""
        for person in [*self.people.values()]:
            if part in person.parts:
                return person.parts[part]
            assert person.release() is None
        self.settle()
        return next(person.parts[part] for person in self.people.values() if part in person.parts)

    @move(who=9, other=9)
    def meddle(self, *, who: int, other: int) -> None:
        """Nobody moves the position of a part that somebody else has."""
        if len(self.people) < 2:
            return
        person = self.person(who)
        person.listen()
        foreign = sorted(self.reference.positions.keys() - person.parts.keys() - person.hands)
        if foreign:
            assert isinstance(person.move(0, foreign[other % len(foreign)]), StaleGeneration)

    @move(place=9, offset=20)
    def reset(self, *, place: int, offset: int) -> None:
        """Positions are set by hand only while nobody works."""
        where = self.place(place)
        part = self.topic_id(where), where[1]
        to = (self.part(where).end + 1) * offset // 20
        message = ResetGroup(self.desk.request(), "billing", (Position(*part, to),))
        if not self.born:
            return
        answer = self.answer(message)
        if self.people:
            assert isinstance(answer, Failed) and answer.code == "GroupBusy"
        else:
            assert isinstance(answer, Agreed), answer
            self.reference.positions[part] = to

    # --- what must hold ---

    def settle(self) -> None:
        super().settle()
        held: set[tuple[int, int]] = set()
        for person in self.people.values():
            person.listen()
            assert not held & person.hands, "a part is in one pair of hands"
            held |= person.hands

    def finish(self) -> None:
        """In the end everything is read by somebody."""
        self.settle()
        self.pass_ms(300, 0)
        for _ in range(MEMBERS_MAX + 1):
            for at in range(len(self.people)):
                self.work(who=at, count=1 << 30)
        if self.people:
            parts = {(self.topic_id(place), place[1]): self.part(place) for place in self.places()}
            assert {part for person in self.people.values() for part in person.parts} == parts.keys()
            for key, part in parts.items():
                assert part.shown(self.reference.positions[key]) == []
