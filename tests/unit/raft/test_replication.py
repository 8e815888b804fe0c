"""Log replication and commit."""

from __future__ import annotations

import pytest

from rostra.fabric.api import Committed, Truncate
from rostra.fabric.raft.settings import RaftSettings
from rostra.safeguards import ALL_ON, Safeguard
from tests.unit.raft.checkers import Checkers, Violation
from tests.unit.raft.group_simulation import SCRIPTED, GroupSimulation, Member


def others(sim: GroupSimulation, *nodes: int) -> tuple[int, ...]:
    return tuple(node for node in sim.members if node not in nodes)


def shown(member: Member) -> int:
    return max((effect.offset for effect in member.effects if isinstance(effect, Committed)), default=0)


@pytest.mark.requirement("RF-6:majority", "RF-34:fsynced")
def test_a_record_commits_when_a_majority_has_synced_it_and_followers_show_no_more() -> None:
    sim = GroupSimulation(3)
    Checkers(sim)
    leader = sim.elect(1)
    sim.run(200)
    begin = leader.group.commit
    for node in (2, 3):
        sim[node].sync_us = (10_000_000, 10_000_000)
    assert leader.propose(b"x")
    sim.run(1_000)
    assert [member.values()[-1:] for member in sim.members.values()] == [[b"x"]] * 3, "written everywhere"
    assert [shown(member) for member in sim.members.values()] == [begin] * 3, "but on stable storage of one"
    sim.run(10_000)
    assert [shown(member) for member in sim.members.values()] == [begin + 1] * 3


@pytest.mark.requirement("RF-34:log")
def test_what_was_committed_survives_a_power_cut_of_all_nodes() -> None:
    sim = GroupSimulation(3)
    checkers = Checkers(sim)
    for number in range(20):
        sim.publish(b"%d" % number)
    for member in sim.members.values():
        member.crash()
    for member in sim.members.values():
        member.start()
    leader = sim.elect()
    assert leader.values() == [b"%d" % number for number in range(20)]
    checkers.nothing_lost()


def test_a_deposed_leader_cannot_commit() -> None:
    sim = GroupSimulation(3, without=frozenset({Safeguard.CHECK_QUORUM}))
    Checkers(sim)
    old = sim.elect()
    sim.publish(b"shared")
    sim.network.split((old.node,), others(sim, old.node))
    assert old.propose(b"lost")
    sim.run_until(lambda: any(sim[node].leads for node in others(sim, old.node)))
    sim.run(1_000)
    assert old.leads and old.group.commit < old.group.log.end
    sim.network.heal()
    sim.run_until(lambda: not old.leads)
    sim.publish(b"kept")
    sim.run(500)
    assert [member.values() for member in sim.members.values()] == [[b"shared", b"kept"]] * 3
    assert any(isinstance(effect, Truncate) for effect in old.effects)


def test_readers_of_a_follower_do_not_wait_for_a_heartbeat_and_where_there_are_none_nothing_is_said() -> None:
    rare = RaftSettings(heartbeat_ms=10**6, election_timeout_ms_min=10**7, election_timeout_ms_max=10**7 + 1)
    sim = GroupSimulation(3, settings=rare)
    Checkers(sim)
    leader = sim.make_leader(1)
    read, unread = (sim[node] for node in others(sim, leader.node))
    read.set_readers(True)
    for value in (b"0", b"1"):
        assert leader.propose(value)
        sim.run(100)
        assert leader.group.commit == leader.group.log.end == read.group.commit
    assert unread.group.commit < leader.group.commit
    unread.set_readers(True)
    sim.run(100)
    assert unread.group.commit == leader.group.commit, "a new reader is informed at once"
    read.set_readers(False)
    for value in (b"2", b"3"):
        assert leader.propose(value)
        sim.run(100)
    assert read.group.commit < leader.group.commit == unread.group.commit


def figure_eight(sim: GroupSimulation) -> None:
    """An entry of an old term reaches a majority, none of the leader's own term does; then its rival returns."""
    sim.make_leader(1)
    sim.network.split((1, 2), (3, 4, 5))
    sim[1].propose(b"old term")
    sim.run(50)
    sim[1].crash()
    sim.network.split((3, 4, 5), (1, 2))
    sim[5].force_election()
    sim.run_until(lambda: sim[5].leads)
    # The rival's own entries stay with it.
    sim.network.split((5,), (1, 2, 3, 4))
    sim[5].propose(b"rival")
    sim.run(20)
    sim[5].crash()
    sim[1].start()
    sim[1].force_election()
    sim.run(40)
    sim[1].crash()
    sim[1].start()
    sim[1].force_election()
    sim.run_until(lambda: sim[1].leads)
    sim.network.split((1, 2, 3), (4, 5))
    old_end = next(one.end for one in sim[1].disk.stored if b"old term" in one.batch)
    peer = sim[1].group.sender.progress[sim[3].node]
    sim.run_until(lambda: peer.match >= old_end)
    assert peer.match == old_end, "its own term's first entry is not there yet"
    for node in (1, 2):
        sim[node].crash()
    sim.network.split((3, 4, 5), (1, 2))
    sim[5].start()
    sim.make_leader(5)


def test_an_entry_of_an_earlier_term_is_not_committed_by_counting_copies() -> None:
    sim = GroupSimulation(5, seed=1, settings=SCRIPTED)
    Checkers(sim)
    figure_eight(sim)
    sim = GroupSimulation(5, seed=1, settings=SCRIPTED, without=frozenset({Safeguard.OWN_TERM_COMMIT}))
    Checkers(sim)
    with pytest.raises(Violation, match="without the committed"):
        figure_eight(sim)


@pytest.mark.parametrize("checks", [True, False])
def test_a_late_sync_of_a_cut_end_vouches_for_nothing(checks: bool) -> None:
    patient = RaftSettings(election_timeout_ms_min=10**7, election_timeout_ms_max=10**7 + 1)
    sim = GroupSimulation(5, settings=patient, without=ALL_ON if checks else frozenset({Safeguard.SYNC_GENERATION}))
    Checkers(sim)
    sim.make_leader(1)
    # Node 3 writes what the first leader sent; before its sync ends, another leader has replaced it.
    sim[3].sync_us = (3_000_000, 3_000_000)
    sim.network.split((1, 3), (2, 4, 5))
    for _ in range(3):
        sim[1].propose(b"cut")
    sim.run(20)
    assert sim[3].values() == [b"cut"] * 3
    sim[3].sync_us = (8_000_000, 8_000_000)
    sim.make_leader(2)
    sim.network.split((2, 3, 4), (1, 5))
    begin = sim[2].group.commit
    sim[2].propose(b"kept")
    if checks:
        sim.run(5_000)
        assert sim[3].values() == [b"kept"] and sim[2].group.commit == begin
        sim.run(10_000)
        assert sim[2].group.commit == begin + 1
    else:
        with pytest.raises(Violation, match="stable storage"):
            sim.run(5_000)


def test_a_follower_that_was_away_catches_up_from_the_log() -> None:
    sim = GroupSimulation(3, settings=RaftSettings(window_bytes=500, window_messages=4, read_bytes=300))
    Checkers(sim)
    leader = sim.elect()
    away = sim[others(sim, leader.node)[0]]
    away.crash()
    values = [b"%d" % number * 10 for number in range(100)]
    for value in values:
        sim.publish(value)
    away.start()
    sim.run_until(lambda: away.values() == values and away.group.commit == leader.group.commit)
    assert away.drops == 0


@pytest.mark.requirement("RF-33:snapshots")
def test_a_follower_below_the_log_start_is_filled_from_there() -> None:
    sim = GroupSimulation(3)
    Checkers(sim)
    leader = sim.elect()
    away = sim[others(sim, leader.node)[0]]
    sim.publish(b"early")
    away.crash()
    for number in range(10):
        sim.publish(b"%d" % number)
    leader.group.advance_log_start(sim.now, leader.group.commit - 3)
    leader.step()
    away.start()
    sim.run_until(lambda: away.group.commit == leader.group.commit)
    assert away.drops == 1
    assert away.disk.first == leader.disk.first
    assert away.values() == [b"7", b"8", b"9"]


@pytest.mark.requirement("CM-13:no-say", "CM-13:repaired")
def test_a_damaged_copy_neither_votes_nor_acknowledges_until_it_is_refilled() -> None:
    sim = GroupSimulation(3)
    checkers = Checkers(sim)
    leader = sim.elect()
    hurt, gone = (sim[node] for node in others(sim, leader.node))
    for number in range(5):
        sim.publish(b"%d" % number)
    sim.run(300)
    gone.crash()
    hurt.crash()
    hurt.disk.stored = hurt.disk.stored[:2]
    hurt.disk.damaged_at = hurt.disk.end
    leader.crash()
    leader.start()
    hurt.start()
    sim.run(10_000)
    assert sim.leader() is None, "one whole copy of three is no majority"
    gone.start()
    sim.run_until(lambda: hurt.group.complete)
    assert hurt.drops == 1
    assert hurt.values() == [b"%d" % number for number in range(5)]
    checkers.nothing_lost()


@pytest.mark.requirement("RF-32:idle")
def test_an_idle_group_says_nothing_and_wakes_when_the_pairs_heartbeat_is_lost() -> None:
    sim = GroupSimulation(3)
    Checkers(sim)
    leader = sim.elect()
    sim.publish(b"x")
    sim.run(1_000)
    assert all(member.group.quiescent for member in sim.members.values())
    before = sim.sent.copy()
    sim.run(5_000)
    said = sim.sent - before
    assert set(said) == {"NodeHeartbeat"}, "only the pairs' own heartbeats"
    leader.crash()
    sim.run_until(lambda: (new := sim.leader()) is not None and new is not leader, 3_000)
    sim.publish(b"y")


@pytest.mark.requirement("RF-32:silent-when-known")
def test_a_group_is_not_silent_while_a_follower_lacks_something() -> None:
    sim = GroupSimulation(3)
    leader = sim.elect()
    sim.run(500)
    away = sim[others(sim, leader.node)[0]]
    sim.network.blocked = {(leader.node, away.node)}
    sim.publish(b"x")
    sim.run(1_000)
    assert not leader.group.quiescent
    sim.network.heal()
    sim.run_until(lambda: leader.group.quiescent)
    assert away.group.commit == leader.group.commit


@pytest.mark.requirement("CM-19:peers")
def test_what_is_on_its_way_to_a_follower_is_bounded() -> None:
    sim = GroupSimulation(3, settings=RaftSettings(window_bytes=1_000, window_messages=4))
    leader = sim.elect()
    sim.run(300)
    slow = sim[others(sim, leader.node)[0]]
    slow.sync_us = (5_000_000, 5_000_000)
    for number in range(200):
        leader.propose(b"%d" % number)
        sim.run(1)
    progress = leader.group.sender.progress[slow.node]
    assert len(progress.in_flight) <= 4
    sim.run(20_000)
    assert slow.values() == leader.values()


def test_a_leader_whose_disk_refuses_a_write_gives_way() -> None:
    sim = GroupSimulation(3)
    Checkers(sim)
    leader = sim.elect()
    leader.disk_refuses = True
    leader.propose(b"refused here, stored there")
    assert not leader.leads
    sim.elect()
    sim.publish(b"next")
    sim.run(500)
    logs = [member.values() for member in sim.members.values()]
    assert logs[0] == logs[1] == logs[2]
