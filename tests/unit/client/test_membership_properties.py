"""Whatever happens to a member, its coordinator and its connection: no position passes an unacknowledged record."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.errors import Unavailable
from rostra.wire.groups import Position
from tests.unit.client.core_harness import CoreHarness
from tests.unit.client.member_harness import LEASE_MS, MemberDriver, advance, group_harness, model_group, publish_batch

PARTITIONS = 2

STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.integers(1, 6)),
    st.tuples(st.sampled_from(("ack", "retry", "give_back")), st.integers(0, 9)),
    st.tuples(st.just("live"), st.sampled_from((0, 30, 200, LEASE_MS // 2, 2 * LEASE_MS))),
    st.tuples(st.sampled_from(("lose", "return", "expel", "revoke", "assign", "sulk", "serve")), st.integers(0, 3)),
)


class Story:
    """One member that runs the steps, and the records that it and others have acknowledged."""

    def __init__(self) -> None:
        self.harness: CoreHarness = group_harness(partitions=PARTITIONS)
        self.topic = self.harness.node.topics["t"].topic
        self.handler = MemberDriver(self.harness)
        advance(self.harness)
        self.unacked: list[GroupRecord] = []
        self.done: set[tuple[int, int]] = set()
        self.handed: list[tuple[int, int]] = []
        self.published = 0

    def step(self, what: str, number: int) -> None:
        harness, coordinator = self.harness, self.harness.node.coordinator
        match what:
            case "publish":
                if self.harness.core.link.up:
                    publish_batch(harness, *(b"%d" % (self.published + at) for at in range(number)))
                    self.published += number
            case "take":
                for _ in range(number):
                    record = self.handler.membership.dispatcher.take(harness.now_us)
                    if record is not None:
                        self.unacked.append(record)
                harness.run()
            case "ack" | "retry" | "give_back":
                if self.unacked:
                    record = self.unacked.pop(number % len(self.unacked))
                    getattr(record, what)()
                    if what == "ack":
                        self.done.add((record.partition, record.offset))
            case "live":
                advance(harness, number)
            case "lose":
                if harness.link is not None:
                    harness.disconnect()
            case "return":
                if not harness.core.link.up:
                    harness.reconnect()
            case "expel":
                coordinator.remove_member("billing", self.handler.membership.member)
                for partition in range(PARTITIONS):
                    self.deal_elsewhere(partition, number)
            case "revoke":
                coordinator.assign("billing", {(self.topic, number % PARTITIONS): self.handler.membership.member})
            case "assign":
                self.assign()
            case "sulk":
                coordinator.refuse = Unavailable("_groups", 0, "no leader")
            case "serve":
                coordinator.refuse = None
            case _:
                raise AssertionError(what)

    def assign(self) -> None:
        member = self.handler.membership.member
        if member in model_group(self.harness).members:
            places = {(self.topic, partition): member for partition in range(PARTITIONS)}
            self.harness.node.coordinator.assign("billing", places)

    def deal_elsewhere(self, partition: int, count: int) -> None:
        """Another member processes some records while this one is removed."""
        place = self.topic, partition
        kept = model_group(self.harness).positions.get(place)
        end = self.harness.node.logs[place].commit
        first = kept.offset if kept is not None else 0
        behind = min(first + count, end)
        self.done.update((partition, offset) for offset in range(first, behind))
        model_group(self.harness).positions[place] = Position(*place, behind)

    def check(self) -> None:
        for (topic, partition), position in model_group(self.harness).positions.items():
            assert topic == self.topic
            skipped = [offset for offset in range(position.offset) if (partition, offset) not in self.done]
            assert not skipped, f"the position {position} of partition {partition} is behind {skipped}"

    def end_well(self) -> None:
        """After recovery all unacknowledged records are delivered and acknowledged."""
        self.harness.node.coordinator.refuse = None
        self.step("return", 0)
        advance(self.harness, 3 * LEASE_MS)
        for record in self.unacked:
            record.give_back()
        self.assign()
        for _ in range(20):
            advance(self.harness, 3_000)
            for record in self.handler.take_all():
                record.ack()
                self.done.add((record.partition, record.offset))
        self.check()
        for partition in range(PARTITIONS):
            place = self.topic, partition
            end = self.harness.node.logs[place].commit
            assert model_group(self.harness).positions[place] == Position(*place, end)


@settings(max_examples=100)
@given(st.lists(STEPS, min_size=20, max_size=40))
def test_no_position_passes_an_unacknowledged_record_and_finally_all_are(steps: list[tuple[str, int]]) -> None:
    story = Story()
    for what, number in steps:
        story.step(what, number)
        story.check()
    story.end_well()
