"""The pipelines as commands: in processes of their own where they are killed, in this one's session where they end."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from rich.console import Console

import rostra.testing
from rostra import blocking
from rostra.cli.app import run
from rostra.cli.exit_codes import ExitCode
from rostra.demo.run import run as demo
from rostra.errors import InvalidSetting
from rostra.spark.pipelines.archive import archive_topics
from tests.processes.command_line import COMMAND, environment, wait_until
from tests.spark.topics import STAMP_US

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


def test_errors_are_told_in_one_line_with_the_exit_code_of_their_kind(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def told(*arguments: str) -> tuple[int, str]:
        code = ends(*arguments)
        said = capfd.readouterr().err
        assert "Traceback" not in said and "should not have happened" not in said
        return code, said

    lake = str(here / "lake")
    with rostra.testing.process_node(directory=here / "node") as node:
        at = ("--once", "--node", node.address)
        for command in ("archive", "rollup"):
            code, said = told(command, "orders", "--lake", lake, *at)
            assert code == ExitCode.UNKNOWN and "error: there is no topic 'orders'" in said
        code, said = told("archive", "orders", "--lake", "s3a://bucket/lake", *at)
        assert code == ExitCode.USAGE and "hadoop-aws" in said
        code, said = told("archive", "orders", "--lake", lake, "--format", "orc", *at)
        assert code == ExitCode.USAGE and "'orc' is none of parquet, delta" in said
    code, said = told("archive", "orders", "--lake", lake, "--once", "--node", "127.0.0.1:1")
    assert code == ExitCode.UNREACHABLE and "error: no node answers at 127.0.0.1:1" in said
    code, said = told("audit", str(here / "no-traces"))
    assert code == ExitCode.USAGE and "there are none in" in said
    code, said = told("compact", str(here / "no-lake"), "--to", lake)
    assert code == ExitCode.USAGE and "there is no lake" in said


def test_a_rollup_says_how_many_windows_it_wrote_and_how_many_are_open(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with rostra.testing.process_node(directory=here / "node") as node:
        with blocking.connect(node.address) as client:
            client.create_topic("orders")
            for moment_s in (0, 1, 20):
                client.publish("orders", b"x", timestamp=STAMP_US + 1_000_000 * moment_s)
        options = ("--window", "1 second", "--watermark", "5 seconds", "--once", "--node", node.address)
        assert ends("rollup", "orders", "--lake", str(here / "figures"), "--limit", "2", *options) == 0
        told = capfd.readouterr()
        assert '{"records":3,"windows":2,"open":1}' in told.out.replace(" ", "")
        assert "open windows are written when later records" in told.err


def test_spark_connect_is_refused_with_what_to_do(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    archive = ("archive", "orders", "--lake", str(here / "lake"))
    assert ends(*archive, "--master", "sc://127.0.0.1:1") == ExitCode.USAGE
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    assert ends(*archive) == ExitCode.USAGE
    assert capfd.readouterr().err.count("which Spark Connect has elsewhere") == 2

    class SparkSession:
        """What `rostra.spark.pipelines` is given by a program that uses Spark Connect."""

    SparkSession.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(InvalidSetting, match="which Spark Connect has elsewhere"):
        archive_topics(SparkSession(), {"subscribe": "orders"}, "lake")  # type: ignore[arg-type]


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
