"""Copies that come and go: members join and are removed, and every partition keeps as many copies as it should."""

from __future__ import annotations

import pytest

from rostra.errors import (
    CorruptLog,
    MemberRemoved,
    Moved,
    QuorumAtRisk,
    ReplicasUnavailable,
    Unavailable,
    UnknownMember,
)
from rostra.fabric.api import (
    Confirm,
    PeerReceived,
    ProposeTopic,
    Read,
    ReadFailed,
    RemoveNode,
    ServedElsewhere,
    TopicSpec,
)
from rostra.fabric.cluster.messages import JoinRequest, RemovedNotice
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION, MetadataEntry, Requester, TopicAdded
from rostra.fabric.consensus.hard_state import key_of, unpack_hard_state
from rostra.fabric.consensus.messages import RequestVote
from rostra.fabric.links.messages import NodeHeartbeat
from rostra.fabric.raft.replica_assignments import ReassignmentStarted
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from tests.unit.raft.nodes import Cluster


def with_topic(
    founders: int, partitions: int, replicas: int = 0, settings: RaftSettings | None = None
) -> tuple[Cluster, list[Partition]]:
    cluster = Cluster(founders, settings=settings)
    cluster.ready()
    found = cluster.topic("t", partitions, replicas=replicas)
    for partition in found:
        cluster.publish(partition, b"before")
    cluster.run(200)
    return cluster, found


def remove(cluster: Cluster, node: int, at: int, token: int = 40) -> None:
    cluster[at].step(RemoveNode(token, NodeId(node)))
    cluster.run_until(lambda: token in cluster[at].operations_done)


def is_gone(cluster: Cluster, node: int) -> bool:
    rest = [other for other in cluster.alive if other.node != node]
    return all(
        node not in other.raft.metadata.state.members and node not in other.raft.metadata.group.config.members
        for other in rest
    )


def holders(cluster: Cluster, partition: Partition) -> list[int]:
    return sorted(node.node for node in cluster.nodes.values() if partition in node.disks)


def voters(cluster: Cluster, partition: Partition) -> tuple[int, ...]:
    leader = cluster.leader(partition)
    return leader.raft.groups[partition].config.voters if leader is not None else ()


@pytest.mark.requirement("RF-33:membership")
def test_the_copies_of_a_member_that_is_removed_are_at_others_before_it_goes() -> None:
    cluster, partitions = with_topic(4, 4)
    cluster.run(200)
    remove(cluster, 2, at=1)
    cluster.run_until(lambda: is_gone(cluster, 2), 60_000)
    for partition in partitions:
        assert voters(cluster, partition) == (1, 3, 4)
        assert holders(cluster, partition) == [1, 3, 4]
        cluster.publish(partition, b"after")
    cluster.run(1_000)
    for partition in partitions:
        assert all(cluster[node].values(partition) == [b"before", b"after"] for node in (1, 3, 4))


def test_while_a_member_is_removed_no_partition_ever_has_fewer_voters_than_it_should() -> None:
    cluster, partitions = with_topic(4, 4)
    fewest = 9

    def over() -> bool:
        nonlocal fewest
        fewest = min(fewest, *(len(voters(cluster, partition) or (1, 2, 3)) for partition in partitions))
        return is_gone(cluster, 2)

    remove(cluster, 2, at=3)
    cluster.run_until(over, 60_000)
    assert fewest == 3


def test_a_topic_whose_first_members_hear_of_it_and_of_its_move_at_once_is_served() -> None:
    cluster = Cluster(3)
    cluster.ready()
    spec = TopicSpec(TopicId(77), "t", 1, b"")
    partition = Partition(TopicId(77), PartitionIndex(0))
    one, two, three = NodeId(1), NodeId(2), NodeId(3)
    made = TopicAdded(spec, 1 << 20, ((two, three),), Requester(one, 0, 0))
    entries: list[MetadataEntry] = [made, ReassignmentStarted(partition, (one, two, three))]
    for node in cluster.alive:
        for entry in entries:
            assert node.raft.metadata.state.apply(entry) is None
        node.carry_out(node.raft.replicas.apply_metadata({}, entries))
    cluster.run_until(lambda: voters(cluster, partition) == (1, 2, 3), 20_000)
    cluster.publish(partition, b"taken")


def test_a_removed_member_is_told_stops_and_sends_its_clients_elsewhere() -> None:
    cluster, partitions = with_topic(4, 4)
    gone = cluster[2]
    remove(cluster, 2, at=2)
    cluster.run_until(lambda: gone.raft.removed, 60_000)
    assert "this node was removed from its cluster" in gone.notes
    for partition in partitions:
        assert isinstance(gone.serving[partition], ServedElsewhere)
        answer = gone.publish(partition, b"x")
        assert isinstance(answer, Moved | Unavailable)
    gone.step(Confirm(60, ""))
    gone.step(ProposeTopic(62, TopicSpec(TopicId(5), "u", 1, b""), 1 << 20))
    assert isinstance(gone.refused[60], MemberRemoved) and isinstance(gone.refused[62], MemberRemoved)
    cluster.run_until(lambda: is_gone(cluster, 2))
    cluster.run(15_000)
    before = cluster.sent.copy()
    cluster.run(5_000)
    assert set(cluster.sent - before) == {"NodeHeartbeat"}, "it disturbs nobody"


def test_a_removed_member_that_starts_again_knows_it_and_has_nothing_to_say() -> None:
    cluster, _ = with_topic(4, 1)
    remove(cluster, 2, at=2)
    cluster.run_until(lambda: cluster[2].raft.removed, 60_000)
    cluster.run(100)
    cluster[2].crash()
    cluster[2].start()
    assert cluster[2].ready and cluster[2].raft.removed and not cluster[2].timers


@pytest.mark.parametrize(
    "said",
    [
        NodeHeartbeat(3),
        JoinRequest(NodeId(2), "client:2", "peer:2"),
        RequestVote(METADATA_PARTITION, 99, 10_000, 99, pre_vote=False, transfer=True),
    ],
    ids=["heartbeat", "join", "vote"],
)
def test_whoever_was_removed_while_it_was_away_is_refused_with_the_reason(said: object) -> None:
    cluster, partitions = with_topic(4, 2)
    cluster[2].crash()
    cluster.run(1_000)
    remove(cluster, 2, at=1)
    cluster.run_until(lambda: is_gone(cluster, 2), 60_000)
    term = cluster[1].raft.metadata.group.term
    cluster[1].step(PeerReceived(NodeId(2), said, None))
    assert cluster.sent["RemovedNotice"] > 0
    assert cluster[1].raft.metadata.group.term == term, "it is not listened to"
    cluster[2].start()
    cluster.run_until(lambda: cluster[2].raft.removed)
    for partition in partitions:
        cluster.publish(partition, b"after")


def test_a_dead_member_is_removed_and_its_copies_are_rebuilt_from_the_others() -> None:
    cluster, partitions = with_topic(4, 4)
    cluster[3].crash()
    cluster.run(1_000)
    remove(cluster, 3, at=1)
    cluster.run_until(lambda: is_gone(cluster, 3), 60_000)
    cluster.run(500)
    for partition in partitions:
        assert voters(cluster, partition) == (1, 2, 4)
        assert all(cluster[node].values(partition) == [b"before"] for node in (1, 2, 4))


def test_without_anybody_to_take_its_copies_a_member_may_still_go() -> None:
    cluster, partitions = with_topic(3, 2)
    remove(cluster, 3, at=1)
    cluster.run_until(lambda: is_gone(cluster, 3), 60_000)
    for partition in partitions:
        assert voters(cluster, partition) == (1, 2)
        cluster.publish(partition, b"after")


def test_copies_wait_for_a_member_that_is_away_rather_than_become_fewer() -> None:
    cluster, (partition,) = with_topic(3, 1)
    new = cluster.add(4, 1)
    cluster.run_until(lambda: 4 in cluster[1].raft.metadata.group.config.learners)
    new.crash()
    cluster.run(1_000)
    remove(cluster, 2, at=1)
    cluster.run(60_000)
    assert voters(cluster, partition) == (1, 2, 3) and not cluster[1].raft.metadata.state.reassigning
    assert 2 in cluster[1].raft.metadata.group.config.voters
    new.start()
    cluster.run_until(lambda: is_gone(cluster, 2), 60_000)
    assert voters(cluster, partition) == (1, 3, 4)
    assert cluster[1].raft.metadata.group.config.voters == (1, 3, 4)


def test_who_is_to_leave_takes_back_what_was_to_go_to_a_node_that_is_gone_for_long() -> None:
    cluster, (partition,) = with_topic(4, 1)
    outside = next(node for node in cluster.nodes.values() if partition not in node.disks)
    leaver, *rest = holders(cluster, partition)
    remove(cluster, leaver, at=rest[0])
    cluster.run_until(lambda: partition in cluster[rest[0]].raft.metadata.state.reassigning)
    outside.crash()
    cluster.run_until(lambda: not cluster[rest[0]].raft.metadata.state.reassigning, 120_000)
    assert voters(cluster, partition) == tuple(sorted((leaver, *rest)))
    outside.start()
    cluster.run_until(lambda: is_gone(cluster, leaver), 60_000)
    assert voters(cluster, partition) == tuple(sorted((outside.node, *rest)))


def test_who_joins_while_copies_become_fewer_gets_one_before_anybody_gives_his_up() -> None:
    cluster, (partition,) = with_topic(3, 1)
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    leaver, away = (node.node for node in cluster.alive if node is not leader)
    remove(cluster, leaver, at=leader.node)
    cluster.run_until(lambda: partition in leader.raft.metadata.state.reassigning)
    cluster[away].crash()
    cluster.add(4, leader.node)
    cluster.run_until(lambda: voters(cluster, partition) == tuple(sorted((leader.node, away, 4))), 60_000)
    cluster.publish(partition, b"after")


def test_nobody_goes_before_the_copies_that_stay_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two copies are left, of which one is damaged when the other is fed from it: nobody can lead any more."""
    cluster, (partition,) = with_topic(3, 1)
    leader = cluster.leader(partition)
    assert leader is not None
    behind, leaver = (node for node in cluster.alive if node is not leader)
    behind.crash()
    for value in (b"one", b"two", b"three"):
        cluster.publish(partition, value)

    def find_damage(effect: Read) -> None:
        leader.step(ReadFailed(effect.token, effect.partition, CorruptLog("some.log", 7, "body damaged")))

    monkeypatch.setattr(leader, "_read", find_damage)
    cluster.run(2 * leader.raft.settings.heartbeat_ms)
    assert leader.raft.peers.is_alive(NodeId(behind.node)), "it was away for a moment"
    leader.raft.reassignment._advance(leader.raft.groups[partition], (NodeId(leader.node), NodeId(behind.node)))
    leader.raft.group_set.collect(leader.raft.groups[partition])
    behind.start()
    cluster.run_until(lambda: not leader.raft.groups[partition].complete, 10_000)
    cluster.run_until(lambda: cluster.leader(partition) is leaver, 10_000)
    cluster.run_until(lambda: leader.raft.groups[partition].complete, 10_000)
    cluster.publish(partition, b"after")
    assert behind.values(partition) == leader.values(partition) == [b"before", b"one", b"two", b"three", b"after"]


def test_the_metadata_leader_can_be_removed_too() -> None:
    cluster, partitions = with_topic(4, 2)
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    remove(cluster, leader.node, at=leader.node)
    cluster.run_until(lambda: is_gone(cluster, leader.node) and leader.raft.removed, 60_000)
    for partition in partitions:
        cluster.publish(partition, b"after")
    leader.crash()
    cluster.topic("u", at=next(node.node for node in cluster.alive if node is not leader))


def refusal(cluster: Cluster, node: int, at: int, token: int = 50) -> object:
    cluster[at].step(RemoveNode(token, NodeId(node)))
    cluster.run_until(lambda: token in cluster[at].refused)
    return cluster[at].refused[token]


def test_a_removal_that_would_lose_the_quorum_is_refused_and_says_what_to_do() -> None:
    cluster, _ = with_topic(3, 1)
    cluster[3].crash()
    cluster.run(1_000)
    error = refusal(cluster, 2, at=1)
    assert isinstance(error, QuorumAtRisk) and (error.alive, error.needed) == (1, 2)
    assert str(error).startswith("without node client:2 only 1 voters would be alive")
    assert "restart the members" in str(error)
    assert isinstance(refusal(cluster, 9, at=1, token=52), UnknownMember)
    remove(cluster, 3, at=1)
    cluster.run_until(lambda: is_gone(cluster, 3), 60_000)


def test_a_node_alone_cannot_be_removed() -> None:
    cluster, _ = with_topic(1, 1)
    assert isinstance(refusal(cluster, 1, at=1), QuorumAtRisk)


def test_a_member_that_is_away_with_the_only_copy_is_not_removed() -> None:
    cluster, (partition,) = with_topic(4, 1, replicas=1)
    (holder,) = holders(cluster, partition)
    cluster[holder].crash()
    cluster.run(1_000)
    error = refusal(cluster, holder, at=holder % 4 + 1)
    assert isinstance(error, ReplicasUnavailable) and error.topic == "t"


@pytest.mark.requirement("RF-10:joins")
def test_partitions_that_lack_copies_get_them_at_nodes_that_join() -> None:
    cluster, partitions = with_topic(1, 6)
    for node in (2, 3):
        cluster.add(node, 1)
    cluster.run_until(lambda: all(voters(cluster, partition) == (1, 2, 3) for partition in partitions), 60_000)
    cluster.run(500)
    for partition in partitions:
        assert all(node.values(partition) == [b"before"] for node in cluster.nodes.values())

    def led() -> list[int]:
        return sorted(leader.node for partition in partitions if (leader := cluster.leader(partition)) is not None)

    cluster.run_until(lambda: led() == [1, 1, 2, 2, 3, 3], 60_000)


def test_a_topic_gets_no_more_copies_than_it_asked_for() -> None:
    cluster, (partition,) = with_topic(1, 1, replicas=2)
    for node in (2, 3, 4):
        cluster.add(node, 1)
    cluster.run_until(lambda: len(voters(cluster, partition)) == 2, 60_000)
    cluster.run(5_000)
    assert len(voters(cluster, partition)) == 2 == len(holders(cluster, partition))


def test_only_so_many_partitions_move_at_a_time() -> None:
    cluster = Cluster(1, settings=RaftSettings(reassignments_max=2))
    cluster.ready()
    partitions = cluster.topic("t", 8)
    cluster.add(2, 1)
    most = 0

    def all_there() -> bool:
        nonlocal most
        most = max(most, len(cluster[1].raft.metadata.state.reassigning))
        return all(voters(cluster, partition) == (1, 2) for partition in partitions)

    cluster.run_until(all_there, 60_000)
    assert most == 2


def test_a_copy_that_is_still_coming_is_not_waited_for_where_its_node_leaves() -> None:
    cluster, (partition,) = with_topic(2, 1)
    new = cluster.add(3, 1)
    cluster.run_until(lambda: partition in cluster[1].raft.metadata.state.reassigning, 60_000)
    new.crash()
    cluster.run(500)
    remove(cluster, 3, at=1)
    cluster.run_until(lambda: is_gone(cluster, 3), 60_000)
    assert voters(cluster, partition) == (1, 2)
    cluster.publish(partition, b"after")


def test_a_copy_that_comes_late_counts_only_when_it_is_whole() -> None:
    cluster, (partition,) = with_topic(4, 1)
    outside = next(node for node in cluster.nodes.values() if partition not in node.disks)
    remove(cluster, holders(cluster, partition)[0], at=outside.node)
    cluster.run_until(lambda: partition in outside.disks, 60_000)
    group = outside.raft.groups[partition]
    assert not group.complete and not group.is_voter
    cluster.run_until(lambda: outside.node in voters(cluster, partition), 60_000)
    assert group.complete and outside.values(partition) == [b"before"]


def test_a_copy_that_was_given_up_is_gone_but_its_vote_is_remembered_when_it_comes_back() -> None:
    cluster, (partition,) = with_topic(2, 1, settings=RaftSettings(reassignments_max=1))
    first = cluster.add(3, 1)
    cluster.run_until(lambda: key_of(partition) in first.hard)
    assert partition in cluster[1].raft.metadata.state.reassigning
    first.crash()
    second = cluster.add(4, 1)
    cluster.run_until(lambda: voters(cluster, partition) == (1, 2, 4), 60_000)
    first.start()
    cluster.run_until(lambda: partition not in first.disks and partition not in first.raft.groups, 60_000)
    left = unpack_hard_state(first.hard[key_of(partition)])
    assert left.term > 0 and not left.complete, "it knows that it once had something"
    remove(cluster, 4, at=1)
    cluster.run_until(lambda: voters(cluster, partition) == (1, 2, 3), 60_000)
    assert first.raft.groups[partition].term >= left.term
    assert first.values(partition) == [b"before"]
    cluster.run_until(lambda: second.raft.removed)


def test_the_message_to_a_removed_member_means_only_that_member() -> None:
    cluster, _ = with_topic(3, 1)
    cluster[1].step(PeerReceived(NodeId(2), RemovedNotice(NodeId(3)), None))
    cluster[1].step(PeerReceived(NodeId(9), RemovedNotice(NodeId(1)), None))
    assert not cluster[1].raft.removed


def test_a_node_whose_joining_was_cut_is_taken_in_by_the_next_leader() -> None:
    cluster = Cluster(3)
    cluster.ready()
    old = cluster.leader(METADATA_PARTITION)
    assert old is not None
    rest = tuple(node for node in (1, 2, 3) if node != old.node)
    new = cluster.add(4, old.node)
    cluster.run_until(lambda: 4 in old.raft.metadata.state.members)
    cluster.network.split((old.node, 4), rest)
    cluster.run_until(lambda: 4 in new.raft.metadata.group.config.learners, 5_000)
    old.crash()
    cluster.network.heal()
    cluster.run_until(lambda: cluster.leader(METADATA_PARTITION) not in (None, old))
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None and 4 not in leader.raft.metadata.group.config.members
    cluster.run_until(lambda: new.ready and 4 in leader.raft.metadata.group.config.voters)
