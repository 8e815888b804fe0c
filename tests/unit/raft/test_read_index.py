"""ReadIndex: a read sees everything acknowledged before it began."""

from __future__ import annotations

from rostra.safeguards import Safeguard
from tests.unit.raft.group_simulation import GroupSimulation, Member


def ask(sim: GroupSimulation, member: Member) -> None:
    member.read_results.clear()
    member.group.request_read_index(sim.now, 5)
    member.step()


def test_any_node_learns_what_it_must_have_applied_before_it_answers() -> None:
    sim = GroupSimulation(3)
    sim.elect()
    _, last = sim.publish(b"x")
    for member in sim.members.values():
        ask(sim, member)
        sim.run_until(lambda member=member: bool(member.read_results))  # type: ignore[misc]
        (token, commit), *_ = member.read_results
        assert token == 5 and commit is not None and commit > last


def test_a_leader_that_was_replaced_unknowingly_answers_no_read() -> None:
    sim = GroupSimulation(3, without=frozenset({Safeguard.CHECK_QUORUM}))
    old = sim.elect()
    others = tuple(node for node in sim.members if node != old.node)
    sim.network.split((old.node,), others)
    sim.run_until(lambda: any(sim[node].leads for node in others))
    ask(sim, old)
    sim.run(2_000)
    assert old.leads and old.read_results == []
    sim.network.heal()
    sim.run_until(lambda: bool(old.read_results))
    assert old.read_results == [(5, None)]


def test_a_new_leader_answers_no_read_before_it_has_committed() -> None:
    sim = GroupSimulation(3)
    sim.sync_us = (200_000, 200_000)
    sim.run_until(lambda: sim.leader() is not None)
    leader = sim.leader()
    assert leader is not None
    ask(sim, leader)
    assert leader.read_results == [(5, None)]
