"""What is stored where, and when it counts."""

from __future__ import annotations

import pytest

from rostra.fabric.api import Committed, Truncate
from rostra.fabric.raft.settings import RaftSettings
from rostra.safeguards import ALL_ON, Safeguard
from tests.unit.raft.checkers import Checkers, Violation
from tests.unit.raft.rig import SCRIPTED, Member, Rig


def others(rig: Rig, *nodes: int) -> tuple[int, ...]:
    return tuple(node for node in rig.members if node not in nodes)


def shown(member: Member) -> int:
    return max((effect.offset for effect in member.effects if isinstance(effect, Committed)), default=0)


@pytest.mark.requirement("RF-6:majority", "RF-34:fsynced")
def test_a_record_commits_when_a_majority_has_synced_it_and_followers_show_no_more() -> None:
    rig = Rig(3)
    Checkers(rig)
    leader = rig.elect(1)
    rig.run(200)
    begin = leader.group.commit
    for node in (2, 3):
        rig[node].sync_us = (10_000_000, 10_000_000)
    assert leader.propose(b"x")
    rig.run(1_000)
    assert [member.values()[-1:] for member in rig.members.values()] == [[b"x"]] * 3, "written everywhere"
    assert [shown(member) for member in rig.members.values()] == [begin] * 3, "but on stable storage of one"
    rig.run(10_000)
    assert [shown(member) for member in rig.members.values()] == [begin + 1] * 3


@pytest.mark.requirement("RF-34:log")
def test_what_was_committed_survives_a_power_cut_of_all_nodes() -> None:
    rig = Rig(3)
    checkers = Checkers(rig)
    for number in range(20):
        rig.publish(b"%d" % number)
    for member in rig.members.values():
        member.crash()
    for member in rig.members.values():
        member.start()
    leader = rig.elect()
    assert leader.values() == [b"%d" % number for number in range(20)]
    checkers.nothing_lost()


def test_a_deposed_leader_cannot_commit() -> None:
    rig = Rig(3, without=frozenset({Safeguard.CHECK_QUORUM}))
    Checkers(rig)
    old = rig.elect()
    rig.publish(b"shared")
    rig.network.split((old.node,), others(rig, old.node))
    assert old.propose(b"lost")
    rig.run_until(lambda: any(rig[node].leads for node in others(rig, old.node)))
    rig.run(1_000)
    assert old.leads and old.group.commit < old.group.copy.end
    rig.network.heal()
    rig.run_until(lambda: not old.leads)
    rig.publish(b"kept")
    rig.run(500)
    assert [member.values() for member in rig.members.values()] == [[b"shared", b"kept"]] * 3
    assert any(isinstance(effect, Truncate) for effect in old.effects)


def test_readers_of_a_follower_do_not_wait_for_a_heartbeat_and_where_there_are_none_nothing_is_said() -> None:
    rare = RaftSettings(heartbeat_ms=10**6, election_timeout_ms_min=10**7, election_timeout_ms_max=10**7 + 1)
    rig = Rig(3, settings=rare)
    Checkers(rig)
    leader = rig.make_leader(1)
    read, unread = (rig[node] for node in others(rig, leader.node))
    read.serve_readers(True)
    for value in (b"0", b"1"):
        assert leader.propose(value)
        rig.run(100)
        assert leader.group.commit == leader.group.copy.end == read.group.commit
    assert unread.group.commit < leader.group.commit
    unread.serve_readers(True)
    rig.run(100)
    assert unread.group.commit == leader.group.commit, "whoever comes is told at once"
    read.serve_readers(False)
    for value in (b"2", b"3"):
        assert leader.propose(value)
        rig.run(100)
    assert read.group.commit < leader.group.commit == unread.group.commit


def figure_eight(rig: Rig) -> None:
    """An entry of an old term reaches a majority, none of the leader's own term does; then its rival returns."""
    rig.make_leader(1)
    rig.network.split((1, 2), (3, 4, 5))
    rig[1].propose(b"old term")
    rig.run(50)
    rig[1].crash()
    rig.network.split((3, 4, 5), (1, 2))
    rig[5].force_election()
    rig.run_until(lambda: rig[5].leads)
    # The rival's own entries stay with it.
    rig.network.split((5,), (1, 2, 3, 4))
    rig[5].propose(b"rival")
    rig.run(20)
    rig[5].crash()
    rig[1].start()
    rig[1].force_election()
    rig.run(40)
    rig[1].crash()
    rig[1].start()
    rig[1].force_election()
    rig.run_until(lambda: rig[1].leads)
    rig.network.split((1, 2, 3), (4, 5))
    old_end = next(one.end for one in rig[1].medium.stored if b"old term" in one.batch)
    peer = rig[1].group.replication.peers[rig[3].node]
    rig.run_until(lambda: peer.match >= old_end)
    assert peer.match == old_end, "its own term's first entry is not there yet"
    for node in (1, 2):
        rig[node].crash()
    rig.network.split((3, 4, 5), (1, 2))
    rig[5].start()
    rig.make_leader(5)


def test_an_entry_of_an_earlier_term_is_not_committed_by_counting_copies() -> None:
    rig = Rig(5, seed=1, settings=SCRIPTED)
    Checkers(rig)
    figure_eight(rig)
    rig = Rig(5, seed=1, settings=SCRIPTED, without=frozenset({Safeguard.OWN_TERM_COMMIT}))
    Checkers(rig)
    with pytest.raises(Violation, match="without the committed"):
        figure_eight(rig)


@pytest.mark.parametrize("checks", [True, False])
def test_a_late_sync_of_a_cut_end_vouches_for_nothing(checks: bool) -> None:
    patient = RaftSettings(election_timeout_ms_min=10**7, election_timeout_ms_max=10**7 + 1)
    rig = Rig(5, settings=patient, without=ALL_ON if checks else frozenset({Safeguard.SYNC_GENERATION}))
    Checkers(rig)
    rig.make_leader(1)
    # Node 3 writes what the first leader sent; before its sync ends, another leader has replaced it.
    rig[3].sync_us = (3_000_000, 3_000_000)
    rig.network.split((1, 3), (2, 4, 5))
    for _ in range(3):
        rig[1].propose(b"cut")
    rig.run(20)
    assert rig[3].values() == [b"cut"] * 3
    rig[3].sync_us = (8_000_000, 8_000_000)
    rig.make_leader(2)
    rig.network.split((2, 3, 4), (1, 5))
    begin = rig[2].group.commit
    rig[2].propose(b"kept")
    if checks:
        rig.run(5_000)
        assert rig[3].values() == [b"kept"] and rig[2].group.commit == begin
        rig.run(10_000)
        assert rig[2].group.commit == begin + 1
    else:
        with pytest.raises(Violation, match="stable storage"):
            rig.run(5_000)


def test_a_follower_that_was_away_catches_up_from_the_log() -> None:
    rig = Rig(3, settings=RaftSettings(window_bytes=500, window_messages=4, read_bytes=300))
    Checkers(rig)
    leader = rig.elect()
    away = rig[others(rig, leader.node)[0]]
    away.crash()
    values = [b"%d" % number * 10 for number in range(100)]
    for value in values:
        rig.publish(value)
    away.start()
    rig.run_until(lambda: away.values() == values and away.group.commit == leader.group.commit)
    assert away.drops == 0


@pytest.mark.requirement("RF-33:snapshots")
def test_a_follower_below_the_log_start_is_filled_from_there() -> None:
    rig = Rig(3)
    Checkers(rig)
    leader = rig.elect()
    away = rig[others(rig, leader.node)[0]]
    rig.publish(b"early")
    away.crash()
    for number in range(10):
        rig.publish(b"%d" % number)
    leader.group.advance_start(rig.now, leader.group.commit - 3)
    leader.step()
    away.start()
    rig.run_until(lambda: away.group.commit == leader.group.commit)
    assert away.drops == 1
    assert away.medium.first == leader.medium.first
    assert away.values() == [b"7", b"8", b"9"]


@pytest.mark.requirement("CM-13:no-say", "CM-13:repaired")
def test_a_damaged_copy_neither_votes_nor_acknowledges_until_it_is_refilled() -> None:
    rig = Rig(3)
    checkers = Checkers(rig)
    leader = rig.elect()
    hurt, gone = (rig[node] for node in others(rig, leader.node))
    for number in range(5):
        rig.publish(b"%d" % number)
    rig.run(300)
    gone.crash()
    hurt.crash()
    hurt.medium.stored = hurt.medium.stored[:2]
    hurt.medium.damaged_at = hurt.medium.end
    leader.crash()
    leader.start()
    hurt.start()
    rig.run(10_000)
    assert rig.leader() is None, "one whole copy of three is no majority"
    gone.start()
    rig.run_until(lambda: hurt.group.complete)
    assert hurt.drops == 1
    assert hurt.values() == [b"%d" % number for number in range(5)]
    checkers.nothing_lost()


@pytest.mark.requirement("RF-32:idle")
def test_an_idle_group_says_nothing_and_wakes_when_the_pairs_heartbeat_is_lost() -> None:
    rig = Rig(3)
    Checkers(rig)
    leader = rig.elect()
    rig.publish(b"x")
    rig.run(1_000)
    assert all(member.group.quiet for member in rig.members.values())
    before = rig.sent.copy()
    rig.run(5_000)
    said = rig.sent - before
    assert set(said) == {"NodeHeartbeat"}, "only the pairs' own heartbeats"
    leader.crash()
    rig.run_until(lambda: (new := rig.leader()) is not None and new is not leader, 3_000)
    rig.publish(b"y")


@pytest.mark.requirement("RF-32:silent-when-known")
def test_a_group_is_not_silent_while_a_follower_lacks_something() -> None:
    rig = Rig(3)
    leader = rig.elect()
    rig.run(500)
    away = rig[others(rig, leader.node)[0]]
    rig.network.blocked = {(leader.node, away.node)}
    rig.publish(b"x")
    rig.run(1_000)
    assert not leader.group.quiet
    rig.network.heal()
    rig.run_until(lambda: leader.group.quiet)
    assert away.group.commit == leader.group.commit


@pytest.mark.requirement("CM-19:peers")
def test_what_is_on_its_way_to_a_follower_is_bounded() -> None:
    rig = Rig(3, settings=RaftSettings(window_bytes=1_000, window_messages=4))
    leader = rig.elect()
    rig.run(300)
    slow = rig[others(rig, leader.node)[0]]
    slow.sync_us = (5_000_000, 5_000_000)
    for number in range(200):
        leader.propose(b"%d" % number)
        rig.run(1)
    progress = leader.group.replication.peers[slow.node]
    assert len(progress.in_flight) <= 4
    rig.run(20_000)
    assert slow.values() == leader.values()


def test_a_leader_whose_disk_refuses_a_write_gives_way() -> None:
    rig = Rig(3)
    Checkers(rig)
    leader = rig.elect()
    leader.disk_refuses = True
    leader.propose(b"refused here, stored there")
    assert not leader.leads
    rig.elect()
    rig.publish(b"next")
    rig.run(500)
    logs = [member.values() for member in rig.members.values()]
    assert logs[0] == logs[1] == logs[2]
