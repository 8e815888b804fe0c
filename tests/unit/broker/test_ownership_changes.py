"""Changes of partition ownership: parked replies, readers, redirects, forwarding, confirmation."""

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
    AcksAll,
    Append,
    Blocked,
    Committed,
    Confirm,
    Confirmed,
    Covered,
    Delivers,
    Describe,
    Described,
    DiskUnusable,
    EpochStart,
    Fabric,
    FabricEffect,
    FabricInput,
    Forward,
    ForwardDone,
    Forwarded,
    ForwardReceived,
    Guarantees,
    Now,
    Open,
    Order,
    PartitionJoined,
    PrepareStop,
    ProposeDrop,
    ProposeTopic,
    PublishPath,
    Ready,
    Recovered,
    Refused,
    ServedElsewhere,
    Serving,
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
from rostra.model.ids import Epoch, NodeId, Partition, TopicId
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
from tests.unit.broker.broker_driver import BrokerDriver, partition_id

M = TypeVar("M")

TOPIC = 5
HERE = partition_id(TOPIC)


class ScriptedFabric(Fabric):
    """A fabric of one partition whose effects are given by the test: `say`, then fire the timer."""

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
            PublishPath.PASSED_ALONG if passes_on else PublishPath.OWNER,
        )
        self.heard: list[FabricInput] = []
        self.say: list[FabricEffect] = []
        self.end = 0

    def propose(
        self, now: Now, partition: Partition, batch: bytearray, owner_flags: int = 0
    ) -> tuple[tuple[int, int], list[FabricEffect]]:
        base = self.end
        stamp(batch, partition=HERE, base_offset=base, owner_epoch=1, owner_flags=owner_flags)
        self.end = last_offset(batch) + 1
        return (base, self.end - 1), [Append(HERE, batch), Sync(HERE)]

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        self.heard.append(given)
        match given:
            case Started():
                spec = TopicSpec(TopicId(TOPIC), "t", 1, msgspec.msgpack.encode(TopicSettings()))
                return [TopicOpened(None, spec), Open(HERE, 1 << 20), Serving(HERE, 1, True, 0, 0, 0), Ready()]
            case TimerFired():
                say, self.say = self.say, []
                return say
            case _:
                return []

    def last(self, kind: type[M]) -> M:
        """The newest input of one kind."""
        return [given for given in self.heard if isinstance(given, kind)][-1]


def desk_with(fabric: ScriptedFabric) -> BrokerDriver:
    driver = BrokerDriver(fabric=fabric).start()
    driver.connect(1)
    driver.connect(2)
    return driver


def emit(driver: BrokerDriver, *effects: FabricEffect) -> None:
    assert isinstance(driver.broker.fabric, ScriptedFabric)
    driver.broker.fabric.say = list(effects)
    driver.step(TimerFired("scripted"))


def test_topic_recreated_is_reported_only_when_confirmed() -> None:
    """This node may know an older topic of the name, while the client uses a newer one."""
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    driver.send(1, Locate(1, "t", topic=TOPIC))
    assert [located.topic.topic for located in driver.received(1, Located)] == [TOPIC]
    driver.send(1, Locate(2, "t", topic=TOPIC + 1))
    assert driver.received(1, Located) == []
    emit(driver, Confirmed(fabric.last(Confirm).token))
    assert [located.topic.topic for located in driver.received(1, Located)] == [TOPIC]


def test_parked_replies_end_with_moved_when_ownership_is_lost() -> None:
    driver = desk_with(ScriptedFabric())
    for acks in ("owner", "all"):
        driver.publish(1, TOPIC, acks=acks)
    emit(driver, Serving(HERE, 2, False, 0, 2, 0, "other:1"))
    errors = [from_wire(failed.code, failed.carried) for failed in driver.received(1, Failed)]
    assert [(type(error), error.carried()) for error in errors] == [(Moved, {"address": "other:1", "epoch": 2})] * 2
    emit(driver, Committed(HERE, 2))
    driver.settle()
    assert driver.received(1, Published) == []


def test_a_publish_to_a_replica_is_redirected_to_the_owner() -> None:
    driver = desk_with(ScriptedFabric())
    emit(driver, Serving(HERE, 2, False, 0, 0, 0, "other:1"))
    driver.publish(1, TOPIC)
    assert isinstance(driver.error(1), Moved)
    emit(driver, Serving(HERE, 3, False, 0, 0, 0))
    driver.publish(1, TOPIC)
    assert isinstance(driver.error(1), Unavailable)


def test_a_lookup_says_where_a_partition_is_served() -> None:
    driver = desk_with(ScriptedFabric())
    emit(driver, ServedElsewhere(HERE, 7, "other:1"))
    driver.send(1, Locate(1, "t"))
    (located,) = driver.received(1, Located)
    assert [(place.address, place.epoch) for place in located.locations] == [("other:1", 7)]


def test_a_replica_without_a_known_owner_redirects_its_readers() -> None:
    """It may be partitioned with them, while the other nodes have a new owner: they would wait for ever."""
    driver = desk_with(ScriptedFabric(Delivers.REPLICA))
    driver.subscribe(1, TOPIC)
    emit(driver, Serving(HERE, 2, False, 0, 0, 0, "other:1"))
    assert driver.received(1, Ended) == []
    emit(driver, Serving(HERE, 3, False, 0, 0, 0))
    (ended,) = driver.received(1, Ended)
    assert ended.code == "Unavailable"
    driver.subscribe(1, TOPIC)
    assert isinstance(driver.error(1), Unavailable)


def test_a_lookup_reports_a_partition_without_a_known_owner() -> None:
    driver = desk_with(ScriptedFabric())
    for effect, place in (
        (Serving(HERE, 1, True, 0, 0, 0), ("", True)),
        (Serving(HERE, 2, False, 0, 0, 0), ("", False)),
        (ServedElsewhere(HERE, 2, ""), ("", False)),
        (ServedElsewhere(HERE, 2, "other:1"), ("other:1", True)),
    ):
        emit(driver, effect)
        driver.send(1, Locate(1, "t"))
        (located,) = driver.received(1, Located)
        assert [(one.address, one.known) for one in located.locations] == [place]


@pytest.mark.parametrize("owner", ["", "other:1"])
def test_a_lookup_names_this_node_if_it_delivers_what_others_own_and_the_owner_beside(owner: str) -> None:
    driver = desk_with(ScriptedFabric(Delivers.HERE))
    emit(driver, ServedElsewhere(HERE, 2, owner))
    driver.send(1, Locate(1, "t"))
    (located,) = driver.received(1, Located)
    assert [(one.address, one.known, one.owner) for one in located.locations] == [("", True, owner)]


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
    driver = desk_with(ScriptedFabric(delivers))
    driver.subscribe(1, TOPIC)
    replica = Serving(HERE, 2, False, 0, 0, 0, "other:1")
    emit(driver, replica if role == "replica" else ServedElsewhere(HERE, 2, "other:1"))
    ended = [from_wire(one.code, one.carried) for one in driver.received(1, Ended)]
    driver.subscribe(2, TOPIC)
    if served:
        assert ended == []
        assert len(driver.received(2, Subscribed)) == 1
    else:
        assert isinstance(ended[0], Moved)
        assert isinstance(driver.error(2), Moved)


def test_a_reader_may_resume_beyond_the_commit_that_a_new_owner_knows() -> None:
    driver = desk_with(ScriptedFabric())
    for value in (b"a", b"b", b"c"):
        driver.publish(1, TOPIC, value)
    emit(driver, Serving(HERE, 2, True, 0, 3, 1))
    driver.subscribe(2, TOPIC, start="offset", value=2)
    assert driver.pushed(2) == []
    emit(driver, Committed(HERE, 3))
    assert driver.pushed(2) == [b"c"]
    driver.subscribe(2, TOPIC, 1, start="offset", value=4)
    assert isinstance(driver.error(2), OffsetOutOfRange)


def test_batches_truncated_by_a_takeover_are_undone_and_their_repeat_is_new() -> None:
    driver = desk_with(ScriptedFabric())
    driver.publish(1, TOPIC, b"kept", producer=9, sequence=0)
    driver.publish(1, TOPIC, b"cut", producer=9, sequence=1)
    emit(
        driver,
        Committed(HERE, 1),
        Serving(HERE, 2, False, 0, 2, 1, "other:1"),
        Truncate(HERE, 1, 1),
        Serving(HERE, 3, True, 0, 1, 1),
    )
    fabric = driver.broker.fabric
    assert isinstance(fabric, ScriptedFabric)
    fabric.end = 1
    driver.received(1, Failed)
    driver.received(1, Published)
    again = driver.publish(1, TOPIC, b"cut", producer=9, sequence=1)
    assert driver.received(1, Published) == []
    driver.step(Synced(HERE, 0, 2))
    emit(driver, Committed(HERE, 2))
    assert driver.received(1, Published) == [Published(again, 1)]


def test_becoming_owner_does_not_make_an_unsynced_end_safe() -> None:
    driver = desk_with(ScriptedFabric())
    driver.publish(1, TOPIC, acks="none", producer=9)
    emit(driver, Serving(HERE, 2, True, 0, 1, 0))
    driver.publish(1, TOPIC, acks="owner", producer=9)
    assert driver.received(1, Published) == []


def test_acks_all_waits_for_the_whole_view_where_that_is_the_promise() -> None:
    driver = desk_with(ScriptedFabric(acks_all=AcksAll.VIEW))
    request = driver.publish(1, TOPIC, producer=9)
    emit(driver, Committed(HERE, 1))
    assert driver.received(1, Published) == []
    view = View.of(Epoch(4), [NodeId(2), NodeId(3)])
    emit(driver, Covered(HERE, 1, view))
    assert driver.received(1, Published) == [Published(request, 0, (2, 3))]
    again = driver.publish(1, TOPIC, producer=9)
    assert driver.received(1, Published) == [Published(again, 0, (2, 3))]


def test_a_partition_that_joins_is_found_served_and_dropped_with_its_topic() -> None:
    driver = desk_with(ScriptedFabric(Delivers.HERE))
    joined = partition_id(77)
    emit(driver, PartitionJoined(TopicId(TOPIC), joined, NodeId(3)), Open(joined, 1 << 20))
    emit(driver, Serving(joined, 4, False, 0, 0, 0, "origin:1"))
    driver.send(1, Locate(1, "t"))
    (located,) = driver.received(1, Located)
    assert [(place.topic, place.address, place.owner) for place in located.locations] == [
        (0, "", ""),
        (77, "", "origin:1"),
    ]
    driver.subscribe(1, 77)
    assert len(driver.received(1, Subscribed)) == 1


def test_a_copy_filled_again_begins_at_the_others_log_start() -> None:
    driver = desk_with(ScriptedFabric(Delivers.REPLICA))
    driver.publish(1, TOPIC, producer=9)
    emit(driver, ServedElsewhere(HERE, 2, "other:1"))
    driver.logs.clear()
    emit(driver, Open(HERE, 1 << 20, 500), Serving(HERE, 2, False, 500, 500, 500, "other:1"))
    served = driver.broker.topic_table.served.get(HERE)
    assert served is not None
    assert (served.first, served.end, served.commit, served.synced, len(served.producers)) == (500, 500, 500, 500, 0)


def test_a_stopping_node_transfers_ownership_first() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    driver.publish(1, TOPIC)
    driver.step(Stop())
    assert PrepareStop() not in fabric.heard
    emit(driver, Committed(HERE, 1))
    assert fabric.heard.count(PrepareStop()) == 1
    assert not driver.stopped
    emit(driver, StopPrepared())
    assert driver.stopped


def test_a_fabric_learns_of_a_failed_disk() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    driver.step(SyncFailed(DiskUntrusted("EIO")))
    assert isinstance(fabric.heard[-1], DiskUnusable)
    driver.step(Synced(HERE, 0, 0))
    assert isinstance(fabric.heard[-1], DiskUnusable)


def test_a_blocked_partition_takes_publishes_again_when_it_is_served_again() -> None:
    driver = desk_with(ScriptedFabric())
    driver.publish(1, TOPIC, b"a")
    emit(driver, Committed(HERE, 1), Blocked(HERE, Unavailable("t", 0, "no quorum")))
    driver.received(1, Published)
    driver.publish(1, TOPIC)
    assert isinstance(driver.error(1), Unavailable)
    driver.subscribe(2, TOPIC)
    assert driver.pushed(2) == [b"a"]
    emit(driver, Serving(HERE, 2, True, 0, 1, 1))
    driver.publish(1, TOPIC)
    assert driver.received(1, Failed) == []


@pytest.mark.parametrize(
    ("remembered", "reported"),
    [
        ([(1, 0), (2, 40)], [(2, 40), (3, 100)]),
        ([(1, 0), (2, 40), (3, 90)], [(3, 90)]),
        ([(3, 100)], [(3, 100)]),
    ],
)
def test_a_fabric_learns_the_epoch_before_log_start(
    remembered: list[tuple[int, int]], reported: list[tuple[int, int]]
) -> None:
    fabric = ScriptedFabric()
    found = Recovered(HERE, 100, 120, (EpochStart(3, 100),))
    checkpoint = msgspec.msgpack.encode(Checkpoint([], remembered))
    BrokerDriver(fabric=fabric).step(Boot({}, (RecoveredLog(found, checkpoint, (), 0, 0),)))
    (log,) = fabric.last(Started).partitions
    assert [(row.epoch, row.offset) for row in log.epochs] == reported


# --- forwarding, confirmation ---


@pytest.mark.parametrize("acks", ["owner", "all"])
def test_a_publish_is_forwarded_to_its_owner_and_answered_when_that_answers(acks: str) -> None:
    fabric = ScriptedFabric(passes_on=True)
    driver = desk_with(fabric)
    emit(driver, ServedElsewhere(HERE, 2, "other:1"))
    request = driver.publish(1, TOPIC, acks=acks)
    passed = fabric.last(Forward)
    assert (passed.partition, passed.acks) == (HERE, acks)
    assert driver.received(1, Published) == []
    emit(driver, Forwarded(passed.token, 17))
    assert driver.received(1, Published) == [Published(request, 17)]


def test_a_publish_that_could_not_be_forwarded_is_refused() -> None:
    fabric = ScriptedFabric(passes_on=True)
    driver = desk_with(fabric)
    emit(driver, ServedElsewhere(HERE, 2, ""))
    driver.publish(1, TOPIC, acks="none")
    emit(driver, Refused(fabric.last(Forward).token, Unavailable("t", 0, "no owner")))
    assert isinstance(driver.error(1), Unavailable)
    driver.step(Stop())
    emit(driver, StopPrepared())
    assert driver.stopped


def test_a_publish_forwarded_with_acks_none_is_not_answered() -> None:
    fabric = ScriptedFabric(passes_on=True)
    driver = desk_with(fabric)
    emit(driver, ServedElsewhere(HERE, 2, "other:1"))
    driver.publish(1, TOPIC, acks="none")
    emit(driver, Forwarded(fabric.last(Forward).token, 0))
    assert driver.received(1, Published) == []


def test_a_forwarded_publish_is_settled_when_it_is_safe_and_stored_once() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    for token in (40, 42):
        batch = encode([b"a"], timestamp_us=driver.now.wall_us, producer=9)
        emit(driver, ForwardReceived(token, HERE, batch, "all"))
    assert len(driver.logs[HERE].batches) == 1
    assert not [given for given in fabric.heard if isinstance(given, ForwardDone)]
    emit(driver, Committed(HERE, 1))
    assert [given for given in fabric.heard if isinstance(given, ForwardDone)] == [
        ForwardDone(40, 0),
        ForwardDone(42, 0),
    ]


def test_a_forwarded_publish_is_settled_with_its_refusal() -> None:
    fabric = ScriptedFabric(passes_on=True)
    driver = desk_with(fabric)
    emit(driver, ForwardReceived(40, HERE, bytearray(b"no batch"), "none"))
    assert isinstance(fabric.last(ForwardDone).error, BatchRejected)
    emit(driver, ForwardReceived(42, HERE, encode([b"a"], timestamp_us=driver.now.wall_us), "none"))
    assert fabric.last(ForwardDone) == ForwardDone(42, 0)
    emit(driver, ServedElsewhere(HERE, 2, "other:1"))
    emit(driver, ForwardReceived(44, HERE, encode([b"a"], timestamp_us=driver.now.wall_us), "all"))
    assert isinstance(fabric.last(ForwardDone).error, Moved)


def test_topics_are_described_and_listed_only_when_the_fabric_has_confirmed_them() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    driver.send(1, DescribeTopic(1, "t"))
    describing = fabric.last(Confirm)
    driver.send(1, ListTopics(2))
    listing = fabric.last(Confirm)
    assert (describing.name, listing.name) == ("t", "")
    assert driver.received(1, TopicDescribed) == []
    emit(driver, Confirmed(listing.token))
    assert len(driver.received(1, TopicPage)) == 1
    emit(driver, TopicClosed(None, TopicId(TOPIC)), Confirmed(describing.token))
    assert isinstance(driver.error(1), UnknownTopic)


def test_partitions_owned_elsewhere_are_described_by_their_owners() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    emit(driver, ServedElsewhere(HERE, 7, "other:1"))
    for request, owner, state in ((1, 2, "serving"), (2, 0, "without owner")):
        driver.send(1, DescribeTopic(request, "t"))
        emit(driver, Confirmed(fabric.last(Confirm).token))
        placed = (PlacedPartition("t", 0, NodeId(owner), 7, 3, 30, 20, ()),)
        emit(driver, Described(fabric.last(Describe).token, ClusterState("scripted", (), placed)))
        (described,) = driver.received(1, TopicDescribed)
        assert described.partitions == (PartitionState(0, 3, 20, 30, 0, 7, state),)
    driver.send(1, DescribeTopic(3, "t"))
    emit(driver, Confirmed(fabric.last(Confirm).token))
    emit(driver, Refused(fabric.last(Describe).token, Unavailable("t", 0, "no answer")))
    assert isinstance(driver.error(1), Unavailable)


def test_an_unknown_topic_name_is_confirmed_before_it_is_refused() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    spec = TopicSpec(TopicId(6), "far", 1, msgspec.msgpack.encode(TopicSettings()))
    driver.send(1, Locate(1, "far"))
    token = fabric.last(Confirm).token
    emit(driver, TopicOpened(None, spec), ServedElsewhere(partition_id(6), 3, "other:1"), Confirmed(token))
    (located,) = driver.received(1, Located)
    assert located.locations[0].address == "other:1"
    driver.send(1, Locate(2, "farther"))
    emit(driver, Refused(fabric.last(Confirm).token, Unavailable("farther", 0, "no quorum")))
    assert isinstance(driver.error(1), Unavailable)


FAR = TopicSpec(TopicId(6), "far", 1, msgspec.msgpack.encode(TopicSettings()))


def test_an_unknown_topic_id_is_confirmed_before_it_is_refused() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    for ask in (driver.publish, driver.subscribe):
        ask(1, 6)
        assert driver.received(1, Failed) == []
        emit(driver, Confirmed(fabric.last(Confirm).token))
        assert isinstance(driver.error(1), UnknownTopic)


def test_a_topic_id_learned_meanwhile_is_retried() -> None:
    """Messages after the first may have been handled meanwhile: it must not overtake them."""
    for ask in ("publish", "subscribe"):
        fabric = ScriptedFabric()
        driver = desk_with(fabric)
        getattr(driver, ask)(1, 6)
        opened = (TopicOpened(None, FAR), ServedElsewhere(partition_id(6), 3, "other:1"))
        emit(driver, *opened, Confirmed(fabric.last(Confirm).token))
        error = driver.error(1)
        assert isinstance(error, Unavailable)
        assert error.retryable
        getattr(driver, ask)(1, 6)
        assert isinstance(driver.error(1), Moved)


def test_a_topic_id_that_cannot_be_confirmed_is_retried() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    driver.publish(1, 6)
    emit(driver, Refused(fabric.last(Confirm).token, Unavailable("t", 0, "no quorum")))
    assert isinstance(driver.error(1), Unavailable)


def test_a_stopping_node_reports_no_topic_as_unknown() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    driver.publish(2, TOPIC)
    driver.step(Stop())
    driver.publish(1, 6)
    assert isinstance(driver.error(1), NodeStopping)


def test_a_topic_created_elsewhere_can_be_deleted_here() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    driver.send(1, DeleteTopic(1, "far"))
    opened = (TopicOpened(None, FAR), ServedElsewhere(partition_id(6), 3, "other:1"))
    emit(driver, *opened, Confirmed(fabric.last(Confirm).token))
    assert fabric.last(ProposeDrop).topic == 6


def test_a_topic_deleted_elsewhere_can_be_created_again_here() -> None:
    fabric = ScriptedFabric()
    driver = desk_with(fabric)
    driver.send(1, CreateTopic(1, "t", TopicSettings()))
    emit(driver, TopicClosed(None, TopicId(TOPIC)), Confirmed(fabric.last(Confirm).token))
    assert fabric.last(ProposeTopic).spec.name == "t"
    assert driver.received(1, Failed) == []


def test_a_subscription_without_a_start_yet_is_refused_when_its_partition_moves() -> None:
    driver = desk_with(ScriptedFabric())
    request = driver.subscribe(1, TOPIC, start="last", value=5)
    emit(driver, ServedElsewhere(HERE, 2, "other:1"))
    (failed,) = driver.received(1, Failed)
    assert (failed.request, failed.code) == (request, "Moved")
    driver.settle()
    assert driver.received(1, Ended) == []
    assert driver.received(1, Subscribed) == []


def test_pending_lookups_are_limited() -> None:
    driver = desk_with(ScriptedFabric())
    for number in range(driver.broker.settings.requests_per_connection_max + 1):
        driver.send(1, ListTopics(number))
    assert isinstance(driver.error(1), LimitExceeded)
