"""Whatever befalls a member, its coordinator and its connection: no position passes a record that nobody dealt with."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.errors import Unavailable
from rostra.wire.groups import Position
from tests.unit.client.member_play import LEASE_MS, Handler, a_play, group, live, publish_batch
from tests.unit.client.play import Play

PARTITIONS = 2

STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.integers(1, 6)),
    st.tuples(st.sampled_from(("ack", "retry", "give_back")), st.integers(0, 9)),
    st.tuples(st.just("live"), st.sampled_from((0, 30, 200, LEASE_MS // 2, 2 * LEASE_MS))),
    st.tuples(st.sampled_from(("lose", "return", "expel", "revoke", "assign", "sulk", "serve")), st.integers(0, 3)),
)


class Story:
    """One member that lives through the steps, and what it and others have dealt with."""

    def __init__(self) -> None:
        self.play: Play = a_play(partitions=PARTITIONS)
        self.topic = self.play.node.topics["t"].topic
        self.handler = Handler(self.play)
        live(self.play)
        self.in_hand: list[GroupRecord] = []
        self.done: set[tuple[int, int]] = set()
        self.handed: list[tuple[int, int]] = []
        self.published = 0

    def step(self, what: str, number: int) -> None:
        play, coordinator = self.play, self.play.node.coordinator
        match what:
            case "publish":
                if self.play.core.link.up:
                    publish_batch(play, *(b"%d" % (self.published + at) for at in range(number)))
                    self.published += number
            case "take":
                for _ in range(number):
                    record = self.handler.membership.hands.take(play.now_us)
                    if record is not None:
                        self.in_hand.append(record)
                play.run()
            case "ack" | "retry" | "give_back":
                if self.in_hand:
                    record = self.in_hand.pop(number % len(self.in_hand))
                    getattr(record, what)()
                    if what == "ack":
                        self.done.add((record.partition, record.offset))
            case "live":
                live(play, number)
            case "lose":
                if play.link is not None:
                    play.lose()
            case "return":
                if not play.core.link.up:
                    play.come_back()
            case "expel":
                coordinator.expel("billing", self.handler.membership.member)
                for partition in range(PARTITIONS):
                    self.deal_elsewhere(partition, number)
            case "revoke":
                coordinator.hand_out("billing", {(self.topic, number % PARTITIONS): self.handler.membership.member})
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
        if member in group(self.play).members:
            places = {(self.topic, partition): member for partition in range(PARTITIONS)}
            self.play.node.coordinator.hand_out("billing", places)

    def deal_elsewhere(self, partition: int, count: int) -> None:
        """Another member handles some records while this one is none."""
        place = self.topic, partition
        kept = group(self.play).positions.get(place)
        end = self.play.node.logs[place].commit
        first = kept.offset if kept is not None else 0
        behind = min(first + count, end)
        self.done.update((partition, offset) for offset in range(first, behind))
        group(self.play).positions[place] = Position(*place, behind)

    def check(self) -> None:
        for (topic, partition), position in group(self.play).positions.items():
            assert topic == self.topic
            skipped = [offset for offset in range(position.offset) if (partition, offset) not in self.done]
            assert not skipped, f"the position {position} of partition {partition} is behind {skipped}"

    def end_well(self) -> None:
        """Everything is there again: what nobody has dealt with comes, and is dealt with."""
        self.play.node.coordinator.refuse = None
        self.step("return", 0)
        live(self.play, 3 * LEASE_MS)
        for record in self.in_hand:
            record.give_back()
        self.assign()
        for _ in range(20):
            live(self.play, 3_000)
            for record in self.handler.take_all():
                record.ack()
                self.done.add((record.partition, record.offset))
        self.check()
        for partition in range(PARTITIONS):
            place = self.topic, partition
            end = self.play.node.logs[place].commit
            assert group(self.play).positions[place] == Position(*place, end)


@settings(max_examples=100)
@given(st.lists(STEPS, min_size=20, max_size=40))
def test_no_position_passes_what_nobody_dealt_with_and_in_the_end_everything_was(steps: list[tuple[str, int]]) -> None:
    story = Story()
    for what, number in steps:
        story.step(what, number)
        story.check()
    story.end_well()
