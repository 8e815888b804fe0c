"""Leader election."""

from __future__ import annotations

from random import Random

import pytest

from rostra.fabric.consensus.messages import RequestVote, RequestVoteReply
from rostra.fabric.consensus.roles import TRANSITIONS, Role
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId
from rostra.safeguards import ALL_ON, Safeguard
from tests.unit.raft.checkers import Checkers
from tests.unit.raft.group_simulation import PARTITION, GroupSimulation, Member

TIMEOUT_MS = RaftSettings().election_timeout_ms_min


class Same(Random):
    """Randomness off: every timeout is the shortest."""

    def uniform(self, a: float, b: float) -> float:
        return a


@pytest.mark.requirement("RF-1")
def test_a_leader_is_heard_by_all_and_without_one_a_node_votes_for_itself() -> None:
    sim = GroupSimulation(3)
    leader = sim.elect()
    before = sim.sent["NodeHeartbeat"]
    sim.run(1000)
    assert sim.sent["NodeHeartbeat"] - before >= 20 * 2, "a heartbeat to each follower in every period"
    assert all(member.group.leader == leader.node for member in sim.members.values())
    follower = next(member for member in sim.members.values() if member is not leader)
    sim.network.split((follower.node,), tuple(n for n in sim.members if n != follower.node))
    follower.crash()
    follower.start()
    for other in sim.members.values():
        if other is not follower:
            other.crash()
    sim.network.heal()
    sim.run(RaftSettings().election_timeout_ms_max + 10)
    assert str(follower.group.role) == "precandidate", "it asks before it begins a term"
    follower.group.receive(
        sim.now, leader.node, RequestVoteReply(PARTITION, follower.group.term, follower.group.term + 1, True, True)
    )
    follower.step()
    assert follower.group.role is Role.CANDIDATE
    assert follower.group.hard_state.vote == follower.node


def ask(member: Member, candidate: int, term: int) -> bool:
    """Whether the member grants its vote."""
    granted: list[bool] = []

    def hear(sender: Member, receiver: NodeId, message: object, payload: bytes = b"") -> None:
        if isinstance(message, RequestVoteReply) and sender is member:
            granted.append(message.granted)

    original, member.sim.send = member.sim.send, hear  # type: ignore[method-assign]
    member.group.receive(member.sim.now, NodeId(candidate), RequestVote(PARTITION, term, 100, term - 1, False))
    member.step()
    member.sim.run(20)
    member.sim.send = original  # type: ignore[method-assign]
    return granted == [True]


@pytest.mark.requirement("RF-3:one-vote", "RF-34:vote")
@pytest.mark.parametrize("remembers", [True, False])
def test_a_node_votes_once_per_term_even_across_a_restart(remembers: bool) -> None:
    sim = GroupSimulation(3, without=ALL_ON if remembers else frozenset({Safeguard.PERSIST_VOTE}), start=False)
    voter = sim[1]
    voter.start()
    assert ask(voter, 2, term=5)
    assert not ask(voter, 3, term=5)
    voter.crash()
    voter.start()
    assert ask(voter, 3, term=5) is not remembers, "only a forgotten vote is given twice"
    assert ask(voter, 3, term=6)


@pytest.mark.requirement("RF-34:vote")
def test_no_vote_leaves_before_it_is_durable() -> None:
    sim = GroupSimulation(3, start=False)
    sim.sync_us = (50_000, 50_000)
    voter = sim[1]
    voter.start()
    voter.group.receive(sim.now, NodeId(2), RequestVote(PARTITION, 5, 100, 4, False))
    voter.step()
    sim.run(49)
    assert sim.sent["RequestVoteReply"] == 0
    sim.run(2)
    assert sim.sent["RequestVoteReply"] == 1


@pytest.mark.requirement("RF-3:split-vote")
def test_a_split_vote_leads_to_a_new_term() -> None:
    sim = GroupSimulation(4, settings=RaftSettings(election_timeout_ms_min=600, election_timeout_ms_max=1200))
    Checkers(sim)
    sim.network.split((1, 2), (3, 4))
    for candidate in (1, 3):
        sim[candidate].force_election()
    sim.run(50)
    assert {member.group.term for member in sim.members.values()} == {1}
    assert [member.group.hard_state.vote for member in sim.members.values()] == [1, 1, 3, 3]
    assert sim.leader() is None, "two votes of four are no majority"
    sim.network.heal()
    assert sim.elect().group.term > 1


@pytest.mark.requirement("RF-4")
def test_equal_timeouts_give_candidates_again_and_again_and_different_ones_a_leader() -> None:
    sim = GroupSimulation(2, start=False)
    sim.network.delay_us = sim.sync_us = (1_000, 1_000)
    sim.random_of = lambda node: Same()  # type: ignore[method-assign]
    sim.start()
    sim.run(10 * TIMEOUT_MS)
    assert sim.leader() is None
    terms = sim[1].group.term
    assert terms >= 4, "each time both vote for themselves"
    sim[2].group.random = Random(1)
    assert sim.elect().group.term > terms


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.requirement("RF-33:pre-vote")
def test_a_partitioned_servers_return_raises_no_term(asks_first: bool) -> None:
    sim = GroupSimulation(3, without=ALL_ON if asks_first else frozenset({Safeguard.PRE_VOTE}))
    leader = sim.elect()
    term = leader.group.term
    away = next(node for node in sim.members if node != leader.node)
    sim.network.split((away,), tuple(node for node in sim.members if node != away))
    sim.run(5_000)
    sim.network.heal()
    sim.run(2_000)
    again = sim.elect()
    assert (again.group.term == term) is asks_first
    if asks_first:
        assert again is leader


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.requirement("RF-33:check-quorum")
def test_a_leader_without_a_majority_steps_down_within_one_election_timeout(checks: bool) -> None:
    sim = GroupSimulation(5, without=ALL_ON if checks else frozenset({Safeguard.CHECK_QUORUM}))
    leader = sim.elect()
    sim.publish(b"heard by all")
    others = [node for node in sim.members if node != leader.node]
    sim.network.split((leader.node, others[0]), tuple(others[1:]))
    sim.run(TIMEOUT_MS)
    assert leader.leads is not checks
    sim.network.split((leader.node, others[0]), tuple(others[1:]))
    if checks:
        assert not leader.propose(b"nobody will ever read this")


@pytest.mark.requirement("RF-35:quorum")
def test_an_unreachable_peer_never_shrinks_the_quorum() -> None:
    sim = GroupSimulation(3)
    checkers = Checkers(sim)
    leader = sim.elect()
    sim.publish(b"before")
    for member in sim.members.values():
        if member is not leader:
            member.crash()
    sim.run(60_000)
    assert sim.leader() is None
    assert len(checkers.leaders) == 1, "alone it is elected in no term"


@pytest.mark.parametrize("seed", range(5))
def test_links_as_slow_as_the_shortest_timeout_there_and_back_depose_nobody(seed: int) -> None:
    sim = GroupSimulation(3, seed=seed)
    slow_us = sim.settings.election_min_us * 2 // 3
    sim.network.delay_us = (slow_us, slow_us)
    leader = sim.elect()
    term = leader.group.term
    sim.run(10_000)
    assert leader.leads
    assert leader.group.term == term


@pytest.mark.requirement("RF-33:terms")
def test_a_deposed_leader_steps_down_when_it_hears_of_a_higher_term() -> None:
    sim = GroupSimulation(3, without=frozenset({Safeguard.CHECK_QUORUM}))
    old = sim.elect()
    others = tuple(node for node in sim.members if node != old.node)
    sim.network.split((old.node,), others)
    sim.run_until(lambda: any(sim[node].leads for node in others))
    assert old.leads, "it has not heard"
    sim.network.heal()
    sim.run_until(lambda: not old.leads)
    sim.run_until(lambda: old.group.leader in others)


@pytest.mark.requirement("RF-33:transfer")
def test_leadership_is_handed_over_without_an_election_timeout() -> None:
    sim = GroupSimulation(3)
    Checkers(sim)
    leader = sim.elect()
    sim.publish(b"x")
    target = next(member for member in sim.members.values() if member is not leader)
    begun = sim.us
    assert leader.group.transfer_leadership(sim.now, target.node) is None
    leader.step()
    assert not leader.propose(b"no more from here")
    sim.run_until(lambda: target.leads)
    assert sim.us - begun < TIMEOUT_MS * 1000
    assert target.propose(b"y")


def test_a_transfer_to_a_node_that_is_gone_is_given_up() -> None:
    sim = GroupSimulation(3)
    leader = sim.elect()
    target = next(member for member in sim.members.values() if member is not leader)
    target.crash()
    leader.propose(b"what the target lacks")
    assert leader.group.transfer_leadership(sim.now, target.node) is None
    leader.step()
    sim.run(2 * TIMEOUT_MS)
    assert leader.leads
    assert leader.propose(b"on we go")


def test_a_group_of_one_elects_itself_at_once() -> None:
    sim = GroupSimulation(1)
    sim.run(10)
    assert sim[1].leads
    sim.publish(b"alone")
    assert sim[1].values() == [b"alone"]


def test_every_role_is_reached_and_left_by_the_table() -> None:
    assert {old for old, _ in TRANSITIONS} == {new for _, new in TRANSITIONS} == set(Role)
