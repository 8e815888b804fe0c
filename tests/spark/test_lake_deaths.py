"""Lakes of both formats on a cluster whose driver, executors and brokers are killed, with tasks that run twice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest

import rostra.testing
from rostra import blocking
from rostra.testing.clusters import Cluster
from rostra.testing.process import ProcessNode
from tests.processes.command_line import COMMAND, environment, wait_until
from tests.spark.standalone import Standalone, signal_to, standalone

PATIENCE_S = 400.0
ROUNDS = int(os.environ.get("DEATH_ROUNDS", "3"))
TOPIC = "orders"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    # Also of a task that is alone in its batch.
    "spark.speculation.task.duration.threshold": "500ms",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
}


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone") / "spark") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster[ProcessNode]]:
    with rostra.testing.process_cluster(3, directory=tmp_path_factory.mktemp("brokers"), fsync="never") as cluster:
        yield cluster


class Publisher(threading.Thread):
    """Publishes until it is told to stop, and knows what was acknowledged."""

    def __init__(self, addresses: list[str], topic: str) -> None:
        super().__init__(daemon=True)
        self._addresses = addresses
        self._topic = topic
        self.over = threading.Event()
        self.acknowledged: Counter[bytes] = Counter()

    def run(self) -> None:
        with blocking.connect(*self._addresses) as client:
            sent = 0
            while not self.over.wait(0.2):
                with client.producer(self._topic) as producer:
                    values = [b"%d" % n for n in range(sent, sent + 50)]
                    for value in values:
                        producer.send(value)
                self.acknowledged.update(values)
                sent += 50


def lake_rows(lake: Path) -> Counter[bytes]:
    """As a reader sees it that knows nothing of Spark."""
    if (lake / "_delta_log" / f"{0:020}.json").exists():
        table = deltalake.DeltaTable(str(lake)).to_pyarrow_dataset().to_table(["value"])
    elif list(lake.glob("topic=*/date=*/*.parquet")):
        table = ds.dataset(lake, format="parquet").to_table(["value"])
    else:
        return Counter()
    return Counter(table["value"].to_pylist())


class Archive:
    """The command, in a group of its own, so that it can be killed at once with the driver of Spark."""

    def __init__(self, place: Path, spark: Standalone, addresses: list[str], topic: str, format: str) -> None:
        self._place = place
        self.lake = place / "lake"
        self._command = ["pipeline", "archive", topic, "--lake", str(self.lake), "--format", format, "--every", "200ms"]
        self._command += ["--limit", "50000", "--master", spark.url]
        for name, value in {**spark.conf, **SPECULATION}.items():
            self._command += ["--conf", f"{name}={value}"]
        self._command += [part for address in addresses for part in ("--node", address)]

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        with (self._place / "pipeline.log").open("ab") as log:
            return subprocess.Popen(
                [*COMMAND, *self._command, *more],
                cwd=self._place,
                env=environment(self._place),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def said(self) -> str:
        return (self._place / "pipeline.log").read_text()

    def _files(self) -> int:
        return sum(1 for _ in self.lake.glob("topic=*/date=*/*.parquet"))

    def grows(self, running: subprocess.Popen[bytes], what: str) -> None:
        before = self._files()

        def more() -> bool:
            assert running.poll() is None, self.said()[-2000:]
            return self._files() > before

        wait_until(more, f"more in the lake {what}", PATIENCE_S)


def rounds_of_death(place: Path, spark: Standalone, brokers: Cluster[ProcessNode], format: str, rounds: int) -> None:
    """In each round a task runs twice, then an executor, a broker and the driver die in the middle of what they do."""
    topic, addresses = f"{TOPIC}-{format}", [node.address for node in brokers]
    with blocking.connect(*addresses) as client:
        client.create_topic(topic, partitions=2)
    archive = Archive(place, spark, addresses, topic, format)
    publisher = Publisher(addresses, topic)
    publisher.start()
    running = None
    try:
        for turn in range(rounds):
            running = archive.start()
            archive.grows(running, "from the start")
            if turn == 0:
                overlapping = archive.start("--once")
            paused = spark.executors()[0]
            signal_to(paused, signal.SIGSTOP)
            archive.grows(running, "with an executor that hangs")
            signal_to(paused, signal.SIGCONT)
            signal_to(paused, signal.SIGKILL)
            archive.grows(running, "without an executor")
            if turn == 0:
                assert overlapping.wait(PATIENCE_S) == 1
                assert f"has a writer: process {running.pid} on " in archive.said()
            victim = brokers.owner(topic)
            victim.sigkill()
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            assert set(lake_rows(archive.lake).values()) == {1}
            victim.restart()
    finally:
        publisher.over.set()
        publisher.join()
        if running is not None and running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    last = archive.start("--once")
    assert last.wait(PATIENCE_S) == 0, archive.said()[-2000:]
    assert lake_rows(archive.lake) == publisher.acknowledged
    assert not list((place / "lake.rostra").glob("runs/*/staging/**/*.parquet")), "files of attempts are deleted"


@pytest.mark.soak
@pytest.mark.parametrize("format", ["parquet", "delta"])
@pytest.mark.requirement("PL-10:exactly-once")
def test_whatever_is_killed_the_lake_holds_what_was_acknowledged_once_and_has_one_writer(
    format: str, executors: Standalone, brokers: Cluster[ProcessNode], tmp_path: Path
) -> None:
    rounds_of_death(tmp_path, executors, brokers, format, ROUNDS)


@pytest.mark.soak
@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_fifty_rounds_of_death(
    format: str, executors: Standalone, brokers: Cluster[ProcessNode], tmp_path: Path
) -> None:
    rounds_of_death(tmp_path, executors, brokers, format, 50)
