"""Reads that miss nothing that was acknowledged before they began."""

from __future__ import annotations

from rostra.safeguards import Safeguard
from tests.unit.raft.rig import Member, Rig


def ask(rig: Rig, member: Member) -> None:
    member.told.clear()
    member.group.ask_read(rig.now, 5)
    member.step()


def test_any_node_learns_what_it_must_have_applied_before_it_answers() -> None:
    rig = Rig(3)
    rig.elect()
    _, last = rig.publish(b"x")
    for member in rig.members.values():
        ask(rig, member)
        rig.run_until(lambda member=member: bool(member.told))  # type: ignore[misc]
        (token, commit), *_ = member.told
        assert token == 5 and commit is not None and commit > last


def test_a_leader_that_was_replaced_unknowingly_answers_no_read() -> None:
    rig = Rig(3, without=frozenset({Safeguard.CHECK_QUORUM}))
    old = rig.elect()
    others = tuple(node for node in rig.members if node != old.node)
    rig.network.split((old.node,), others)
    rig.run_until(lambda: any(rig[node].leads for node in others))
    ask(rig, old)
    rig.run(2_000)
    assert old.leads and old.told == []
    rig.network.heal()
    rig.run_until(lambda: bool(old.told))
    assert old.told == [(5, None)]


def test_a_new_leader_answers_no_read_before_it_has_committed() -> None:
    rig = Rig(3)
    rig.sync_us = (200_000, 200_000)
    rig.run_until(lambda: rig.leader() is not None)
    leader = rig.leader()
    assert leader is not None
    ask(rig, leader)
    assert leader.told == [(5, None)]
