"""Members that come and go, one at a time."""

from __future__ import annotations

import pytest

from rostra.errors import Unavailable
from rostra.fabric.raft.consensus.hard_state import GroupConfig
from rostra.fabric.raft.consensus.membership import MembershipChange
from rostra.model.ids import NodeId
from rostra.safeguards import ALL_ON, Safeguard
from tests.unit.raft.checkers import Checkers, Violation
from tests.unit.raft.rig import SCRIPTED, Member, Rig


def with_spare(nodes: int, voters: int, **settings: object) -> Rig:
    """Nodes beyond the voters stand ready and know nothing."""
    rig = Rig(nodes, voters=tuple(range(1, voters + 1)), start=False, **settings)  # type: ignore[arg-type]
    for node in range(voters + 1, nodes + 1):
        rig.members[node] = Member(rig, NodeId(node), ())
    rig.start()
    return rig


@pytest.mark.requirement("RF-10:counts-later")
def test_a_new_node_is_brought_up_to_date_before_it_counts() -> None:
    rig = with_spare(4, voters=3)
    Checkers(rig)
    leader = rig.elect()
    values = [b"%d" % number for number in range(30)]
    for value in values:
        rig.publish(value)
    rig.network.blocked = {(leader.node, 4)}
    assert leader.change(MembershipChange.ADD, 4) is None
    rig.run(1_000)
    assert leader.group.config == GroupConfig(leader.group.config.voters, (NodeId(4),)), "a learner, for it has nothing"
    assert leader.change(MembershipChange.PROMOTE, 4) is not None
    rig.network.heal()
    rig.run_until(lambda: 4 in leader.group.config.voters)
    assert rig[4].values() == values
    rig.run_until(lambda: all(4 in member.group.config.voters for member in rig.members.values()))


@pytest.mark.requirement("RF-10:counts-later", "RF-33:learners")
@pytest.mark.parametrize("counts", [False, True])
def test_a_learner_counts_in_no_majority(counts: bool) -> None:
    rig = with_spare(4, voters=3, without=frozenset({Safeguard.LEARNER_NOT_COUNTED}) if counts else ALL_ON)
    Checkers(rig)
    rig.promotes = False
    for member in rig.members.values():
        member.group.promotes = False
    leader = rig.elect()
    assert leader.change(MembershipChange.ADD, 4) is None
    rig.run(1_000)
    assert rig[4].group.commit == leader.group.commit
    rig.network.split((leader.node, 4), tuple(node for node in (1, 2, 3) if node != leader.node))
    commit = leader.group.commit
    leader.propose(b"x")
    if counts:
        with pytest.raises(Violation, match="stable storage"):
            rig.run(1_000)
    else:
        rig.run(1_000)
        assert rig[4].values() == [b"x"] and leader.group.commit == commit


def test_a_second_change_waits_for_the_first() -> None:
    rig = with_spare(5, voters=3)
    leader = rig.elect()
    rig.network.split((leader.node,), tuple(node for node in rig.members if node != leader.node))
    assert leader.change(MembershipChange.ADD, 4) is None
    rig.run(20)
    assert isinstance(leader.change(MembershipChange.ADD, 5), Unavailable)
    rig.network.heal()
    rig.run_until(lambda: rig.elect().group.config_end <= rig.elect().group.commit)


def flaw_of_2015(rig: Rig) -> None:
    """Two leaders change the members from the same configuration, and their majorities do not overlap."""
    rig.promotes = False
    rig.make_leader(1)
    for member in rig.members.values():
        member.group.promotes = False
    assert rig[1].change(MembershipChange.ADD, 5) is None
    rig.run(300)
    # The first change, from four voters to five, reaches only the new one.
    rig.network.split((1, 5), (2, 3, 4))
    assert rig[1].change(MembershipChange.PROMOTE, 5) is None
    rig.run(200)
    assert len(rig[5].group.config.voters) == 5
    # The second, from four voters to three, is made by a leader that has committed nothing of its own term.
    rig[2].force_election()
    rig.run_until(lambda: rig[2].leads)
    rig.network.split((1, 5), (2, 3), (4,))
    if rig[2].change(MembershipChange.REMOVE, 1) is not None:
        return
    rig.run(300)
    assert rig[2].group.commit == rig[2].group.copy.end, "two of three have it"
    rig.network.split((1, 4, 5), (2, 3))
    rig[1].crash()
    rig[1].start()
    rig.make_leader(1)


def test_a_leader_changes_members_only_after_committing_in_its_own_term() -> None:
    rig = with_spare(5, voters=4, settings=SCRIPTED)
    Checkers(rig)
    flaw_of_2015(rig)
    assert 1 in rig[2].group.config.voters, "refused"
    rig = with_spare(5, voters=4, settings=SCRIPTED, without=frozenset({Safeguard.ONE_CHANGE_AT_A_TIME}))
    Checkers(rig)
    with pytest.raises(Violation, match="without the committed"):
        flaw_of_2015(rig)


def test_a_leader_that_is_removed_leads_until_that_is_committed_and_then_no_more() -> None:
    rig = Rig(3)
    Checkers(rig)
    leader = rig.elect()
    assert leader.change(MembershipChange.REMOVE, leader.node) is None
    rig.run_until(lambda: not leader.leads)
    assert leader.group.role == "learner"
    new = rig.elect()
    assert new is not leader and leader.node not in new.group.config.voters
    rig.run(5_000)
    assert rig.elect() is new, "who was removed disturbs nobody"


def test_a_leader_whose_removal_is_not_committed_may_lead_again_to_commit_it() -> None:
    rig = Rig(3, settings=SCRIPTED)
    Checkers(rig)
    rig.make_leader(1)
    rig.network.split((1,), (2, 3))
    assert rig[1].change(MembershipChange.REMOVE, 1) is None
    rig.run(20)
    rig[1].crash()
    rig[1].start()
    assert rig[1].group.config.voters == (2, 3)
    rig.network.heal()
    rig[1].force_election()
    rig.run_until(lambda: rig[2].group.config.voters == (2, 3))
    rig.run_until(lambda: rig[1].group.role == "learner")


def test_a_change_that_was_cut_is_forgotten_also_by_the_hard_state() -> None:
    rig = Rig(3, without=frozenset({Safeguard.CHECK_QUORUM}))
    Checkers(rig)
    old = rig.elect()
    rig.run(300)
    others = tuple(node for node in rig.members if node != old.node)
    rig.network.split((old.node,), others)
    assert old.change(MembershipChange.REMOVE, others[0]) is None
    rig.run(100)
    assert others[0] not in old.group.config.voters
    rig.run_until(lambda: any(rig[node].leads for node in others))
    rig.network.heal()
    rig.run_until(lambda: not old.leads and old.group.commit == rig.elect().group.commit)
    assert len(old.group.config.voters) == 3
    old.crash()
    old.start()
    assert len(old.group.config.voters) == 3
