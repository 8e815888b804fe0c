"""How leaders come and go."""

from __future__ import annotations

from random import Random

import pytest

from rostra.fabric.raft.consensus.roles import TRANSITIONS, Role
from rostra.fabric.raft.messages import RequestVote, RequestVoteReply
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId
from rostra.safeguards import ALL_ON, Safeguard
from tests.unit.raft.checkers import Checkers
from tests.unit.raft.rig import HERE, Member, Rig

TIMEOUT_MS = RaftSettings().election_timeout_ms_min


class Same(Random):
    """Randomness off: every timeout is the shortest."""

    def uniform(self, a: float, b: float) -> float:
        return a


@pytest.mark.requirement("RF-1")
def test_a_leader_is_heard_by_all_and_without_one_a_node_votes_for_itself() -> None:
    rig = Rig(3)
    leader = rig.elect()
    before = rig.sent["NodeHeartbeat"]
    rig.run(1000)
    assert rig.sent["NodeHeartbeat"] - before >= 20 * 2, "a heartbeat to each follower in every period"
    assert all(member.group.leader == leader.node for member in rig.members.values())
    follower = next(member for member in rig.members.values() if member is not leader)
    rig.network.split((follower.node,), tuple(n for n in rig.members if n != follower.node))
    follower.crash()
    follower.start()
    for other in rig.members.values():
        if other is not follower:
            other.crash()
    rig.network.heal()
    rig.run(RaftSettings().election_timeout_ms_max + 10)
    assert str(follower.group.role) == "precandidate", "it asks before it begins a term"
    follower.group.receive(
        rig.now, leader.node, RequestVoteReply(HERE, follower.group.term, follower.group.term + 1, True, True)
    )
    follower.step()
    assert follower.group.role is Role.CANDIDATE
    assert follower.group.hard.vote == follower.node


def ask(member: Member, candidate: int, term: int) -> bool:
    """Whether the member grants its vote."""
    granted: list[bool] = []

    def hear(sender: Member, receiver: NodeId, message: object, payload: bytes = b"") -> None:
        if isinstance(message, RequestVoteReply) and sender is member:
            granted.append(message.granted)

    original, member.rig.send = member.rig.send, hear  # type: ignore[method-assign]
    member.group.receive(member.rig.now, NodeId(candidate), RequestVote(HERE, term, 100, term - 1, False))
    member.step()
    member.rig.run(20)
    member.rig.send = original  # type: ignore[method-assign]
    return granted == [True]


@pytest.mark.requirement("RF-3:one-vote", "RF-34:vote")
@pytest.mark.parametrize("remembers", [True, False])
def test_a_node_votes_once_per_term_even_across_a_restart(remembers: bool) -> None:
    rig = Rig(3, without=ALL_ON if remembers else frozenset({Safeguard.PERSIST_VOTE}), start=False)
    voter = rig[1]
    voter.start()
    assert ask(voter, 2, term=5)
    assert not ask(voter, 3, term=5)
    voter.crash()
    voter.start()
    assert ask(voter, 3, term=5) is not remembers, "only a forgotten vote is given twice"
    assert ask(voter, 3, term=6)


@pytest.mark.requirement("RF-34:vote")
def test_no_vote_leaves_before_it_is_durable() -> None:
    rig = Rig(3, start=False)
    rig.sync_us = (50_000, 50_000)
    voter = rig[1]
    voter.start()
    voter.group.receive(rig.now, NodeId(2), RequestVote(HERE, 5, 100, 4, False))
    voter.step()
    rig.run(49)
    assert rig.sent["RequestVoteReply"] == 0
    rig.run(2)
    assert rig.sent["RequestVoteReply"] == 1


@pytest.mark.requirement("RF-3:split-vote")
def test_a_split_vote_leads_to_a_new_term() -> None:
    rig = Rig(4, settings=RaftSettings(election_timeout_ms_min=600, election_timeout_ms_max=1200))
    Checkers(rig)
    rig.network.split((1, 2), (3, 4))
    for candidate in (1, 3):
        rig[candidate].force_election()
    rig.run(50)
    assert {member.group.term for member in rig.members.values()} == {1}
    assert [member.group.hard.vote for member in rig.members.values()] == [1, 1, 3, 3]
    assert rig.leader() is None, "two votes of four are no majority"
    rig.network.heal()
    assert rig.elect().group.term > 1


@pytest.mark.requirement("RF-4")
def test_equal_timeouts_give_candidates_again_and_again_and_different_ones_a_leader() -> None:
    rig = Rig(2, start=False)
    rig.network.delay_us = rig.sync_us = (1_000, 1_000)
    rig.random_of = lambda node: Same()  # type: ignore[method-assign]
    rig.start()
    rig.run(10 * TIMEOUT_MS)
    assert rig.leader() is None
    terms = rig[1].group.term
    assert terms >= 4, "each time both vote for themselves"
    rig[2].group.random = Random(1)
    assert rig.elect().group.term > terms


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.requirement("RF-33:pre-vote")
def test_a_partitioned_servers_return_raises_no_term(asks_first: bool) -> None:
    rig = Rig(3, without=ALL_ON if asks_first else frozenset({Safeguard.PRE_VOTE}))
    leader = rig.elect()
    term = leader.group.term
    away = next(node for node in rig.members if node != leader.node)
    rig.network.split((away,), tuple(node for node in rig.members if node != away))
    rig.run(5_000)
    rig.network.heal()
    rig.run(2_000)
    again = rig.elect()
    assert (again.group.term == term) is asks_first
    if asks_first:
        assert again is leader


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.requirement("RF-33:check-quorum")
def test_a_leader_without_a_majority_steps_down_within_one_election_timeout(checks: bool) -> None:
    rig = Rig(5, without=ALL_ON if checks else frozenset({Safeguard.CHECK_QUORUM}))
    leader = rig.elect()
    rig.publish(b"heard by all")
    others = [node for node in rig.members if node != leader.node]
    rig.network.split((leader.node, others[0]), tuple(others[1:]))
    rig.run(TIMEOUT_MS)
    assert leader.leads is not checks
    rig.network.split((leader.node, others[0]), tuple(others[1:]))
    if checks:
        assert not leader.propose(b"nobody will ever read this")


@pytest.mark.requirement("RF-35:quorum")
def test_an_unreachable_peer_never_shrinks_the_quorum() -> None:
    rig = Rig(3)
    checkers = Checkers(rig)
    leader = rig.elect()
    rig.publish(b"before")
    for member in rig.members.values():
        if member is not leader:
            member.crash()
    rig.run(60_000)
    assert rig.leader() is None
    assert len(checkers.leaders) == 1, "alone it is elected in no term"


@pytest.mark.parametrize("seed", range(5))
def test_links_as_slow_as_the_shortest_timeout_there_and_back_depose_nobody(seed: int) -> None:
    rig = Rig(3, seed=seed)
    slow_us = rig.settings.election_us * 2 // 3
    rig.network.delay_us = (slow_us, slow_us)
    leader = rig.elect()
    term = leader.group.term
    rig.run(10_000)
    assert leader.leads
    assert leader.group.term == term


@pytest.mark.requirement("RF-33:terms")
def test_a_deposed_leader_steps_down_when_it_hears_of_a_higher_term() -> None:
    rig = Rig(3, without=frozenset({Safeguard.CHECK_QUORUM}))
    old = rig.elect()
    others = tuple(node for node in rig.members if node != old.node)
    rig.network.split((old.node,), others)
    rig.run_until(lambda: any(rig[node].leads for node in others))
    assert old.leads, "it has not heard"
    rig.network.heal()
    rig.run_until(lambda: not old.leads)
    rig.run_until(lambda: old.group.leader in others)


@pytest.mark.requirement("RF-33:transfer")
def test_leadership_is_handed_over_without_an_election_timeout() -> None:
    rig = Rig(3)
    Checkers(rig)
    leader = rig.elect()
    rig.publish(b"x")
    target = next(member for member in rig.members.values() if member is not leader)
    begun = rig.us
    assert leader.group.transfer(rig.now, target.node) is None
    leader.step()
    assert not leader.propose(b"no more from here")
    rig.run_until(lambda: target.leads)
    assert rig.us - begun < TIMEOUT_MS * 1000
    assert target.propose(b"y")


def test_a_transfer_to_a_node_that_is_gone_is_given_up() -> None:
    rig = Rig(3)
    leader = rig.elect()
    target = next(member for member in rig.members.values() if member is not leader)
    target.crash()
    leader.propose(b"what the target lacks")
    assert leader.group.transfer(rig.now, target.node) is None
    leader.step()
    rig.run(2 * TIMEOUT_MS)
    assert leader.leads
    assert leader.propose(b"on we go")


def test_a_group_of_one_elects_itself_at_once() -> None:
    rig = Rig(1)
    rig.run(10)
    assert rig[1].leads
    rig.publish(b"alone")
    assert rig[1].values() == [b"alone"]


def test_every_role_is_reached_and_left_by_the_table() -> None:
    assert {old for old, _ in TRANSITIONS} == {new for _, new in TRANSITIONS} == set(Role)
