"""How brokers find each other and close their ring."""

from __future__ import annotations

import itertools

import pytest

from rostra.errors import NodeStopping, RostraError, Unavailable
from rostra.fabric.api import OperationDone, RemoveNode
from rostra.fabric.flood.messages import Records
from rostra.fabric.flood.settings import FloodSettings
from rostra.model.encode import encode
from rostra.model.ids import NodeId
from tests.unit.flood.ring_simulation import WALL_US, RingSimulation

CLOSED = {1: (2, (1, 2, 3, 4)), 2: (3, (1, 2, 3, 4)), 3: (4, (1, 2, 3, 4)), 4: (1, (1, 2, 3, 4))}


@pytest.mark.requirement("FL-1:ring", "FL-20:any-order")
@pytest.mark.parametrize(("apart_us", "every"), [(0, 1), (30_000, 5), (700_000, 7)])
def test_brokers_that_start_in_any_order_all_at_once_or_one_by_one_close_the_same_ring(
    apart_us: int, every: int
) -> None:
    for order in list(itertools.permutations(range(1, 5)))[::every]:
        assert RingSimulation(4, order=order, apart_us=apart_us).rings() == CLOSED


@pytest.mark.requirement("FL-23:alone")
def test_a_ring_of_one_works() -> None:
    sim = RingSimulation(1)
    own, end = sim[1].publish("t", b"a", b"b")
    sim.run(10_000)
    assert sim[1].commits[own] == end
    assert sim[1].covered[own] == (end, (1,))
    assert sim[1].machine.ring.next is None


@pytest.mark.requirement("FL-21:closes")
def test_the_ring_closes_around_a_broker_that_dies_and_opens_for_it_when_it_returns() -> None:
    sim = RingSimulation(4)
    sim[2].crash()
    sim.settle()
    assert sim.rings() == {1: (3, (1, 3, 4)), 3: (4, (1, 3, 4)), 4: (1, (1, 3, 4))}
    sim[2].start()
    sim.settle()
    assert sim.rings() == CLOSED


def test_each_side_of_a_split_closes_a_ring_of_its_own() -> None:
    sim = RingSimulation(4)
    sim.split([1, 3], [2, 4])
    sim.settle()
    assert sim.rings() == {1: (3, (1, 3)), 2: (4, (2, 4)), 3: (1, (1, 3)), 4: (2, (2, 4))}
    sim.heal()
    sim.settle()
    assert sim.rings() == CLOSED


def test_a_broker_that_hears_another_but_is_not_heard_does_not_count_it() -> None:
    sim = RingSimulation(3)
    sim.cut = {(NodeId(1), NodeId(2))}
    sim.settle()
    assert sim.rings() == {1: (3, (1, 3)), 2: (3, (2, 3)), 3: (1, (1, 2, 3))}


@pytest.mark.requirement("FL-20:joins-leaves")
def test_a_member_that_is_removed_is_none_anywhere_even_when_it_returns() -> None:
    sim = RingSimulation(4)
    sim[1].step(RemoveNode(2, NodeId(3)))
    sim.settle()
    assert sim.rings() == {1: (2, (1, 2, 4)), 2: (4, (1, 2, 4)), 3: (None, (3,)), 4: (1, (1, 2, 4))}
    sim[3].crash()
    sim[3].start()
    sim.settle()
    assert sim[3].machine.ring.is_removed
    assert sorted(sim[1].machine.ring.members) == [1, 2, 4]


@pytest.mark.requirement("FL-20:joins-leaves")
def test_a_member_that_is_removed_passes_on_first_what_only_it_has() -> None:
    sim = RingSimulation(4)
    sim[3].publish("t", b"known")
    sim.settle()
    sim.cut = {(NodeId(3), NodeId(4))}
    own, end = sim[3].publish("t", b"its own")
    sim[1].step(RemoveNode(2, NodeId(3)))
    sim.run(100_000)
    assert NodeId(3) in sim[1].machine.ring.members, "nobody has it but the one that goes"
    batch = bytearray(encode([b"late"], timestamp_us=WALL_US))
    assert isinstance(sim[3].propose(own, batch), NodeStopping)
    sim.cut = set()
    sim.settle()
    sim.settle()
    assert sorted(sim[1].machine.ring.members) == [1, 2, 4]
    assert all(sim[number].machine.logs[own].end == end for number in (1, 2, 4))
    assert OperationDone(2) in sim[1].said


def test_a_member_that_cannot_forward_its_records_stays_and_the_removal_is_refused() -> None:
    sim = RingSimulation(3, settings=FloodSettings(removal_timeout_ms=2_000))
    sim[3].publish("t", b"known")
    sim.settle()
    sim.loses = lambda sender, receiver, message: sender == 3 and isinstance(message, Records)
    own, _ = sim[3].publish("t", b"its own")
    sim[1].step(RemoveNode(2, NodeId(3)))
    sim.run(4_000_000)
    assert [type(refused.error) for refused in sim[1].refused] == [Unavailable]
    assert NodeId(3) in sim[1].machine.ring.members
    sim.loses = lambda sender, receiver, message: False
    assert not isinstance(sim[3].propose(own, encode([b"goes on"], timestamp_us=WALL_US)), RostraError)


def test_a_member_that_is_away_is_removed_at_once_and_the_last_one_may_remove_itself() -> None:
    sim = RingSimulation(2)
    sim[2].crash()
    sim.settle()
    sim[1].step(RemoveNode(2, NodeId(2)))
    assert OperationDone(2) in sim[1].said and sorted(sim[1].machine.ring.members) == [1]
    sim[1].step(RemoveNode(3, NodeId(1)))
    assert OperationDone(3) in sim[1].said and sim[1].machine.ring.is_removed
