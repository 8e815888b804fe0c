"""Random members, topics and restarts: one member holds a partition, and acknowledged positions stay."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rostra.errors import NotAMember
from rostra.wire.messages import DeleteTopic
from tests.unit.broker.broker_driver import BrokerDriver
from tests.unit.broker.group_member_client import LEASE_MS, GroupMemberClient, fire_group_timer, make_groups, wait

OPERATOR = 1
TOPICS = ("orders/a", "orders/b", "orders/c")


class RandomMembership(RuleBasedStateMachine):
    """Members release partitions at a later step, not at once, so that other operations happen in between."""

    @initialize()
    def begin(self) -> None:
        self.driver = BrokerDriver().start()
        self.driver.connect(OPERATOR)
        make_groups(self.driver, OPERATOR)
        self.clients: dict[int, GroupMemberClient] = {}
        self.topics: dict[str, int] = {}
        self.positions: dict[tuple[int, int], int] = {}
        self.joined_total = 0
        self.conns = 10_000

    def _client(self, draw: int) -> GroupMemberClient:
        return self.clients[sorted(self.clients)[draw % len(self.clients)]]

    def _conn(self) -> int:
        self.conns += 1
        return self.conns

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 4))
    def make_or_delete(self, name: str, partitions: int) -> None:
        if name in self.topics:
            deleted = self.topics.pop(name)
            self.driver.send(OPERATOR, DeleteTopic(self.driver.request(), name))
            self.driver.settle()
            self.positions = {part: at for part, at in self.positions.items() if part[0] != deleted}
        else:
            self.topics[name] = self.driver.make_topic(OPERATOR, name, partitions=partitions)
        self.driver.advance_ms(30)
        fire_group_timer(self.driver)

    @precondition(lambda self: len(self.clients) < 4)
    @rule()
    def join(self) -> None:
        self.joined_total += 1
        client = self.clients[self.joined_total] = GroupMemberClient(self.driver, self.joined_total, conn=self._conn())
        assert client.join("orders/+") is None

    @precondition(lambda self: self.clients)
    @rule(draw=st.integers(0, 9))
    def listen_and_let_go(self, draw: int) -> None:
        client = self._client(draw)
        client.receive()
        assert client.release() is None

    @precondition(lambda self: self.clients)
    @rule(draw=st.integers(0, 9), further=st.integers(1, 5))
    def move(self, draw: int, further: int) -> None:
        client = self._client(draw)
        client.receive()
        for part in sorted(client.assigned):
            assert client.assigned[part].value <= self.positions.get(part, 0)
            at = self.positions.get(part, 0) + further
            assert client.move(at, part) is None
            self.positions[part] = at

    @precondition(lambda self: self.clients)
    @rule(draw=st.integers(0, 9))
    def leave(self, draw: int) -> None:
        client = self._client(draw)
        assert client.leave() is None
        del self.clients[client.member]

    @precondition(lambda self: self.clients)
    @rule(draw=st.integers(0, 9))
    def die(self, draw: int) -> None:
        dead = self._client(draw)
        del self.clients[dead.member]
        self._time_passes()
        dead.receive()
        assert isinstance(dead.ended[-1], NotAMember)
        assert isinstance(dead.move(0, *sorted(self.positions)[:1]), NotAMember)

    def _time_passes(self) -> None:
        wait(self.driver, LEASE_MS + 200, *self.clients.values(), step_ms=300)

    @precondition(lambda self: self.clients)
    @rule(draw=st.integers(0, 9))
    def come_over_another_connection(self, draw: int) -> None:
        old = self._client(draw)
        self.driver.disconnect(old.conn)
        new = self.clients[old.member] = GroupMemberClient(self.driver, old.member, conn=self._conn())
        new.in_use = old.in_use
        assert new.join("orders/+") is None

    @rule()
    def restart_the_node(self) -> None:
        self.driver = self.driver.restarted()
        # Every start draws other ids.
        self.driver.broker.source = Random(self._conn())
        self.driver.connect(OPERATOR)
        fire_group_timer(self.driver)
        for member in sorted(self.clients):
            hands = self.clients[member].in_use
            client = self.clients[member] = GroupMemberClient(self.driver, member, conn=self._conn())
            client.in_use = hands
            assert client.join("orders/+") is None

    @invariant()
    def no_part_is_in_two_pairs_of_hands(self) -> None:
        for client in self.clients.values():
            client.receive()
        held = Counter(part for client in self.clients.values() for part in client.in_use)
        assert all(count == 1 for count in held.values()), held

    @invariant()
    def positions_are_what_was_agreed(self) -> None:
        observer = GroupMemberClient(self.driver, 99, conn=self._conn())
        if not self.joined_total:
            return
        shown = {(part.topic, part.partition): part for part in observer.described().partitions}
        for part, at in self.positions.items():
            assert (shown[part].start, shown[part].value) == ("offset", at)

    def teardown(self) -> None:
        if not getattr(self, "clients", None):
            return
        for _ in range(4):
            for member in sorted(self.clients):
                self.listen_and_let_go(sorted(self.clients).index(member))
        loads = [len(client.assigned) for client in self.clients.values()]
        known = [self.driver.broker.topic_table.by_name(name) for name in self.topics]
        assert sum(loads) == sum(len(one.partitions) for one in known if one is not None)
        assert max(loads) - min(loads) <= 1


TestMembership = RandomMembership.TestCase
TestMembership.settings = settings(max_examples=40, stateful_step_count=25, phases=set(Phase) - {Phase.explain})
