"""The publisher table and its leases, compared with the rules written out plainly."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rostra.broker.publish.publisher_leases import GRACE, PublisherLeases
from rostra.broker.publish.publisher_table import NO_PUBLISHER, PublisherJoined, PublisherLeft, PublisherTable

Entry = PublisherJoined | PublisherLeft
PUBLISHERS = st.integers(1, 5)
STRENGTHS = st.integers(0, 3)
ENTRIES = st.one_of(
    st.builds(PublisherJoined, PUBLISHERS, STRENGTHS, st.just(1_000)),
    st.builds(PublisherLeft, PUBLISHERS, st.just("left")),
)


def strongest_of(entries: list[Entry]) -> int:
    """The rules of exclusive ownership: the strongest alive; of equals, the lowest id."""
    there: dict[int, int] = {}
    for entry in entries:
        if isinstance(entry, PublisherJoined):
            there[entry.publisher] = entry.strength
        else:
            there.pop(entry.publisher, None)
    best = max(there.values(), default=0)
    return min((publisher for publisher, strength in there.items() if strength == best), default=NO_PUBLISHER)


class TableFollowsLog(RuleBasedStateMachine):
    """A log of entries that is appended to, committed, truncated and restored from a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PublisherTable()
        self.log: list[Entry] = []
        self.first = 0
        self.commit = 0

    @rule(entry=ENTRIES)
    def append(self, entry: Entry) -> None:
        self.table.apply(len(self.log), entry)
        self.log.append(entry)

    @rule(share=st.floats(0, 1))
    def advance(self, share: float) -> None:
        self.commit += int((len(self.log) - self.commit) * share)
        self.table.commit(self.commit)

    @rule(share=st.floats(0, 1))
    def cut(self, share: float) -> None:
        self.log = self.log[: self.commit + int((len(self.log) - self.commit) * share)]
        self.table.truncate(len(self.log))

    @precondition(lambda self: self.commit == len(self.log))
    @rule()
    def begin_from_a_checkpoint(self) -> None:
        """As a copy that has only the entries of the checkpoint."""
        entries = list(self.table.to_entries())
        self.table = PublisherTable()
        for entry in entries:
            self.table.apply(-1, entry)
        self.table.commit(0)

    @invariant()
    def the_strongest_is_whom_the_rules_name(self) -> None:
        assert self.table.strongest == strongest_of(self.log)
        shown = self.table.ranked(16)
        assert len(shown) == len(self.table)
        assert [one.publisher for one in shown][:1] == ([self.table.strongest] if shown else [])


TableFollowsLog.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestBookFollowsLog = pytest.mark.requirement("HR-13")(TableFollowsLog.TestCase)


@given(st.lists(ENTRIES, max_size=30))
@pytest.mark.requirement("HR-14:drops", "HR-14:lowers")
def test_the_next_strongest_takes_over_when_the_strongest_leaves_or_grows_weaker(entries: list[Entry]) -> None:
    table = PublisherTable()
    for place, entry in enumerate(entries):
        before = table.strongest
        table.apply(place, entry)
        assert table.strongest == strongest_of(entries[: place + 1])
        if before not in (NO_PUBLISHER, entry.publisher, table.strongest):
            # An entry changes the rank of its own publisher only.
            assert table.strongest == entry.publisher


class Alive(NamedTuple):
    """What the reference knows of one publisher."""

    heard_us: int
    lease_us: int


class LeasesExpire(RuleBasedStateMachine):
    """A lease expires exactly when neither the publisher nor its connection was heard for its length."""

    @initialize()
    def begin(self) -> None:
        self.now_us = 10_000_000
        self.table = PublisherTable()
        self.leases = PublisherLeases(self.table, self.now_us)
        self.heard: dict[int, int] = {}
        self.on: dict[int, int] = {}
        self.alive: dict[int, Alive] = {}
        self.conn = 0
        self.base = 0

    def _log(self, entry: Entry) -> None:
        self.table.apply(self.base, entry)
        self.base += 1

    def _connection(self, fresh: bool) -> int:
        self.conn += fresh or self.conn not in self.heard
        self.heard[self.conn] = self.now_us
        for publisher, conn in self.on.items():
            if conn == self.conn and publisher in self.alive:
                self.alive[publisher] = self.alive[publisher]._replace(heard_us=self.now_us)
        return self.conn

    @rule(publisher=PUBLISHERS, lease_ms=st.sampled_from((50, 120, 400)), fresh=st.booleans())
    def register(self, publisher: int, lease_ms: int, fresh: bool) -> None:
        self._log(PublisherJoined(publisher, 0, lease_ms))
        self.leases.renew(publisher, self.now_us, self._connection(fresh))
        self.on[publisher] = self.conn
        self.alive[publisher] = Alive(self.now_us, lease_ms * 1000)

    @rule(publisher=PUBLISHERS)
    def leave(self, publisher: int) -> None:
        self._log(PublisherLeft(publisher, "left"))
        self.leases.forget(publisher)
        self.alive.pop(publisher, None)
        self.on.pop(publisher, None)

    @precondition(lambda self: self.heard)
    @rule()
    def something_is_heard_on_the_last_connection(self) -> None:
        self._connection(fresh=False)

    @precondition(lambda self: self.heard)
    @rule()
    def the_last_connection_is_lost(self) -> None:
        heard_us = self.heard.pop(self.conn, None)
        if heard_us is not None:
            self.leases.connection_lost(self.conn, heard_us)
            self.on = {publisher: conn for publisher, conn in self.on.items() if conn != self.conn}

    @rule()
    def another_node_becomes_the_owner(self) -> None:
        self.leases = PublisherLeases(self.table, self.now_us)
        self.heard.clear()
        self.on.clear()
        self.alive = {publisher: one._replace(heard_us=self.now_us) for publisher, one in self.alive.items()}

    @rule(elapsed_ms=st.integers(1, 300))
    def time_passes(self, elapsed_ms: int) -> None:
        until_us = self.now_us + elapsed_ms * 1000
        while self.leases.due_us is not None and self.leases.due_us <= until_us:
            self.now_us = max(self.leases.due_us, self.now_us)
            over = self.leases.expire(self.now_us, lambda conn: self.heard.get(conn, 0))
            ended = [one for one, alive in self.alive.items() if alive.heard_us + alive.lease_us <= self.now_us]
            assert sorted(over) == sorted(ended)
            for publisher in over:
                assert self.alive.pop(publisher).heard_us + 400_000 >= self.now_us
                self.on.pop(publisher, None)
                self._log(PublisherLeft(publisher, "silent"))
                self.leases.forget(publisher)
        self.now_us = until_us
        assert all(alive.heard_us + alive.lease_us > self.now_us for alive in self.alive.values())


LeasesExpire.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestLeasesRunOut = LeasesExpire.TestCase


def leases_of_one(lease_ms: int) -> tuple[PublisherTable, PublisherLeases]:
    table = PublisherTable()
    table.apply(0, PublisherJoined(7, 1, lease_ms))
    return table, PublisherLeases(table, 0)


def test_a_node_that_was_stalled_expires_no_lease() -> None:
    _, leases = leases_of_one(900)
    assert leases.due_us == 900_000
    woke_us = 900_000 + 900_000 // GRACE + 1
    assert leases.expire(woke_us, lambda conn: 0) == []
    assert leases.due_us == woke_us + 300_000
    assert leases.expire(leases.due_us, lambda conn: 0) == [7]


def test_an_explicit_registration_lasts_until_its_connection_is_lost_or_it_resigns() -> None:
    _, leases = leases_of_one(900)
    leases.set_explicit(7, 3)
    leases.forget(7)
    assert leases.explicit_conn(7) == 3
    leases.connection_lost(3, 100)
    assert leases.explicit_conn(7) is None
    leases.set_explicit(7, 4)
    leases.resigned(7)
    assert leases.explicit_conn(7) is None
