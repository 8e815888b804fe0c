"""Ownership that changes hands: who waits, who reads, and where they are told to go."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest

from rostra.broker.api import Boot, RecoveredLog, Stop, SyncFailed
from rostra.broker.partition.control_batch import Checkpoint
from rostra.errors import (
    BatchRejected,
    DiskUntrusted,
    LimitExceeded,
    Moved,
    NodeStopping,
    OffsetOutOfRange,
    Unavailable,
    UnknownTopic,
    from_wire,
)
from rostra.fabric.api import (
    Accepted,
    AcksAll,
    Append,
    Arrived,
    Blocked,
    Committed,
    Confirm,
    Confirmed,
    Covered,
    Delivers,
    Describe,
    Described,
    DiskBroke,
    EpochStart,
    FabricEffect,
    FabricInput,
    Guarantees,
    Now,
    Open,
    Order,
    PartitionJoined,
    PassedOn,
    PassOn,
    PrepareStop,
    Propose,
    ProposeDrop,
    ProposeTopic,
    Ready,
    Recovered,
    Refused,
    ServedElsewhere,
    Serving,
    Settled,
    SplitBehaviour,
    Started,
    StopPrepared,
    Survives,
    Sync,
    Synced,
    TimerFired,
    TopicClosed,
    TopicOpened,
    TopicSpec,
    Truncate,
)
from rostra.model.batch import last_offset, stamp
from rostra.model.cluster import ClusterState, PlacedPartition
from rostra.model.encode import encode
from rostra.model.ids import Epoch, NodeId, TopicId
from rostra.model.view import View
from rostra.wire.messages import (
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    Ended,
    Failed,
    ListTopics,
    Locate,
    Located,
    PartitionState,
    Published,
    Subscribed,
    TopicDescribed,
    TopicPage,
    TopicSettings,
)
from tests.unit.broker.desk import Desk, part

M = TypeVar("M")

TOPIC = 5
HERE = part(TOPIC)


class Scripted:
    """A fabric of one partition whose every word the test puts into its mouth: `say`, then fire the timer."""

    def __init__(
        self,
        delivers: Delivers = Delivers.OWNER,
        acks_all: AcksAll = AcksAll.MAJORITY,
        *,
        passes_on: bool = False,
    ) -> None:
        self.guarantees = Guarantees(
            "scripted",
            Order.PARTITION,
            acks_all,
            delivers,
            SplitBehaviour.REFUSES,
            Survives.MINORITY,
            False,
            False,
            passes_on,
        )
        self.heard: list[FabricInput] = []
        self.say: list[FabricEffect] = []
        self.end = 0

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        self.heard.append(given)
        match given:
            case Started():
                spec = TopicSpec(TopicId(TOPIC), "t", 1, msgspec.msgpack.encode(TopicSettings()))
                return [TopicOpened(None, spec), Open(HERE, 1 << 20), Serving(HERE, 1, True, 0, 0, 0), Ready()]
            case Propose():
                base = self.end
                stamp(given.batch, partition=HERE, base_offset=base, owner_epoch=1, owner_flags=given.owner_flags)
                self.end = last_offset(given.batch) + 1
                return [Append(HERE, given.batch), Accepted(given.token, HERE, base, self.end - 1), Sync(HERE)]
            case TimerFired():
                say, self.say = self.say, []
                return say
            case _:
                return []

    def last(self, kind: type[M]) -> M:
        """The newest input of one kind."""
        return [given for given in self.heard if isinstance(given, kind)][-1]


def desk_with(fabric: Scripted) -> Desk:
    desk = Desk(fabric=fabric).start()
    desk.connect(1)
    desk.connect(2)
    return desk


def tell(desk: Desk, *effects: FabricEffect) -> None:
    assert isinstance(desk.broker.fabric, Scripted)
    desk.broker.fabric.say = list(effects)
    desk.step(TimerFired("scripted"))


def test_that_a_name_is_another_topics_is_said_only_when_it_is_certain() -> None:
    """This node may know what had the name before, and not what the asker already uses."""
    fabric = Scripted()
    desk = desk_with(fabric)
    desk.say(1, Locate(1, "t", topic=TOPIC))
    assert [located.topic.topic for located in desk.heard(1, Located)] == [TOPIC]
    desk.say(1, Locate(2, "t", topic=TOPIC + 1))
    assert desk.heard(1, Located) == []
    tell(desk, Confirmed(fabric.last(Confirm).token))
    assert [located.topic.topic for located in desk.heard(1, Located)] == [TOPIC]


def test_replies_that_wait_end_with_moved_when_ownership_goes() -> None:
    desk = desk_with(Scripted())
    for acks in ("owner", "all"):
        desk.publish(1, TOPIC, acks=acks)
    tell(desk, Serving(HERE, 2, False, 0, 2, 0, "other:1"))
    errors = [from_wire(failed.code, failed.carried) for failed in desk.heard(1, Failed)]
    assert [(type(error), error.carried()) for error in errors] == [(Moved, {"address": "other:1", "epoch": 2})] * 2
    tell(desk, Committed(HERE, 2))
    desk.settle()
    assert desk.heard(1, Published) == []


def test_a_publish_to_a_replica_is_told_where_the_owner_is() -> None:
    desk = desk_with(Scripted())
    tell(desk, Serving(HERE, 2, False, 0, 0, 0, "other:1"))
    desk.publish(1, TOPIC)
    assert isinstance(desk.error(1), Moved)
    tell(desk, Serving(HERE, 3, False, 0, 0, 0))
    desk.publish(1, TOPIC)
    assert isinstance(desk.error(1), Unavailable)


def test_a_lookup_says_where_a_partition_is_served() -> None:
    desk = desk_with(Scripted())
    tell(desk, ServedElsewhere(HERE, 7, "other:1"))
    desk.say(1, Locate(1, "t"))
    (located,) = desk.heard(1, Located)
    assert [(place.address, place.epoch) for place in located.places] == [("other:1", 7)]


def test_a_replica_that_knows_no_owner_lets_its_readers_look_elsewhere() -> None:
    """It may be cut off with them, while the others have a new owner: they would wait here for ever."""
    desk = desk_with(Scripted(Delivers.REPLICA))
    desk.subscribe(1, TOPIC)
    tell(desk, Serving(HERE, 2, False, 0, 0, 0, "other:1"))
    assert desk.heard(1, Ended) == []
    tell(desk, Serving(HERE, 3, False, 0, 0, 0))
    (ended,) = desk.heard(1, Ended)
    assert ended.code == "Unavailable"
    desk.subscribe(1, TOPIC)
    assert isinstance(desk.error(1), Unavailable)


def test_a_lookup_says_so_while_nobody_is_known_to_own_a_partition() -> None:
    desk = desk_with(Scripted())
    for said, place in (
        (Serving(HERE, 1, True, 0, 0, 0), ("", True)),
        (Serving(HERE, 2, False, 0, 0, 0), ("", False)),
        (ServedElsewhere(HERE, 2, ""), ("", False)),
        (ServedElsewhere(HERE, 2, "other:1"), ("other:1", True)),
    ):
        tell(desk, said)
        desk.say(1, Locate(1, "t"))
        (located,) = desk.heard(1, Located)
        assert [(told.address, told.known) for told in located.places] == [place]


def test_where_publishes_are_passed_on_a_lookup_says_here() -> None:
    desk = desk_with(Scripted(passes_on=True))
    tell(desk, ServedElsewhere(HERE, 2, ""))
    desk.say(1, Locate(1, "t"))
    (located,) = desk.heard(1, Located)
    assert [(told.address, told.known) for told in located.places] == [("", True)]


@pytest.mark.parametrize(
    ("delivers", "role", "served"),
    [
        (Delivers.OWNER, "replica", False),
        (Delivers.OWNER, "nothing", False),
        (Delivers.REPLICA, "replica", True),
        (Delivers.REPLICA, "nothing", False),
        (Delivers.HERE, "nothing", True),
    ],
)
def test_subscriptions_are_served_where_the_fabric_promises_it(delivers: Delivers, role: str, served: bool) -> None:
    desk = desk_with(Scripted(delivers))
    desk.subscribe(1, TOPIC)
    replica = Serving(HERE, 2, False, 0, 0, 0, "other:1")
    tell(desk, replica if role == "replica" else ServedElsewhere(HERE, 2, "other:1"))
    ended = [from_wire(one.code, one.carried) for one in desk.heard(1, Ended)]
    desk.subscribe(2, TOPIC)
    if served:
        assert ended == []
        assert len(desk.heard(2, Subscribed)) == 1
    else:
        assert isinstance(ended[0], Moved)
        assert isinstance(desk.error(2), Moved)


def test_a_reader_may_resume_beyond_the_commit_that_a_new_owner_knows() -> None:
    desk = desk_with(Scripted())
    for value in (b"a", b"b", b"c"):
        desk.publish(1, TOPIC, value)
    tell(desk, Serving(HERE, 2, True, 0, 3, 1))
    desk.subscribe(2, TOPIC, start="offset", value=2)
    assert desk.pushed(2) == []
    tell(desk, Committed(HERE, 3))
    assert desk.pushed(2) == [b"c"]
    desk.subscribe(2, TOPIC, 1, start="offset", value=4)
    assert isinstance(desk.error(2), OffsetOutOfRange)


def test_what_a_takeover_cuts_is_forgotten_and_its_repeat_is_new() -> None:
    desk = desk_with(Scripted())
    desk.publish(1, TOPIC, b"kept", producer=9, sequence=0)
    desk.publish(1, TOPIC, b"cut", producer=9, sequence=1)
    tell(
        desk,
        Committed(HERE, 1),
        Serving(HERE, 2, False, 0, 2, 1, "other:1"),
        Truncate(HERE, 1, 1),
        Serving(HERE, 3, True, 0, 1, 1),
    )
    fabric = desk.broker.fabric
    assert isinstance(fabric, Scripted)
    fabric.end = 1
    desk.heard(1, Failed)
    desk.heard(1, Published)
    again = desk.publish(1, TOPIC, b"cut", producer=9, sequence=1)
    assert desk.heard(1, Published) == []
    desk.step(Synced(HERE, 0, 2))
    tell(desk, Committed(HERE, 2))
    assert desk.heard(1, Published) == [Published(again, 1)]


def test_becoming_owner_does_not_make_an_unsynced_end_safe() -> None:
    desk = desk_with(Scripted())
    desk.publish(1, TOPIC, acks="none", producer=9)
    tell(desk, Serving(HERE, 2, True, 0, 1, 0))
    desk.publish(1, TOPIC, acks="owner", producer=9)
    assert desk.heard(1, Published) == []


def test_acks_all_waits_for_the_whole_view_where_that_is_the_promise() -> None:
    desk = desk_with(Scripted(acks_all=AcksAll.VIEW))
    request = desk.publish(1, TOPIC, producer=9)
    tell(desk, Committed(HERE, 1))
    assert desk.heard(1, Published) == []
    view = View.of(Epoch(4), [NodeId(2), NodeId(3)])
    tell(desk, Covered(HERE, 1, view))
    assert desk.heard(1, Published) == [Published(request, 0, (2, 3))]
    again = desk.publish(1, TOPIC, producer=9)
    assert desk.heard(1, Published) == [Published(again, 0, (2, 3))]


def test_a_partition_that_joins_is_found_served_and_dropped_with_its_topic() -> None:
    desk = desk_with(Scripted(Delivers.HERE))
    joined = part(77)
    tell(desk, PartitionJoined(TopicId(TOPIC), joined, NodeId(3)), Open(joined, 1 << 20))
    tell(desk, Serving(joined, 4, False, 0, 0, 0, "origin:1"))
    desk.say(1, Locate(1, "t"))
    (located,) = desk.heard(1, Located)
    assert [(place.topic, place.address) for place in located.places] == [(0, ""), (77, "origin:1")]
    desk.subscribe(1, 77)
    assert len(desk.heard(1, Subscribed)) == 1


def test_a_copy_that_is_filled_anew_begins_where_the_others_do() -> None:
    desk = desk_with(Scripted(Delivers.REPLICA))
    desk.publish(1, TOPIC, producer=9)
    tell(desk, ServedElsewhere(HERE, 2, "other:1"))
    desk.logs.clear()
    tell(desk, Open(HERE, 1 << 20, 500), Serving(HERE, 2, False, 500, 500, 500, "other:1"))
    served = desk.broker.topic_table.served.get(HERE)
    assert served is not None
    assert (served.first, served.end, served.commit, served.synced, len(served.producers)) == (500, 500, 500, 500, 0)


def test_a_stopping_node_hands_over_before_it_goes() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    desk.publish(1, TOPIC)
    desk.step(Stop())
    assert PrepareStop() not in fabric.heard
    tell(desk, Committed(HERE, 1))
    assert fabric.heard.count(PrepareStop()) == 1
    assert not desk.stopped
    tell(desk, StopPrepared())
    assert desk.stopped


def test_a_fabric_learns_that_its_disk_broke() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    desk.step(SyncFailed(DiskUntrusted("EIO")))
    assert isinstance(fabric.heard[-1], DiskBroke)
    desk.step(Synced(HERE, 0, 0))
    assert isinstance(fabric.heard[-1], DiskBroke)


def test_a_blocked_partition_takes_publishes_again_when_it_is_served_again() -> None:
    desk = desk_with(Scripted())
    desk.publish(1, TOPIC, b"a")
    tell(desk, Committed(HERE, 1), Blocked(HERE, Unavailable("t", 0, "no quorum")))
    desk.heard(1, Published)
    desk.publish(1, TOPIC)
    assert isinstance(desk.error(1), Unavailable)
    desk.subscribe(2, TOPIC)
    assert desk.pushed(2) == [b"a"]
    tell(desk, Serving(HERE, 2, True, 0, 1, 1))
    desk.publish(1, TOPIC)
    assert desk.heard(1, Failed) == []


@pytest.mark.parametrize(
    ("remembered", "told"),
    [
        ([(1, 0), (2, 40)], [(2, 40), (3, 100)]),
        ([(1, 0), (2, 40), (3, 90)], [(3, 90)]),
        ([(3, 100)], [(3, 100)]),
    ],
)
def test_a_fabric_learns_the_epoch_before_log_start(
    remembered: list[tuple[int, int]], told: list[tuple[int, int]]
) -> None:
    fabric = Scripted()
    found = Recovered(HERE, 100, 120, (EpochStart(3, 100),))
    checkpoint = msgspec.msgpack.encode(Checkpoint([], remembered))
    Desk(fabric=fabric).step(Boot({}, (RecoveredLog(found, checkpoint, (), 0, 0),)))
    (log,) = fabric.last(Started).partitions
    assert [(row.epoch, row.offset) for row in log.epochs] == told


# --- passing on, confirming ---


@pytest.mark.parametrize("acks", ["owner", "all"])
def test_a_publish_is_passed_on_to_its_owner_and_answered_when_that_answers(acks: str) -> None:
    fabric = Scripted(passes_on=True)
    desk = desk_with(fabric)
    tell(desk, ServedElsewhere(HERE, 2, "other:1"))
    request = desk.publish(1, TOPIC, acks=acks)
    passed = fabric.last(PassOn)
    assert (passed.partition, passed.acks) == (HERE, acks)
    assert desk.heard(1, Published) == []
    tell(desk, PassedOn(passed.token, 17))
    assert desk.heard(1, Published) == [Published(request, 17)]


def test_a_publish_that_could_not_be_passed_on_is_refused() -> None:
    fabric = Scripted(passes_on=True)
    desk = desk_with(fabric)
    tell(desk, ServedElsewhere(HERE, 2, ""))
    desk.publish(1, TOPIC, acks="none")
    tell(desk, Refused(fabric.last(PassOn).token, Unavailable("t", 0, "nobody")))
    assert isinstance(desk.error(1), Unavailable)
    desk.step(Stop())
    tell(desk, StopPrepared())
    assert desk.stopped


def test_a_publish_passed_on_with_acks_none_is_not_answered() -> None:
    fabric = Scripted(passes_on=True)
    desk = desk_with(fabric)
    tell(desk, ServedElsewhere(HERE, 2, "other:1"))
    desk.publish(1, TOPIC, acks="none")
    tell(desk, PassedOn(fabric.last(PassOn).token, 0))
    assert desk.heard(1, Published) == []


def test_a_publish_that_arrived_is_settled_when_it_is_safe_and_stored_once() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    for token in (40, 42):
        batch = encode([b"a"], timestamp_us=desk.now.wall_us, producer=9)
        tell(desk, Arrived(token, HERE, batch, "all"))
    assert len(desk.logs[HERE].batches) == 1
    assert not [given for given in fabric.heard if isinstance(given, Settled)]
    tell(desk, Committed(HERE, 1))
    assert [given for given in fabric.heard if isinstance(given, Settled)] == [Settled(40, 0), Settled(42, 0)]


def test_a_publish_that_arrived_is_settled_with_its_refusal() -> None:
    fabric = Scripted(passes_on=True)
    desk = desk_with(fabric)
    tell(desk, Arrived(40, HERE, bytearray(b"no batch"), "none"))
    assert isinstance(fabric.last(Settled).error, BatchRejected)
    tell(desk, Arrived(42, HERE, encode([b"a"], timestamp_us=desk.now.wall_us), "none"))
    assert fabric.last(Settled) == Settled(42, 0)
    tell(desk, ServedElsewhere(HERE, 2, "other:1"))
    tell(desk, Arrived(44, HERE, encode([b"a"], timestamp_us=desk.now.wall_us), "all"))
    assert isinstance(fabric.last(Settled).error, Moved)


def test_topics_are_described_and_listed_only_when_the_fabric_has_confirmed_them() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    desk.say(1, DescribeTopic(1, "t"))
    describing = fabric.last(Confirm)
    desk.say(1, ListTopics(2))
    listing = fabric.last(Confirm)
    assert (describing.name, listing.name) == ("t", "")
    assert desk.heard(1, TopicDescribed) == []
    tell(desk, Confirmed(listing.token))
    assert len(desk.heard(1, TopicPage)) == 1
    tell(desk, TopicClosed(None, TopicId(TOPIC)), Confirmed(describing.token))
    assert isinstance(desk.error(1), UnknownTopic)


def test_a_topic_whose_partitions_others_own_is_described_as_these_tell() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    tell(desk, ServedElsewhere(HERE, 7, "other:1"))
    for request, owner, state in ((1, 2, "serving"), (2, 0, "without owner")):
        desk.say(1, DescribeTopic(request, "t"))
        tell(desk, Confirmed(fabric.last(Confirm).token))
        placed = (PlacedPartition("t", 0, NodeId(owner), 7, 3, 30, 20, ()),)
        tell(desk, Described(fabric.last(Describe).token, ClusterState("scripted", (), placed)))
        (described,) = desk.heard(1, TopicDescribed)
        assert described.partitions == (PartitionState(0, 3, 20, 30, 0, 7, state),)
    desk.say(1, DescribeTopic(3, "t"))
    tell(desk, Confirmed(fabric.last(Confirm).token))
    tell(desk, Refused(fabric.last(Describe).token, Unavailable("t", 0, "nobody answers")))
    assert isinstance(desk.error(1), Unavailable)


def test_an_unknown_topic_is_looked_for_before_it_is_called_unknown() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    spec = TopicSpec(TopicId(6), "far", 1, msgspec.msgpack.encode(TopicSettings()))
    desk.say(1, Locate(1, "far"))
    token = fabric.last(Confirm).token
    tell(desk, TopicOpened(None, spec), ServedElsewhere(part(6), 3, "other:1"), Confirmed(token))
    (located,) = desk.heard(1, Located)
    assert located.places[0].address == "other:1"
    desk.say(1, Locate(2, "farther"))
    tell(desk, Refused(fabric.last(Confirm).token, Unavailable("farther", 0, "no quorum")))
    assert isinstance(desk.error(1), Unavailable)


FAR = TopicSpec(TopicId(6), "far", 1, msgspec.msgpack.encode(TopicSettings()))


def test_a_topic_id_not_heard_of_is_confirmed_before_it_is_called_unknown() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    for ask in (desk.publish, desk.subscribe):
        ask(1, 6)
        assert desk.heard(1, Failed) == []
        tell(desk, Confirmed(fabric.last(Confirm).token))
        assert isinstance(desk.error(1), UnknownTopic)


def test_a_topic_id_heard_of_meanwhile_is_to_be_tried_again() -> None:
    """What came behind the first may have been taken meanwhile: it must not be overtaken by it."""
    for ask in ("publish", "subscribe"):
        fabric = Scripted()
        desk = desk_with(fabric)
        getattr(desk, ask)(1, 6)
        opened = (TopicOpened(None, FAR), ServedElsewhere(part(6), 3, "other:1"))
        tell(desk, *opened, Confirmed(fabric.last(Confirm).token))
        error = desk.error(1)
        assert isinstance(error, Unavailable)
        assert error.retryable
        getattr(desk, ask)(1, 6)
        assert isinstance(desk.error(1), Moved)


def test_a_topic_id_that_nobody_can_confirm_is_to_be_tried_again() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    desk.publish(1, 6)
    tell(desk, Refused(fabric.last(Confirm).token, Unavailable("topic_table", 0, "no quorum")))
    assert isinstance(desk.error(1), Unavailable)


def test_a_stopping_node_calls_no_topic_unknown() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    desk.publish(2, TOPIC)
    desk.step(Stop())
    desk.publish(1, 6)
    assert isinstance(desk.error(1), NodeStopping)


def test_a_topic_made_elsewhere_can_be_deleted_here() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    desk.say(1, DeleteTopic(1, "far"))
    opened = (TopicOpened(None, FAR), ServedElsewhere(part(6), 3, "other:1"))
    tell(desk, *opened, Confirmed(fabric.last(Confirm).token))
    assert fabric.last(ProposeDrop).topic == 6


def test_a_topic_deleted_elsewhere_can_be_made_again_here() -> None:
    fabric = Scripted()
    desk = desk_with(fabric)
    desk.say(1, CreateTopic(1, "t", TopicSettings()))
    tell(desk, TopicClosed(None, TopicId(TOPIC)), Confirmed(fabric.last(Confirm).token))
    assert fabric.last(ProposeTopic).spec.name == "t"
    assert desk.heard(1, Failed) == []


def test_a_subscription_whose_start_is_not_known_yet_is_refused_when_its_partition_goes() -> None:
    desk = desk_with(Scripted())
    request = desk.subscribe(1, TOPIC, start="last", value=5)
    tell(desk, ServedElsewhere(HERE, 2, "other:1"))
    (failed,) = desk.heard(1, Failed)
    assert (failed.request, failed.code) == (request, "Moved")
    desk.settle()
    assert desk.heard(1, Ended) == []
    assert desk.heard(1, Subscribed) == []


def test_lookups_that_wait_are_bounded() -> None:
    desk = desk_with(Scripted())
    for number in range(desk.broker.settings.requests_per_connection_max + 1):
        desk.say(1, ListTopics(number))
    assert isinstance(desk.error(1), LimitExceeded)
