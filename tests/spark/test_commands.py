"""The pipelines as commands: in processes of their own where they are killed, in this one's session where they end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import rostra.testing
from rostra import blocking
from rostra.cli.app import run
from rostra.demo.run import run as demo
from rostra.testing.clusters import Cluster
from rostra.testing.process import ProcessNode
from tests.processes.command_line import COMMAND, environment, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 400.0
QUICK = ("--conf", "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1", "--master", "local[2]")


def start(place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """In a group of its own, so that all of it can be killed at once: the command, Spark, and its Python workers."""
    with (place / "pipeline.log").open("ab") as log:
        return subprocess.Popen(
            [*COMMAND, "pipeline", *arguments, *QUICK],
            cwd=place,
            env=environment(place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )


@pytest.fixture
def here(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `ends` runs: starting Spark again takes longer than most commands."""
    monkeypatch.chdir(tmp_path)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def ends(*arguments: str) -> int:
    """A command that ends by itself, in the session of the tests; its exit code."""
    return run(["pipeline", *arguments])


def kill(running: subprocess.Popen[bytes]) -> None:
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def lake_rows(lake: Path) -> Counter[bytes]:
    """As a reader sees it that knows nothing of Spark."""
    if not list(lake.glob("topic=*/date=*/*.parquet")):
        return Counter()
    return Counter(ds.dataset(lake, format="parquet").to_table(["value"])["value"].to_pylist())


def _more_than(lake: Path, records: int, running: subprocess.Popen[bytes]) -> bool:
    assert running.poll() is None, (lake.parent / "pipeline.log").read_text()[-2000:]
    return sum(lake_rows(lake).values()) > records


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


def rounds_of_death(place: Path, cluster: Cluster[ProcessNode], rounds: int) -> None:
    """Spark and a node die in every round, in the middle of what they do."""
    lake, addresses = place / "lake", [node.address for node in cluster]
    archive = ["archive", "orders", "--lake", str(lake), "--every", "200ms", "--limit", "50000"]
    archive += [part for address in addresses for part in ("--node", address)]
    with blocking.connect(*addresses) as client:
        client.create_topic("orders", partitions=2)
    publisher = Publisher(addresses, "orders")
    publisher.start()
    try:
        for _ in range(rounds):
            before = sum(lake_rows(lake).values())
            running = start(place, *archive)
            wait_until(partial(_more_than, lake, before, running), "more in the lake", PATIENCE_S)
            victim = cluster.owner("orders")
            victim.sigkill()
            kill(running)
            assert set(lake_rows(lake).values()) == {1}
            victim.restart()
    finally:
        publisher.over.set()
        publisher.join()
    assert ends(*archive, "--once") == 0
    assert lake_rows(lake) == publisher.acknowledged


@pytest.mark.requirement("PL-10:exactly-once")
def test_killed_with_all_its_workers_and_a_node_besides_the_lake_holds_what_was_acknowledged_once(
    here: Path,
) -> None:
    with rostra.testing.process_cluster(3, directory=here / "nodes", fsync="never") as cluster:
        rounds_of_death(here, cluster, 2)


@pytest.mark.soak
def test_twenty_rounds_of_death(here: Path) -> None:
    with rostra.testing.process_cluster(3, directory=here / "nodes", fsync="never") as cluster:
        rounds_of_death(here, cluster, 20)


@pytest.mark.requirement("PL-14:results", "PL-15")
def test_from_traces_to_a_page_and_from_ctrl_c_to_the_next_start(here: Path) -> None:
    """`rollup` interrupted and started again, `audit` and `report` over the traces of commands."""
    # Whole paths: Java keeps the directory in which it was started.
    traces, figures = str(here / "traces"), str(here / "figures")
    with rostra.testing.process_node(directory=here / "node", arguments=("--trace", traces)) as node:
        at = ("--node", node.address)
        with blocking.connect(node.address, trace=traces) as client:
            client.create_topic("orders")
            with client.subscribe("orders", start="earliest") as subscription:
                for n in range(40):
                    client.publish("orders", b"%d" % n)
                got = 0
                while got < 40 and (batch := subscription.poll(60)) is not None:
                    got += len(batch)
        rollup = ("rollup", "orders", "--lake", figures, "--window", "1 second", "--watermark", "0 seconds", *at)
        running = start(here, *rollup, "--every", "200ms")
        log = here / "pipeline.log"
        wait_until(lambda: b"40 records" in log.read_bytes(), "a batch is told", PATIENCE_S)
        assert "/s, 0 behind" in log.read_text()
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_S) == 130
        with blocking.connect(node.address) as client:
            # By its own time it comes later than all windows there are, which are over then.
            client.publish("orders", b"later", timestamp=time.time_ns() // 1000 + 600_000_000)
        assert ends(*rollup, "--once") == 0
    assert ends("audit", traces, "--save", "audit.json") == 0
    assert ends("report", "audit.json", "--windows", figures) == 0
    assert "Every record arrived, once and in order." in (here / "report.html").read_text()
    windows = pq.read_table(figures, columns=["records"])["records"].to_pylist()
    assert sum(windows) == 40


def test_a_failing_query_is_told_in_one_line_with_what_to_do(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ends("archive", "orders", "--lake", str(here / "lake"), "--once", "--node", "127.0.0.1:1") == 1
    told = capfd.readouterr().err
    assert "error: the query failed: no node answers at 127.0.0.1:1" in told
    assert "hint: fix the cause and start it again" in told
    assert "Traceback" not in told


@pytest.mark.requirement("PL-13:cluster", "PL-14:results")
def test_the_demo_ends_with_an_audit_a_rollup_and_the_path_of_a_report(here: Path) -> None:
    screen = StringIO()
    shown = Console(file=screen, width=80)
    assert demo(records_per_publisher=300, kills=0, duration_s=0.5, with_spark=True, console=shown) == 0
    told = screen.getvalue()
    (every,) = re.findall(r"^all .*$", told, re.MULTILINE)
    created, subscribed, sent, expected, delivered, *wrong = every.split()[1:]
    assert (created, subscribed, sent, expected, delivered) == ("2", "4", "1,200", "2,400", "2,400")
    assert wrong == ["0", "0", "0", "100", "%"]
    assert "rollup of the topics in windows of 2 s" in told
    (page,) = re.findall(r"^report: (.+)$", told, re.MULTILINE)
    assert "Every record arrived, once and in order." in Path(page).read_text()
