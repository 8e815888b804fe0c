"""Selected guarantees on real processes: SIGKILL and SIGSTOP of an owner under load."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from threading import Event, Thread

import pytest

import rostra.testing
from rostra import blocking
from rostra.client.core.effects import Acknowledged
from rostra.client.core.events import ClientEvent, MayDuplicate
from rostra.model.ids import Partition, PartitionIndex, TopicId, text
from rostra.simulator.history import StoredBatch
from rostra.simulator.world.fabric_observer import batches_in, committed_batches
from rostra.testing.clusters import Cluster
from rostra.testing.process import ProcessNode

KILLS = 3
SOAK_KILLS = 20
STOPPED_S = 5.0
PACE_S = 0.002
AHEAD_MAX = 2_000
"""Bound of the unacknowledged records."""


class Load:
    """An idempotent producer on a thread, and when each of its batches was acknowledged."""

    def __init__(self, cluster: Cluster[ProcessNode], topic: str) -> None:
        self._addresses = [node.address for node in cluster]
        self._topic = topic
        self._enough = Event()
        self.sent: list[bytes] = []
        self.acked = 0
        self.acked_at_s: list[float] = []
        self.warnings: list[ClientEvent] = []
        self.error: BaseException | None = None
        self._thread = Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with (
                blocking.connect(*self._addresses, on_event=self._hear) as client,
                client.producer(self._topic, on_ack=self._acked) as producer,
            ):
                while not self._enough.is_set():
                    if len(self.sent) - self.acked < AHEAD_MAX:
                        value = b"%d" % len(self.sent)
                        self.sent.append(value)
                        producer.send(value)
                    else:
                        producer.flush()
                    self._enough.wait(PACE_S)
        except BaseException as error:
            self.error = error

    def _acked(self, batch: Acknowledged) -> None:
        self.acked += batch.count
        self.acked_at_s.append(time.monotonic())

    def _hear(self, event: ClientEvent) -> None:
        if isinstance(event, MayDuplicate):
            self.warnings.append(event)

    def finish(self) -> None:
        self._enough.set()
        self._thread.join(60)
        assert not self._thread.is_alive() and self.error is None, self.error
        assert self.acked == len(self.sent)
        assert not self.warnings

    def silence_between(self, begin_s: float, end_s: float) -> float:
        """The longest time without an acknowledgement in this interval."""
        moments = [begin_s, *(at for at in self.acked_at_s if begin_s < at < end_s), end_s]
        return max(later - earlier for earlier, later in pairwise(moments))


def read(cluster: Cluster[ProcessNode], node: ProcessNode, topic: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with node.client() as client, client.subscribe(topic, start="earliest") as subscription:

        def all_there() -> bool:
            while len(values) < count and (batch := subscription.poll(timeout=0.1)) is not None:
                values.extend(batch.values())
            return len(values) >= count

        cluster.wait_until(all_there, f"{count} records at {node.address}")
        # Duplicates would follow.
        while (batch := subscription.poll(timeout=0.3)) is not None:
            values.extend(batch.values())
    return values


def log_of(node: ProcessNode, topic: int) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    for segment in sorted((node.directory / "node" / "topics" / f"{text(topic)}-0").glob("*.log")):
        partition = Partition(TopicId(topic), PartitionIndex(0))
        found += batches_in(segment.read_bytes(), partition, check=True)
    return found


def assert_kept(cluster: Cluster[ProcessNode], topic: str, load: Load) -> None:
    """Nothing is lost or duplicated, and the log files of all nodes are equal below the commit offset."""
    load.finish()
    for node in cluster:
        assert read(cluster, node, topic, len(load.sent)) == load.sent
    with cluster[0].client() as client:
        described = client.describe_topic(topic)
    commit = described.partitions[0].commit

    def equal() -> bool:
        logs = [committed_batches(log_of(node, described.topic), commit) for node in cluster]
        return logs[0][-1].end == commit and all(log == logs[0] for log in logs)

    cluster.wait_until(equal, "the same files everywhere")


def acknowledged_more(cluster: Cluster[ProcessNode], load: Load) -> None:
    so_far = load.acked
    cluster.wait_until(lambda: load.acked > so_far or load.error is not None, "another acknowledgement")


def kill_owners(directory: Path, count: int, note: Callable[[str], None]) -> None:
    with rostra.testing.process_cluster(3, directory=directory) as cluster:
        with cluster[0].client() as client:
            client.create_topic("t")
        load = Load(cluster, "t")
        silences: list[tuple[float, float]] = []
        for _ in range(count):
            acknowledged_more(cluster, load)
            owner = cluster.owner("t")
            killed_s = time.monotonic()
            owner.sigkill()
            assert cluster.owner("t") is not owner
            acknowledged_more(cluster, load)
            silences.append((killed_s, time.monotonic()))
            owner.start()
            cluster.await_members(3)
        assert_kept(cluster, "t", load)
        silent_ms = [load.silence_between(*silence) * 1000 for silence in silences]
        cuts = quantiles(silent_ms, n=100, method="inclusive")
        note(f"{count} kills, {len(load.sent)} records: unavailable p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")


@pytest.mark.requirement("CM-14:kill", "RF-32:majority")
def test_owners_are_killed_under_load_and_nothing_is_lost_or_duplicated(tmp_path: Path) -> None:
    kill_owners(tmp_path, KILLS, print)


@pytest.mark.soak
@pytest.mark.requirement("CM-14:kill", "RF-32:majority")
def test_owners_are_killed_again_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def note(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}")

    kill_owners(tmp_path, SOAK_KILLS, note)


@pytest.mark.requirement("RF-33:terms")
def test_an_owner_stopped_for_seconds_resumes_with_the_same_log(tmp_path: Path) -> None:
    with rostra.testing.process_cluster(3, directory=tmp_path) as cluster:
        with cluster[0].client() as client:
            client.create_topic("t")
        load = Load(cluster, "t")
        acknowledged_more(cluster, load)
        owner = cluster.owner("t")
        others = cluster.others(owner)
        owner.pause()
        stopped_s = time.monotonic()
        cluster.wait_until(lambda: any(leads(node) for node in others), "another owner")
        cluster.wait_until(lambda: time.monotonic() - stopped_s > STOPPED_S, "the time to pass")
        owner.resume()
        cluster.await_members(3)
        acknowledged_more(cluster, load)
        assert_kept(cluster, "t", load)


def leads(node: ProcessNode) -> bool:
    return node.metrics().value("rostra_partition_owner", topic="t", partition="0") == 1
