"""Metrics about the cluster: its members, and the replication groups of this node."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from rostra.fabric.api import METADATA, Fabric
from rostra.model.ids import text

PLACE = ["topic", "partition"]


def cluster_metrics(fabric: Fabric) -> Iterator[Metric]:
    status = fabric.status()
    if status is None:
        return
    up = GaugeMetricFamily(
        "rostra_member_up", "1 if this node receives heartbeats of the member", labels=["member", "address"]
    )
    votes = GaugeMetricFamily("rostra_member_votes", "1 if the member votes on topics and members", labels=["member"])
    for member in status.members:
        up.add_metric([text(member.node), member.address], int(member.alive))
        votes.add_metric([text(member.node)], int(member.voter))
    down = sum(not member.alive for member in status.members)
    yield GaugeMetricFamily("rostra_members", "Members of the cluster", value=len(status.members))
    yield GaugeMetricFamily("rostra_members_down", "Members whose heartbeats this node does not receive", value=down)
    yield up
    yield votes
    role = GaugeMetricFamily("rostra_group_role", "1 for the role of this node", labels=[*PLACE, "role"])
    owned = GaugeMetricFamily("rostra_partition_owner", "1 if this node orders the partition", labels=PLACE)
    term = GaugeMetricFamily("rostra_group_term", "Term of the group", labels=PLACE)
    commit = GaugeMetricFamily("rostra_group_commit_offset", "Commit offset", labels=PLACE)
    end = GaugeMetricFamily("rostra_group_end_offset", "End of the log here", labels=PLACE)
    synced = GaugeMetricFamily(
        "rostra_group_synced_offset", "Offset below which the log is on stable storage here", labels=PLACE
    )
    labels = [*PLACE, "follower"]
    match = GaugeMetricFamily(
        "rostra_group_match_offset", "Offset below which a follower of this leader has synced", labels=labels
    )
    lag = GaugeMetricFamily("rostra_replica_lag", "Offsets that a follower of this leader lacks", labels=labels)
    for group in status.groups:
        place = [group.topic or METADATA, str(group.partition.index)]
        role.add_metric([*place, group.role], 1)
        owned.add_metric(place, int(group.owner))
        term.add_metric(place, group.term)
        commit.add_metric(place, group.commit)
        end.add_metric(place, group.end)
        synced.add_metric(place, group.synced)
        for follower in group.followers:
            match.add_metric([*place, text(follower.node)], follower.match)
            lag.add_metric([*place, text(follower.node)], max(group.end - follower.match, 0))
    yield from (role, owned, term, commit, end, synced, match, lag)
