"""Membership changes, one at a time."""

from __future__ import annotations

import pytest

from rostra.errors import Unavailable
from rostra.fabric.consensus.hard_state import GroupConfig
from rostra.fabric.consensus.membership import MembershipChange
from rostra.model.ids import NodeId
from rostra.safeguards import ALL_ON, Safeguard
from tests.unit.raft.checkers import Checkers, Violation
from tests.unit.raft.group_simulation import SCRIPTED, GroupSimulation, Member


def with_spare(nodes: int, voters: int, **settings: object) -> GroupSimulation:
    """Nodes beyond the voters are empty spares."""
    sim = GroupSimulation(nodes, voters=tuple(range(1, voters + 1)), start=False, **settings)  # type: ignore[arg-type]
    for node in range(voters + 1, nodes + 1):
        sim.members[node] = Member(sim, NodeId(node), ())
    sim.start()
    return sim


@pytest.mark.requirement("RF-10:counts-later")
def test_a_new_node_is_brought_up_to_date_before_it_counts() -> None:
    sim = with_spare(4, voters=3)
    Checkers(sim)
    leader = sim.elect()
    values = [b"%d" % number for number in range(30)]
    for value in values:
        sim.publish(value)
    sim.network.blocked = {(leader.node, 4)}
    assert leader.change(MembershipChange.ADD, 4) is None
    sim.run(1_000)
    assert leader.group.config == GroupConfig(leader.group.config.voters, (NodeId(4),)), "a learner, for it has nothing"
    assert leader.change(MembershipChange.PROMOTE, 4) is not None
    sim.network.heal()
    sim.run_until(lambda: 4 in leader.group.config.voters)
    assert sim[4].values() == values
    sim.run_until(lambda: all(4 in member.group.config.voters for member in sim.members.values()))


@pytest.mark.requirement("RF-10:counts-later", "RF-33:learners")
@pytest.mark.parametrize("counts", [False, True])
def test_a_learner_counts_in_no_majority(counts: bool) -> None:
    sim = with_spare(4, voters=3, without=frozenset({Safeguard.LEARNER_NOT_COUNTED}) if counts else ALL_ON)
    Checkers(sim)
    sim.promotes = False
    for member in sim.members.values():
        member.group.promotes_learners = False
    leader = sim.elect()
    assert leader.change(MembershipChange.ADD, 4) is None
    sim.run(1_000)
    assert sim[4].group.commit == leader.group.commit
    sim.network.split((leader.node, 4), tuple(node for node in (1, 2, 3) if node != leader.node))
    commit = leader.group.commit
    leader.propose(b"x")
    if counts:
        with pytest.raises(Violation, match="stable storage"):
            sim.run(1_000)
    else:
        sim.run(1_000)
        assert sim[4].values() == [b"x"] and leader.group.commit == commit


def test_a_second_change_waits_for_the_first() -> None:
    sim = with_spare(5, voters=3)
    leader = sim.elect()
    sim.network.split((leader.node,), tuple(node for node in sim.members if node != leader.node))
    assert leader.change(MembershipChange.ADD, 4) is None
    sim.run(20)
    assert isinstance(leader.change(MembershipChange.ADD, 5), Unavailable)
    sim.network.heal()
    sim.run_until(lambda: sim.elect().group.config_end <= sim.elect().group.commit)


def flaw_of_2015(sim: GroupSimulation) -> None:
    """Two leaders change the members from the same configuration, and their majorities do not overlap."""
    sim.promotes = False
    sim.make_leader(1)
    for member in sim.members.values():
        member.group.promotes_learners = False
    assert sim[1].change(MembershipChange.ADD, 5) is None
    sim.run(300)
    # The first change, from four voters to five, reaches only the new one.
    sim.network.split((1, 5), (2, 3, 4))
    assert sim[1].change(MembershipChange.PROMOTE, 5) is None
    sim.run(200)
    assert len(sim[5].group.config.voters) == 5
    # The second, from four voters to three, is made by a leader that has committed nothing of its own term.
    sim[2].force_election()
    sim.run_until(lambda: sim[2].leads)
    sim.network.split((1, 5), (2, 3), (4,))
    if sim[2].change(MembershipChange.REMOVE, 1) is not None:
        return
    sim.run(300)
    assert sim[2].group.commit == sim[2].group.log.end, "two of three have it"
    sim.network.split((1, 4, 5), (2, 3))
    sim[1].crash()
    sim[1].start()
    sim.make_leader(1)


def test_a_leader_changes_members_only_after_committing_in_its_own_term() -> None:
    sim = with_spare(5, voters=4, settings=SCRIPTED)
    Checkers(sim)
    flaw_of_2015(sim)
    assert 1 in sim[2].group.config.voters, "refused"
    sim = with_spare(5, voters=4, settings=SCRIPTED, without=frozenset({Safeguard.ONE_CHANGE_AT_A_TIME}))
    Checkers(sim)
    with pytest.raises(Violation, match="without the committed"):
        flaw_of_2015(sim)


def test_a_leader_that_is_removed_leads_until_that_is_committed_and_then_no_more() -> None:
    sim = GroupSimulation(3)
    Checkers(sim)
    leader = sim.elect()
    assert leader.change(MembershipChange.REMOVE, leader.node) is None
    sim.run_until(lambda: not leader.leads)
    assert leader.group.role == "learner"
    new = sim.elect()
    assert new is not leader and leader.node not in new.group.config.voters
    sim.run(5_000)
    assert sim.elect() is new, "who was removed disturbs nobody"


def test_a_leader_whose_removal_is_not_committed_may_lead_again_to_commit_it() -> None:
    sim = GroupSimulation(3, settings=SCRIPTED)
    Checkers(sim)
    sim.make_leader(1)
    sim.network.split((1,), (2, 3))
    assert sim[1].change(MembershipChange.REMOVE, 1) is None
    sim.run(20)
    sim[1].crash()
    sim[1].start()
    assert sim[1].group.config.voters == (2, 3)
    sim.network.heal()
    sim[1].force_election()
    sim.run_until(lambda: sim[2].group.config.voters == (2, 3))
    sim.run_until(lambda: sim[1].group.role == "learner")


def test_a_change_that_was_cut_is_forgotten_also_by_the_hard_state() -> None:
    sim = GroupSimulation(3, without=frozenset({Safeguard.CHECK_QUORUM}))
    Checkers(sim)
    old = sim.elect()
    sim.run(300)
    others = tuple(node for node in sim.members if node != old.node)
    sim.network.split((old.node,), others)
    assert old.change(MembershipChange.REMOVE, others[0]) is None
    sim.run(100)
    assert others[0] not in old.group.config.voters
    sim.run_until(lambda: any(sim[node].leads for node in others))
    sim.network.heal()
    sim.run_until(lambda: not old.leads and old.group.commit == sim.elect().group.commit)
    assert len(old.group.config.voters) == 3
    old.crash()
    old.start()
    assert len(old.group.config.voters) == 3
