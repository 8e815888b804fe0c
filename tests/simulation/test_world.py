"""Worlds with chosen faults: how a node and its clients behave under a single fault."""

from __future__ import annotations

import msgspec
import pytest

from rostra.client.core.events import ClientEvent, Reconnected, Resent, Resubscribed
from rostra.errors import DiskFull, DiskUntrusted
from rostra.simulator.checkers import find_violations
from rostra.simulator.clock import SECOND_US, Clock, EventLimitExceeded
from rostra.simulator.faults.fault_plan import Fault, FaultPlan
from rostra.simulator.trace import Trace
from rostra.simulator.world.world import World

NO_FAULTS = FaultPlan.none()
EARLY_REMOVAL_SEED = 9
"""A seed whose operator removes a founder before another node joins."""


def world_of(seed: int, **faults: object) -> World:
    return World(seed, plan=msgspec.structs.replace(NO_FAULTS, **faults))


def test_events_of_the_same_time_run_in_the_order_of_scheduling() -> None:
    clock, seen = Clock(), list[int]()
    for number in range(20):
        clock.at(5, seen.append, number)
    clock.at(1, seen.append, -1)
    clock.run_until(10)
    assert seen == [-1, *range(20)]


def test_the_digest_tells_apart_what_happened_when_and_in_which_order() -> None:
    digests = set()
    for story in ([(1, b"a"), (2, b"b")], [(1, b"b"), (2, b"a")], [(1, b"a"), (3, b"b")], [(1, b"a")]):
        clock = Clock()
        trace = Trace(clock)
        for time_us, content in story:
            clock.at(time_us, trace.note, "node", "received", content)
        clock.run_until(10)
        digests.add(trace.digest())
    assert len(digests) == 4


def test_without_faults_all_records_are_acknowledged() -> None:
    world = world_of(2)
    world.run()
    assert find_violations(world.history) == []
    assert [fault for fault, count in world.fault_counts.counts.items() if count] == [Fault.REORDERED]


@pytest.mark.requirement("CM-10:told")
def test_clients_report_reconnects_resubscriptions_and_resends() -> None:
    told: list[ClientEvent] = []
    for seed in range(3, 7):
        # Long delays, so that something is always in flight when a connection breaks.
        world = world_of(seed, cut_every_us=SECOND_US // 3, delay_us=(20_000, 60_000))
        for client in world.clients:
            client.event_listeners.append(told.append)
        world.run()
        assert find_violations(world.history) == []
    assert {type(event) for event in told} >= {Reconnected, Resubscribed, Resent}


def acknowledged(world: World) -> int:
    return sum(world.history.sent[value].acks != "none" for value in world.history.acked)


def delivered(world: World) -> int:
    feeds = [feed for subscription in world.history.subscriptions for feed in subscription.feeds.values()]
    return sum(len(feed.records) for feed in feeds)


@pytest.mark.requirement("CM-15:full")
def test_a_full_disk_refuses_publishes_while_reads_go_on_and_when_there_is_room_all_is_taken() -> None:
    world = world_of(4)
    (node,) = world.nodes
    node.start()
    world.clock.run_until(6 * SECOND_US)
    node.files.faults.capacity_bytes = node.files.used_bytes
    # Requests in flight may still be answered.
    world.clock.run_until(7 * SECOND_US)
    before, read_before = acknowledged(world), delivered(world)
    world.clock.run_until(12 * SECOND_US)
    assert acknowledged(world) == before
    assert node.files.counters["disk_full"] > 0
    assert delivered(world) >= read_before
    node.files.faults.capacity_bytes = None
    world.clock.run_until(world.bounds.heal_us + 15 * SECOND_US)
    assert acknowledged(world) > before
    assert all(not isinstance(failed.error, DiskFull) for failed in world.history.failed.values())
    assert world.history.exceptions == []


@pytest.mark.requirement("CM-15:fsync")
def test_after_a_failed_fsync_nothing_is_acknowledged_until_the_node_is_started_anew() -> None:
    world = world_of(4)
    (node,) = world.nodes
    node.on_broken = lambda _: None
    node.start()
    world.clock.run_until(6 * SECOND_US)
    node.files.faults.sync_failure_chance = 1.0
    while not node.needs_restart:
        world.clock.run_until(world.clock.now_us + SECOND_US // 100)
    node.files.faults.sync_failure_chance = 0.0
    assert node.broker is not None and isinstance(node.broker.broken, DiskUntrusted)
    world.clock.run_until(world.clock.now_us + SECOND_US // 10)
    before = acknowledged(world)
    world.clock.run_until(world.clock.now_us + 5 * SECOND_US)
    assert acknowledged(world) == before
    node.crash(power=False)
    assert node.start()
    world.clock.run_until(world.bounds.heal_us + 15 * SECOND_US)
    assert acknowledged(world) > before
    assert world.history.exceptions == []


def test_no_fault_is_injected_in_the_first_second() -> None:
    world = World(11, nodes=1)
    world.start()
    world.clock.run_until(world.bounds.calm_us)
    no_intervals = {Fault.REORDERED}
    assert [fault for fault, count in world.fault_counts.counts.items() if count and fault not in no_intervals] == []


@pytest.mark.parametrize("damaged", [True, False])
def test_with_a_damaged_disk_no_node_is_removed_before_three_others_are_members(damaged: bool) -> None:
    never_us = 1 << 60
    world = world_of(EARLY_REMOVAL_SEED, nodes=4, joiners=1, removes=True, flip_every_us=never_us if damaged else 0)
    world.start()
    founder = next(node for node in world.nodes if node is not world.leaving_node)

    def removal_began() -> bool:
        fabric = founder.fabric
        return fabric is not None and fabric.raft.metadata_loaded and bool(fabric.raft.metadata.state.leaving)

    while not removal_began():
        world.until(world.clock.now_us + SECOND_US // 10)
        assert world.clock.now_us < world.bounds.heal_us
    assert world.leaving_node is not None
    assert founder.member_count(besides=world.leaving_node.id) == (3 if damaged else 2)


def test_endless_events_are_stopped() -> None:
    clock = Clock()

    def again() -> None:
        clock.after(0, again)

    again()
    with pytest.raises(EventLimitExceeded):
        clock.run_until(1)
