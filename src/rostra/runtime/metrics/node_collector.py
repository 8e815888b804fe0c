"""Renders a node's counters and the state of its broker for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rostra.broker.broker import Broker
from rostra.fabric.registry import FabricKind
from rostra.runtime.metrics.cluster_metrics import cluster_metrics
from rostra.runtime.metrics.counters import SYNC_BOUNDS_MS, Counters
from rostra.runtime.node_health import NodeHealth


class NodeCollector(Collector):
    """Reads the counters and the broker of one node at scrape time."""

    def __init__(self, counters: Counters, broker: Broker, fabric: FabricKind, health: NodeHealth) -> None:
        self._counters = counters
        self._broker = broker
        self._fabric = fabric
        self._health = health

    def collect(self) -> Iterator[Metric]:
        counters, broker = self._counters, self._broker
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
        space = self._health.disk_space()
        gauges = {
            "rostra_connections": ("Connections open now", len(broker.sessions)),
            "rostra_topics": ("Topics", len(broker.topic_table)),
            "rostra_tail_bytes": ("Recent batches kept in memory", broker.tail_cache.bytes),
            "rostra_sink_staged_bytes": (
                "Batches of exactly-once sinks that are staged in partitions owned here",
                broker.sinks.staging.staged_bytes(),
            ),
            "rostra_acknowledging": ("1 while publishes are acknowledged", int(broker.broken is None)),
            "rostra_disk_full": ("1 while the disk is full and publishes are refused", int(self._health.disk_full)),
            "rostra_disk_free_bytes": ("Free space of the file system with the data directory", space.free_bytes),
            "rostra_disk_total_bytes": ("Size of the file system with the data directory", space.total_bytes),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        yield from self._labelled()
        yield self._syncs()
        yield from cluster_metrics(broker.fabric)

    def _labelled(self) -> Iterator[Metric]:
        counters = self._counters
        refused = CounterMetricFamily("rostra_refused", "Requests refused, by error", labels=["error"])
        for error, count in sorted(counters.refused.items()):
            refused.add_metric([error], count)
        yield refused
        violations = CounterMetricFamily("rostra_violations", "Connections closed, by reason", labels=["reason"])
        for reason, count in sorted(counters.violations.items()):
            violations.add_metric([reason], count)
        yield violations
        commit = GaugeMetricFamily("rostra_commit_offset", "Visible end of a partition", labels=["topic", "partition"])
        for served in self._broker.topic_table.partitions():
            commit.add_metric([served.topic, str(served.partition.index)], served.commit)
        yield commit
        yield self._subscription_lag()

    def _subscription_lag(self) -> Metric:
        """Of the named subscriptions that this node coordinates, in partitions that it has a replica of."""
        labels = ["subscription", "topic", "partition"]
        lag = GaugeMetricFamily("rostra_subscription_lag", "Offsets between position and end", labels=labels)
        for name, served, position in self._broker.coordinator.positions():
            lag.add_metric([name, served.topic, str(served.partition.index)], max(served.commit - position, 0))
        return lag

    def _syncs(self) -> Metric:
        counters = self._counters
        family = HistogramMetricFamily("rostra_sync_seconds", "Duration of an fsync")
        buckets, running = [], 0
        for bound, count in zip(SYNC_BOUNDS_MS, counters.sync_ms, strict=False):
            running += count
            buckets.append((str(bound / 1000), running))
        buckets.append(("+Inf", running + counters.sync_ms[-1]))
        family.add_metric([], buckets, counters.sync_total_ms / 1000)
        return family


def registry_of(counters: Counters, broker: Broker, fabric: FabricKind, health: NodeHealth) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(NodeCollector(counters, broker, fabric, health))
    return registry
