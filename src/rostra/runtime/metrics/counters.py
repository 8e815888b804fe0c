"""What a node counts. Plain integers on the hot path; Prometheus reads them when it asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rostra.runtime.metrics.cluster_metrics import cluster_metrics

if TYPE_CHECKING:
    from rostra.runtime.node import Node

SYNC_BOUNDS_MS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Counters:
    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.peer_bytes_in = 0
        self.peer_bytes_out = 0
        self.batches_in = 0
        self.bytes_appended = 0
        self.pushes = 0
        self.refused: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.connections = 0
        self.reads = 0
        self.sync_ms = [0] * (len(SYNC_BOUNDS_MS) + 1)
        self.sync_total_ms = 0.0

    def synced(self, took_ms: float) -> None:
        self.sync_total_ms += took_ms
        for at, bound in enumerate(SYNC_BOUNDS_MS):
            if took_ms <= bound:
                self.sync_ms[at] += 1
                return
        self.sync_ms[-1] += 1


class NodeCollector(Collector):
    """Reads the counters of one node at scrape time, so that counting costs an addition and no lock."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node, counters = self._node, self._node.counters
        totals = {
            "rostra_received_bytes": ("Bytes received from clients", counters.bytes_in),
            "rostra_sent_bytes": ("Bytes sent to clients", counters.bytes_out),
            "rostra_peer_received_bytes": ("Bytes received from other nodes", counters.peer_bytes_in),
            "rostra_peer_sent_bytes": ("Bytes sent to other nodes", counters.peer_bytes_out),
            "rostra_appended_batches": ("Batches written to the log", counters.batches_in),
            "rostra_appended_bytes": ("Bytes written to the log", counters.bytes_appended),
            "rostra_pushes": ("Push frames sent to subscribers", counters.pushes),
            "rostra_log_reads": ("Reads from the log for subscribers that fell behind", counters.reads),
            "rostra_connections_opened": ("Connections accepted", counters.connections),
        }
        for name, (text, value) in totals.items():
            yield CounterMetricFamily(name, text, value=value)
        gauges = {
            "rostra_connections": ("Connections open now", len(node.broker.sessions)),
            "rostra_topics": ("Topics", len(node.broker.topic_table)),
            "rostra_tail_bytes": ("Recent batches kept in memory", node.broker.tail_cache.bytes),
            "rostra_acknowledging": ("1 while publishes are acknowledged", int(node.broker.broken is None)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        yield from self._labelled()
        yield self._syncs()
        yield from cluster_metrics(node)

    def _labelled(self) -> Iterator[Metric]:
        counters = self._node.counters
        refused = CounterMetricFamily("rostra_refused", "Requests refused, by error", labels=["error"])
        for error, count in sorted(counters.refused.items()):
            refused.add_metric([error], count)
        yield refused
        violations = CounterMetricFamily("rostra_violations", "Connections closed, by reason", labels=["reason"])
        for reason, count in sorted(counters.violations.items()):
            violations.add_metric([reason], count)
        yield violations
        commit = GaugeMetricFamily("rostra_commit_offset", "Visible end of a partition", labels=["topic", "partition"])
        for served in self._node.broker.topic_table.partitions():
            commit.add_metric([served.topic, str(served.partition.index)], served.commit)
        yield commit

    def _syncs(self) -> Metric:
        counters = self._node.counters
        family = HistogramMetricFamily("rostra_sync_seconds", "Duration of an fsync")
        buckets, running = [], 0
        for bound, count in zip(SYNC_BOUNDS_MS, counters.sync_ms, strict=False):
            running += count
            buckets.append((str(bound / 1000), running))
        buckets.append(("+Inf", running + counters.sync_ms[-1]))
        family.add_metric([], buckets, counters.sync_total_ms / 1000)
        return family


def registry_of(node: Node) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    return registry
