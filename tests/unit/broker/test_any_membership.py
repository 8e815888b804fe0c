"""Whatever members, topics and the node do: a part is in one pair of hands, and what was acknowledged stays so."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rostra.errors import NotAMember
from rostra.wire.messages import DeleteTopic
from tests.unit.broker.desk import Desk
from tests.unit.broker.members import LEASE_MS, Person, fire, make_groups, wait

OPERATOR = 1
TOPICS = ("orders/a", "orders/b", "orders/c")


class Membership(RuleBasedStateMachine):
    """Persons let go when they get to it, not at once: in between everything else may happen."""

    @initialize()
    def begin(self) -> None:
        self.desk = Desk().start()
        self.desk.connect(OPERATOR)
        make_groups(self.desk, OPERATOR)
        self.people: dict[int, Person] = {}
        self.topics: dict[str, int] = {}
        self.positions: dict[tuple[int, int], int] = {}
        self.born = 0
        self.conns = 10_000

    def _person(self, draw: int) -> Person:
        return self.people[sorted(self.people)[draw % len(self.people)]]

    def _conn(self) -> int:
        self.conns += 1
        return self.conns

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 4))
    def make_or_delete(self, name: str, partitions: int) -> None:
        if name in self.topics:
            gone = self.topics.pop(name)
            self.desk.say(OPERATOR, DeleteTopic(self.desk.request(), name))
            self.desk.settle()
            self.positions = {part: at for part, at in self.positions.items() if part[0] != gone}
        else:
            self.topics[name] = self.desk.make_topic(OPERATOR, name, partitions=partitions)
        self.desk.after_ms(30)
        fire(self.desk)

    @precondition(lambda self: len(self.people) < 4)
    @rule()
    def join(self) -> None:
        self.born += 1
        person = self.people[self.born] = Person(self.desk, self.born, conn=self._conn())
        assert person.join("orders/+") is None

    @precondition(lambda self: self.people)
    @rule(draw=st.integers(0, 9))
    def listen_and_let_go(self, draw: int) -> None:
        person = self._person(draw)
        person.listen()
        assert person.release() is None

    @precondition(lambda self: self.people)
    @rule(draw=st.integers(0, 9), further=st.integers(1, 5))
    def move(self, draw: int, further: int) -> None:
        person = self._person(draw)
        person.listen()
        for part in sorted(person.parts):
            assert person.parts[part].value <= self.positions.get(part, 0)
            at = self.positions.get(part, 0) + further
            assert person.move(at, part) is None
            self.positions[part] = at

    @precondition(lambda self: self.people)
    @rule(draw=st.integers(0, 9))
    def leave(self, draw: int) -> None:
        person = self._person(draw)
        assert person.leave() is None
        del self.people[person.member]

    @precondition(lambda self: self.people)
    @rule(draw=st.integers(0, 9))
    def die(self, draw: int) -> None:
        dead = self._person(draw)
        del self.people[dead.member]
        self._time_passes()
        dead.listen()
        assert isinstance(dead.ended[-1], NotAMember)
        assert isinstance(dead.move(0, *sorted(self.positions)[:1]), NotAMember)

    def _time_passes(self) -> None:
        wait(self.desk, LEASE_MS + 200, *self.people.values(), step_ms=300)

    @precondition(lambda self: self.people)
    @rule(draw=st.integers(0, 9))
    def come_over_another_connection(self, draw: int) -> None:
        old = self._person(draw)
        self.desk.lose(old.conn)
        new = self.people[old.member] = Person(self.desk, old.member, conn=self._conn())
        new.hands = old.hands
        assert new.join("orders/+") is None

    @rule()
    def restart_the_node(self) -> None:
        self.desk = self.desk.restarted()
        # Every start draws other ids.
        self.desk.broker.source = Random(self._conn())
        self.desk.connect(OPERATOR)
        fire(self.desk)
        for member in sorted(self.people):
            hands = self.people[member].hands
            person = self.people[member] = Person(self.desk, member, conn=self._conn())
            person.hands = hands
            assert person.join("orders/+") is None

    @invariant()
    def no_part_is_in_two_pairs_of_hands(self) -> None:
        for person in self.people.values():
            person.listen()
        held = Counter(part for person in self.people.values() for part in person.hands)
        assert all(count == 1 for count in held.values()), held

    @invariant()
    def positions_are_what_was_agreed(self) -> None:
        observer = Person(self.desk, 99, conn=self._conn())
        if not self.born:
            return
        shown = {(part.topic, part.partition): part for part in observer.described().parts}
        for part, at in self.positions.items():
            assert (shown[part].start, shown[part].value) == ("offset", at)

    def teardown(self) -> None:
        if not getattr(self, "people", None):
            return
        for _ in range(4):
            for member in sorted(self.people):
                self.listen_and_let_go(sorted(self.people).index(member))
        loads = [len(person.parts) for person in self.people.values()]
        known = [self.desk.broker.topic_table.by_name(name) for name in self.topics]
        assert sum(loads) == sum(len(one.partitions) for one in known if one is not None)
        assert max(loads) - min(loads) <= 1


TestMembership = Membership.TestCase
TestMembership.settings = settings(max_examples=40, stateful_step_count=25, phases=set(Phase) - {Phase.explain})
