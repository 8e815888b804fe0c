"""Whole nodes: metadata, partitions spread over nodes, joining, leaving, returning."""

from __future__ import annotations

import pytest

from rostra.errors import (
    DiskUntrusted,
    Moved,
    PartitionDamaged,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from rostra.fabric.api import (
    Confirm,
    DiskUnusable,
    PeerReceived,
    PrepareStop,
    ProposeDrop,
    ProposeTopic,
    Serving,
    TopicSpec,
    TransferOwnership,
)
from rostra.fabric.cluster.messages import CreateTopicRequest, RequestReply
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.replication.messages import AppendEntries
from rostra.fabric.status import ClusterStatus
from rostra.model.batch import stamp
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, TopicId
from tests.unit.raft.nodes import Cluster, Node


def others(cluster: Cluster, node: Node) -> list[Node]:
    return [other for other in cluster.nodes.values() if other is not node]


def status_of(node: Node) -> ClusterStatus:
    status = node.raft.status()
    assert status is not None
    return status


def test_a_node_alone_serves_at_once_and_needs_nobody() -> None:
    cluster = Cluster(1)
    cluster.ready()
    assert cluster.us < 50_000
    (partition,) = cluster.topic("t")
    for number in range(5):
        cluster.publish(partition, b"%d" % number)
    assert cluster.sent.total() == 0


def test_a_node_alone_comes_back_with_all_it_acknowledged_and_a_higher_epoch() -> None:
    cluster = Cluster(1)
    cluster.ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"x")
    before = cluster[1].serving[partition]
    cluster[1].crash()
    cluster[1].start()
    cluster.run_until(lambda: cluster[1].leads(partition) and cluster[1].ready)
    after = cluster[1].serving[partition]
    assert isinstance(before, Serving) and isinstance(after, Serving)
    assert after.owner and after.epoch > before.epoch
    assert cluster[1].ready and cluster[1].values(partition) == [b"x"]


@pytest.mark.parametrize("hurt", ["metadata", "partition"])
def test_a_node_alone_serves_what_can_be_read_of_a_damaged_log_and_adds_nothing(hurt: str) -> None:
    cluster = Cluster(1)
    cluster.ready()
    (partition,) = cluster.topic("t")
    for value in (b"x", b"y"):
        cluster.publish(partition, value)
    cluster.run(100)
    node = cluster[1]
    node.crash()
    log = node.disks[METADATA_PARTITION if hurt == "metadata" else partition]
    log.stored = log.stored[:-1]
    log.damaged_at = log.end
    node.start()
    cluster.run_until(lambda: node.ready)
    if hurt == "metadata":
        node.create("u", token=6)
        assert isinstance(node.refused[6], PartitionDamaged)
    else:
        cluster.run_until(lambda: partition in node.blocked)
        served = node.serving[partition]
        assert isinstance(served, Serving) and served.commit == log.end
        assert isinstance(node.publish(partition, b"z"), PartitionDamaged)


@pytest.mark.requirement("RF-37")
def test_leaders_are_spread_over_the_nodes() -> None:
    cluster = Cluster(3)
    cluster.ready()
    partitions = cluster.topic("t", 6, at=2)
    led = [cluster.leader(partition) for partition in partitions]
    assert sorted(node.node for node in led if node is not None) == [1, 1, 2, 2, 3, 3]


def test_a_topic_made_at_any_node_is_known_at_all_and_led_without_waiting_for_a_timeout() -> None:
    cluster = Cluster(3)
    cluster.ready()
    cluster.run(500)
    begun = cluster.us
    for node in (1, 2, 3):
        cluster.topic(f"t{node}", at=node)
    assert cluster.us - begun < 3 * 150_000
    assert all(set(node.topics) == {"t1", "t2", "t3"} for node in cluster.nodes.values())
    assert cluster[2].opened == {2: "t2"}, "the node that was asked answers its client"


def test_of_two_topics_of_one_name_made_at_once_there_is_one() -> None:
    cluster = Cluster(3)
    cluster.ready()
    for node in (1, 2, 3):
        cluster[node].create("t")
    cluster.run(2_000)
    made = [node for node in cluster.nodes.values() if node.opened]
    refused = [node for node in cluster.nodes.values() if isinstance(node.refused.get(2), TopicExists)]
    assert len(made) == 1 and len(refused) == 2
    assert len({node.topics["t"].topic for node in cluster.nodes.values()}) == 1


def test_a_dropped_topic_is_gone_everywhere_and_unknown_from_then_on() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"x")
    cluster[3].step(ProposeDrop(8, partition.topic))
    cluster.run_until(lambda: cluster[3].closed == [8])
    cluster.run(500)
    assert all(not node.topics and partition not in node.disks for node in cluster.nodes.values())
    cluster[2].step(ProposeDrop(10, partition.topic))
    cluster.run_until(lambda: 10 in cluster[2].refused)
    assert isinstance(cluster[2].refused[10], UnknownTopic)


def test_a_publish_elsewhere_is_told_where_the_leader_is() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t", replicas=2)
    cluster.run(500)
    leader = cluster.leader(partition)
    assert leader is not None
    for node in others(cluster, leader):
        answer = node.publish(partition, b"x")
        assert isinstance(answer, Moved) and answer.address == f"client:{leader.node}"
    assert sum(partition in node.disks for node in cluster.nodes.values()) == 2


@pytest.mark.requirement("RF-30:log")
def test_a_node_that_was_away_rejoins_by_itself_and_catches_up() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (first,) = cluster.topic("first")
    away = cluster.leader(first)
    assert away is not None
    cluster.publish(first, b"before")
    away.crash()
    cluster.run_until(lambda: cluster.leader(first) not in (None, away))
    at = cluster.alive[0].node
    (second,) = cluster.topic("second", at=at)
    for number in range(20):
        cluster.publish(first, b"%d" % number)
        cluster.publish(second, b"%d" % number)
    away.start()
    cluster.run_until(
        lambda: (
            "second" in away.topics
            and all(away.values(p)[-1:] == [b"19"] for p in (first, second) if p in away.disks)
            and second in away.disks
        )
    )
    assert away.values(first)[0] == b"before"
    cluster.run_until(lambda: away.leads(first), 30_000)


@pytest.mark.requirement("CM-4:all-is-durable", "RF-34:log")
def test_what_was_acknowledged_survives_a_power_cut_of_all_nodes() -> None:
    cluster = Cluster(3)
    cluster.ready()
    partitions = cluster.topic("t", 3)
    for number in range(10):
        for partition in partitions:
            cluster.publish(partition, b"%d" % number)
    for node in cluster.nodes.values():
        node.crash()
    for node in cluster.nodes.values():
        node.start()
    cluster.ready()
    for partition in partitions:
        cluster.publish(partition, b"after")
        leader = cluster.leader(partition)
        assert leader is not None
        assert leader.values(partition) == [*(b"%d" % number for number in range(10)), b"after"]


def test_a_node_whose_metadata_log_is_damaged_gets_it_from_the_others() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (gone,) = cluster.topic("gone")
    cluster[1].step(ProposeDrop(8, gone.topic))
    cluster.run_until(lambda: cluster[1].closed == [8])
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"x")
    cluster.run(500)
    hurt = cluster[2]
    hurt.crash()
    log = hurt.disks[METADATA_PARTITION]
    log.stored, log.damaged_at = log.stored[:2], log.stored[2].base
    hurt.start()
    cluster.run_until(lambda: hurt.ready and "t" in hurt.topics)
    assert set(hurt.topics) == {"t"}, "what was dropped meanwhile does not come back"
    assert hurt.values(partition) == [b"x"]
    cluster.topic("later", at=2)


def test_entries_that_were_damaged_on_the_way_are_not_stored() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t")
    leader = cluster.leader(partition)
    assert leader is not None
    follower = others(cluster, leader)[0]
    cluster.run(300)
    group = follower.raft.groups[partition]
    batch = encode([b"x"], timestamp_us=1)
    stamp(batch, partition=partition, base_offset=group.log.end, owner_epoch=group.term)
    batch[-1] ^= 1
    entries = AppendEntries(partition, group.term, group.log.end, group.log.last_epoch, group.commit, 0)
    end = group.log.end
    follower.step(PeerReceived(leader.raft.node, entries, batch))
    assert group.log.end == end and "peer violated the protocol" in follower.notes
    cluster.publish(partition, b"intact")


def test_a_minority_refuses_and_the_majority_goes_on() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t")
    old = cluster.leader(partition)
    assert old is not None
    rest = tuple(node.node for node in others(cluster, old))
    cluster.network.split((old.node,), rest)
    cluster.run_until(lambda: not old.leads(partition), 1_000)
    assert isinstance(old.publish(partition, b"no"), Unavailable)
    cluster.run_until(lambda: cluster.leader(partition) is not None)
    cluster.publish(partition, b"yes")
    old.create("unheard", token=6)
    cluster.run(12_000)
    assert isinstance(old.refused[6], Unavailable), "it does not wait for ever"
    cluster.network.heal()
    cluster.run_until(lambda: old.values(partition) == [b"yes"])


@pytest.mark.requirement("RF-32:group-each", "RF-32:idle")
def test_idle_partitions_cost_no_traffic_of_their_own() -> None:
    cluster = Cluster(3)
    cluster.ready()
    cluster.topic("t", 60)
    cluster.run(3_000)
    assert {len(node.raft.groups) for node in cluster.nodes.values()} == {61}, "one for each partition and the metadata"
    assert all(group.quiescent for node in cluster.nodes.values() for group in node.raft.groups.values())
    before = cluster.sent.copy()
    cluster.run(1_000)
    said = cluster.sent - before
    assert set(said) == {"NodeHeartbeat"} and said["NodeHeartbeat"] <= 6 * 21, "one a period for each pair"
    victim = cluster[1]
    led = [partition for partition in victim.raft.groups if victim.leads(partition)]
    victim.crash()
    cluster.run_until(lambda: all(cluster.leader(partition) is not None for partition in led), 5_000)


def test_who_answers_heartbeats_is_heard_by_that_and_needs_none_of_its_own() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t")
    leader = cluster.leader(partition)
    assert leader is not None
    periods = 40
    before = cluster.sent.copy()
    for number in range(periods):
        cluster.publish(partition, b"%d" % number)
        cluster.run(leader.raft.settings.heartbeat_ms)
    said = cluster.sent - before
    assert said["NodeHeartbeatReply"] >= periods, "the group is awake"
    assert said["NodeHeartbeat"] + said["NodeHeartbeatReply"] <= 7 * periods, (
        "eight, if each pair had its own both ways"
    )
    for one in cluster.nodes.values():
        assert all(one.raft.peers.is_alive(NodeId(other.node)) for other in cluster.nodes.values())


def test_a_new_node_joins_through_any_member_and_every_member_knows_it() -> None:
    cluster = Cluster(3)
    cluster.ready()
    cluster.topic("old")
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    through = others(cluster, leader)[0]
    new = cluster.add(4, through.node)
    cluster.run_until(lambda: all(4 in node.raft.metadata.group.config.voters for node in cluster.nodes.values()))
    assert all(4 in node.raft.metadata.state.members for node in cluster.nodes.values())
    assert new.ready and "old" in new.topics
    leads = cluster.leader(METADATA_PARTITION)
    assert leads is not None
    cluster.run_until(lambda: leads.raft.peers.is_alive(NodeId(4)))
    partitions = cluster.topic("new", 4, at=4)
    assert any(new.leads(partition) for partition in partitions)
    for partition in partitions:
        cluster.publish(partition, b"x")


@pytest.mark.requirement("RF-36")
def test_a_confirmed_node_knows_every_topic_that_was_acknowledged_before_the_question() -> None:
    cluster = Cluster(3)
    cluster.ready()
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    behind, asked = others(cluster, leader)
    cluster.network.blocked = {(leader.node, behind.node)}
    asked.create("t")
    cluster.run_until(lambda: bool(asked.opened))
    assert "t" not in behind.topics
    behind.step(Confirm(20, ""))
    cluster.run(200)
    assert behind.confirmed == [], "it lacks something and does not know what"
    cluster.network.heal()
    cluster.run_until(lambda: behind.confirmed == [20])
    assert "t" in behind.topics


@pytest.mark.requirement("RF-36")
def test_a_node_cut_off_confirms_nothing_however_much_it_once_led() -> None:
    cluster = Cluster(3)
    cluster.ready()
    old = cluster.leader(METADATA_PARTITION)
    assert old is not None
    cluster.network.split((old.node,), tuple(node.node for node in others(cluster, old)))
    old.step(Confirm(20, ""))
    cluster.run(15_000)
    assert old.confirmed == [] and isinstance(old.refused[20], Unavailable)


def test_a_node_that_stops_hands_its_leadership_over_first() -> None:
    cluster = Cluster(3)
    cluster.ready()
    partitions = cluster.topic("t", 3)
    cluster.run(500)
    leaving = cluster[1]
    assert any(leaving.leads(partition) for partition in partitions)
    leaving.step(PrepareStop())
    cluster.run_until(lambda: leaving.stop_prepared, 1_000)
    cluster.run(100)
    assert not any(leaving.leads(partition) for partition in [*partitions, METADATA_PARTITION])
    assert all(cluster.leader(partition) is not None for partition in partitions)


def test_an_operator_moves_leadership_and_sees_it_in_the_status() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"x")
    cluster.run(300)
    leader = cluster.leader(partition)
    assert leader is not None
    target = others(cluster, leader)[0]
    before = status_of(leader).groups[1]
    assert (before.topic, before.role, before.commit) == ("t", "leader", before.end)
    assert [follower.match for follower in before.followers] == [before.end] * 2
    leader.step(TransferOwnership(partition, target.raft.node))
    cluster.run_until(lambda: target.leads(partition), 1_000)
    cluster.run(200)
    after = status_of(leader).groups[1]
    assert after.leader == target.node and after.term > before.term and after.followers == ()
    leader.step(TransferOwnership(partition, target.raft.node))
    assert leader.notes[-1] == "leadership transfer refused"
    cluster.run(30_000)
    assert target.leads(partition), "it stays where it was put"


def test_a_node_that_is_away_is_shown_so_at_every_other() -> None:
    cluster = Cluster(3)
    cluster.ready()
    cluster.run(200)
    assert all(member.alive for node in cluster.alive for member in status_of(node).members)
    cluster[3].crash()
    cluster.run(1_000)
    for node in (cluster[1], cluster[2]):
        assert [member.alive for member in status_of(node).members] == [True, True, False]
    cluster[3].start()
    cluster.run_until(lambda: all(member.alive for node in cluster.alive for member in status_of(node).members))


def test_a_node_alone_has_nobody_to_hand_over_to() -> None:
    cluster = Cluster(1)
    cluster.ready()
    cluster.topic("t")
    cluster[1].step(PrepareStop())
    assert cluster[1].stop_prepared


def test_a_node_whose_disk_cannot_sync_leads_nothing_any_more() -> None:
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"x")
    cluster.run(300)
    broken = cluster.leader(partition)
    assert broken is not None
    broken.step(DiskUnusable(DiskUntrusted("EIO")))
    assert not broken.leads(partition)
    cluster.run_until(lambda: cluster.leader(partition) not in (None, broken))
    cluster.run(30_000)
    assert not any(broken.leads(one) for one in broken.raft.groups)


def test_a_proposal_for_no_partition_is_refused() -> None:
    cluster = Cluster(1)
    cluster.ready()
    refused = cluster[1].publish(Partition(TopicId(77), METADATA_PARTITION.index), b"x")
    assert isinstance(refused, UnknownPartition)
    cluster[1].step(ProposeTopic(6, TopicSpec(TopicId(5), "t", 1, b""), 1 << 20))
    cluster.run_until(lambda: 6 in cluster[1].opened)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost_by_nodes_that_crash_and_part(seed: int) -> None:
    cluster = Cluster(3, seed=seed)
    cluster.ready()
    partitions = cluster.topic("t", 4)
    random = cluster.random
    acknowledged: dict[Partition, dict[int, bytes]] = {partition: {} for partition in partitions}
    for number in range(60):
        cluster.run(random.choice([5, 50, 300]))
        for partition in partitions:
            leader = cluster.leader(partition)
            value = b"%d" % number
            if leader is not None and isinstance(placed := leader.publish(partition, value), tuple):
                cluster.run(10)
                if leader.alive and leader.commit.get(partition, 0) > placed[1]:
                    acknowledged[partition][placed[0]] = value
        match random.randrange(8):
            case 0:
                random.choice(cluster.alive or [cluster[1]]).crash()
            case 1 | 2:
                for node in cluster.nodes.values():
                    if not node.alive:
                        node.start()
            case 3:
                alone = random.randint(1, 3)
                cluster.network.split((alone,), tuple(node for node in cluster.nodes if node != alone))
                cluster.network.loss = 0.05
            case 4:
                cluster.network.heal()
            case 5:
                # Mostly the power comes back at once: else nobody is there for most of the time.
                for node in cluster.alive:
                    node.crash()
                for node in cluster.nodes.values():
                    if random.random() < 0.8:
                        node.start()
            case _:
                pass
    cluster.network.heal()
    for node in cluster.nodes.values():
        if not node.alive:
            node.start()
    cluster.ready()
    for partition in partitions:
        cluster.publish(partition, b"last")
    cluster.run(3_000)
    for partition in partitions:
        logs = [[one.batch for one in node.disks[partition].stored] for node in cluster.nodes.values()]
        assert logs[0] == logs[1] == logs[2]
        stored = {one.base: one.batch for one in cluster[1].disks[partition].stored}
        assert all(value in stored[base] for base, value in acknowledged[partition].items())
    assert sum(map(len, acknowledged.values())) > 20


def test_who_asks_twice_because_the_answer_is_slow_is_not_told_that_its_own_topic_exists() -> None:
    cluster = Cluster(3)
    cluster.ready()
    cluster.run(300)
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    asker = others(cluster, leader)[0].raft
    cluster.topic("t", at=asker.node)
    spec = leader.topics["t"]
    leader.step(PeerReceived(asker.node, CreateTopicRequest(asker.node, asker.boot, 2, spec, 1 << 20, 0), None))
    assert cluster.sent["RequestReply"] == 0, "the metadata entry is the answer"
    another = TopicSpec(TopicId(5), "t", 1, b"")
    leader.step(PeerReceived(asker.node, CreateTopicRequest(asker.node, asker.boot, 4, another, 1 << 20, 0), None))
    cluster.run(300)
    assert cluster.sent["RequestReply"] == 0, "that the name is taken may not be committed yet: the log answers"
    assert leader.raft.metadata.state.names == {"t": spec.topic}


def test_a_refusal_of_what_was_asked_before_a_restart_is_nobodys() -> None:
    cluster = Cluster(3)
    cluster.ready()
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    asker = others(cluster, leader)[0]
    cluster.network.split((asker.node,), tuple(node.node for node in others(cluster, asker)))
    asker.create("t", token=6)
    old = RequestReply(6, "TopicExists", {"topic": "t"}, asker.raft.boot - 1)
    asker.step(PeerReceived(leader.raft.node, old, None))
    assert 6 not in asker.refused
    cluster.network.heal()
    cluster.run_until(lambda: asker.opened.get(6) == "t")


def test_a_new_topic_does_not_go_to_nodes_that_are_away() -> None:
    cluster = Cluster(5)
    cluster.ready()
    cluster.run(1_000)
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    for away in others(cluster, leader)[:2]:
        away.crash()
    cluster.run(3_000)
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    partitions = cluster.topic("t", 5, at=leader.node)
    for partition in partitions:
        cluster.publish(partition, b"x")
    there = {node.node for node in cluster.nodes.values() if node.alive}
    assert all(
        set(leader.raft.metadata.state.replica_assignment(partition).replicas) <= there for partition in partitions
    )


def test_a_member_that_was_to_leave_stays_while_those_that_stay_are_no_majority_without_it() -> None:
    """Asked while all were there. What is carried out when they are not would leave a group that agrees on nothing."""
    cluster = Cluster(5)
    cluster.ready()
    cluster.run(1_000)
    leader = cluster.leader(METADATA_PARTITION)
    assert leader is not None
    first, second, third, _ = others(cluster, leader)
    group = leader.raft.metadata.group
    assert leader.raft.peers.keeps_quorum_without(group, NodeId(first.node))
    for away in (second, third):
        away.crash()
    gone = [NodeId(second.node), NodeId(third.node)]
    cluster.run_until(lambda: not any(map(leader.raft.peers.is_alive, gone)))
    assert not leader.raft.peers.keeps_quorum_without(group, NodeId(first.node)), "two of four"
    leader.raft.placement._remove_member(NodeId(first.node))
    assert first.node in leader.raft.metadata.group.config.voters
