"""A standalone Spark cluster on this machine: a master and workers as processes, with executors that can be killed.

>>> with standalone(tmp_path) as cluster:  # doctest: +SKIP
...     session(master=cluster.url, conf=cluster.conf)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from rostra.spark.environment.java import provide_java
from tests.processes.command_line import wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
LOOPBACK = "127.0.0.1"
PATIENCE_S = 400.0
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Standalone:
    def __init__(self, directory: Path, workers: int) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            log = self._start("master", "org.apache.spark.deploy.master.Master")
            self.url = self._find(log, rb"Starting Spark master at (spark://\S+)")
            for number in range(workers):
                place = directory / f"worker-{number}"
                worker = ("--cores", "1", "--memory", "1g", "--work-dir", str(place), self.url)
                log = self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *worker)
                self._find(log, rb"(Successfully registered with master)")
        except BaseException:
            self.stop()
            raise

    @property
    def conf(self) -> dict[str, str]:
        """What a driver on this machine needs, and what keeps it small."""
        return {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.sql.shuffle.partitions": "2",
            # A busy machine takes its time to start Python.
            "spark.python.authenticate.socketTimeout": "300s",
            # An executor that is killed is replaced, however often.
            "spark.deploy.maxExecutorRetries": "-1",
        }

    def _start(self, name: str, main: str, *arguments: str) -> Path:
        provide_java()
        log = self._directory / f"{name}.log"
        address = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        variables = {
            "SPARK_HOME": str(SPARK_CLASS.parent.parent),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.deploy.maxExecutorRetries=-1",
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [str(SPARK_CLASS), main, *address, *arguments],
                    env={**os.environ, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        return log

    def _find(self, log: Path, pattern: bytes) -> str:
        wait_until(lambda: re.search(pattern, log.read_bytes()) is not None, f"{pattern!r} in {log.name}", PATIENCE_S)
        found = re.search(pattern, log.read_bytes())
        assert found is not None
        return found[1].decode()

    def executors(self) -> list[int]:
        """The process ids of the executors that the workers have started."""
        return sorted(pid for worker in self._processes[1:] for pid in _children(worker.pid) if _runs(pid, EXECUTOR))

    def stop(self) -> None:
        for pid in self.executors():
            signal_to(pid, signal.SIGKILL)
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def _runs(pid: int, program: bytes) -> bool:
    with suppress(OSError):
        return program in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def signal_to(pid: int, number: signal.Signals) -> None:
    """To an executor, which may have ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[Standalone]:
    cluster = Standalone(directory, workers)
    try:
        yield cluster
    finally:
        cluster.stop()
