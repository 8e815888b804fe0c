"""Retention and compaction where every node has topics of its own, with its own settings."""

from __future__ import annotations

import pytest

from tests.contract.facade import Cluster, Node
from tests.contract.guarantees import ORDERS_ORIGINS, SEVERAL, TOPICS_OF_EACH_NODE, proves


def first_at(cluster: Cluster, node: Node, topic: str = "t") -> int:
    """The highest log start of the topic's partitions at a node."""
    return max((part.first for part in cluster.describe(topic, at=node).partitions), default=0)


@proves(ORDERS_ORIGINS)
@pytest.mark.requirement("CM-1:gaps", "CM-3:retention-size")
def test_every_node_applies_retention_without_effect_on_producers(cluster: Cluster) -> None:
    cluster.create_topic("t", retention_bytes=1, segment_bytes=4096)
    nodes = cluster.running
    producer = cluster.producer("t", at=nodes[0])

    def trimmed() -> bool:
        if producer.settled:
            producer.send(*(bytes(300) + b"%d" % (len(producer.sent) + at) for at in range(20)))
        return all(first_at(cluster, node) > 10 for node in nodes)

    cluster.run_until(trimmed, "retention to pass everywhere")
    for node in nodes:
        # A checkpoint may close the segment of the last record, which would then go, too.
        cluster.alter_topic("t", at=node, retention_bytes=0)
    producer.send(b"last")
    cluster.run_until(lambda: producer.settled, "all of it to be settled")
    assert not producer.failed and not producer.warnings
    for node in nodes:
        late = cluster.subscribe("t", at=node)
        cluster.run_until(lambda: b"last" in late.values, "the last record")  # noqa: B023
        assert 0 < len(late.values) < len(producer.sent)
        assert late.values == producer.sent[-len(late.values) :], "what is left is the end of it, whole"


@proves(TOPICS_OF_EACH_NODE, sizes=SEVERAL)
@pytest.mark.requirement("CM-3:retention-size", "FL-4:topics")
def test_settings_altered_at_one_node_apply_there_only(cluster: Cluster) -> None:
    cluster.create_topic("t", segment_bytes=4096)
    here, there, *_ = cluster.running
    cluster.alter_topic("t", at=here, retention_bytes=1)
    assert cluster.settings("t", at=here).retention_bytes == 1
    assert cluster.settings("t", at=there).retention_bytes == 0
    values: list[bytes] = []

    def trimmed() -> bool:
        values.append(bytes(1000) + b"%d" % len(values))
        cluster.publish("t", values[-1], at=there)
        return first_at(cluster, here) > 5

    cluster.run_until(trimmed, "retention to pass where it was asked for")
    assert first_at(cluster, there) == 0
    everything = cluster.subscribe("t", at=there)
    cluster.run_until(lambda: len(everything.values) == len(values), "every record")
    assert everything.values == values


@proves(ORDERS_ORIGINS)
@pytest.mark.requirement("CM-1:gaps", "CM-3:compaction")
def test_of_a_compacted_topic_every_node_keeps_the_latest_record_of_each_key(cluster: Cluster) -> None:
    cluster.create_topic("t", segment_bytes=4096, compaction=True)
    nodes = cluster.running
    latest: dict[bytes, tuple[int, bytes]] = {}
    for number in range(12):
        for key in (b"a", b"b", b"c"):
            value = bytes(400) + b"%b-%d" % (key, number)
            (ack,) = cluster.publish("t", value, at=nodes[0], key=key)
            latest[key] = ack.offset, value

    def compacted() -> bool:
        # Records go on being published, so that what is there comes to lie in sealed segments.
        cluster.publish("t", bytes(1500), at=nodes[0], key=b"last")
        return all(cluster.read_from("t", at=node)[0].offset >= latest[b"a"][0] for node in nodes)

    cluster.run_until(compacted, "what was replaced to go")
    for node in nodes:
        table = {record.offset: record.value for record in cluster.read_from("t", at=node)}
        assert all(table[offset] == value for offset, value in latest.values())
