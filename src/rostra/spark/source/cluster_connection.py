"""Queries of a read to the cluster: topics, their extents, and offsets of times."""

from __future__ import annotations

from typing import assert_never

from rostra import blocking
from rostra.client.core.effects import TopicDescription
from rostra.client.core.options import Time
from rostra.errors import LinkError, UnknownPartition, UnknownTopic
from rostra.spark.source.bounds import Extent, TopicPartition
from rostra.spark.source.options import AssignedPartitions, ReadOptions, TopicNames, TopicPattern
from rostra.spark.source.plan import TopicExtents


class ClusterConnection:
    """One connection to the cluster, opened on first use."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client: blocking.Client | None = None
        self._addresses = options.nodes

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def client(self) -> blocking.Client:
        if self._client is None:
            self._client = connect(self._addresses, self._options)
        return self._client

    def addresses(self) -> tuple[str, ...]:
        """The addresses that were given, and those of all members, if the cluster answers."""
        try:
            nodes = self.client.describe_cluster().nodes
        except LinkError:
            return self._addresses
        told = (node.address for node in nodes if node.address and not node.leaving)
        self._addresses = tuple(dict.fromkeys((*self._options.nodes, *told)))
        return self._addresses

    def available(self, *, gone: bool = False) -> TopicExtents:
        """The extents of the chosen topics. A topic that was given by name must exist, unless `gone` contains it."""
        ids: dict[str, int] = {}
        extents: dict[TopicPartition, Extent] = {}
        for name in self._names():
            try:
                described = self.client.describe_topic(name)
            except UnknownTopic:
                if gone or isinstance(self._options.chosen, TopicPattern):
                    continue
                raise
            ids[name] = described.topic
            for partition, extent in self._extents(described).items():
                extents[name, partition] = extent
        return TopicExtents(ids, extents)

    def _names(self) -> tuple[str, ...]:
        match self._options.chosen:
            case TopicNames(topics):
                return topics
            case TopicPattern(pattern):
                return tuple(topic.name for topic in self.client.list_topics() if pattern.matches(topic.name))
            case AssignedPartitions(partitions):
                return tuple(partitions)
            case _:
                assert_never(self._options.chosen)

    def _extents(self, described: TopicDescription) -> dict[int, Extent]:
        there = {state.partition: Extent(state.first, state.commit) for state in described.partitions}
        match self._options.chosen:
            case AssignedPartitions(partitions):
                for partition in partitions[described.name]:
                    if partition not in there:
                        raise UnknownPartition(described.name, partition)
                return {partition: there[partition] for partition in partitions[described.name]}
            case _:
                return there

    def at_time(self, key: TopicPartition, moment_us: int) -> int:
        topic, partition = key
        with self.client.subscribe(topic, start=Time(moment_us), partition=partition, credit_bytes=1) as found:
            return found.positions[partition]


def connect(addresses: tuple[str, ...], options: ReadOptions) -> blocking.Client:
    """Connects without creating topics."""
    return blocking.connect(
        *addresses, name="rostra-spark", auto_create=False, connect_timeout_ms=options.connect_timeout_ms
    )
