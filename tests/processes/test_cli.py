"""The command line against a real node."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import msgspec
import pytest

import rostra.testing
from rostra.cli.commands.pub import chunks_of_lines
from rostra.testing.process import ProcessNode
from tests.processes.command_line import (
    COMMAND,
    PATIENCE_S,
    CommandLine,
    children_of,
    environment,
    is_alive,
    wait_until,
)

NOWHERE = {"ROSTRA_NODE": "127.0.0.1:1", "ROSTRA_CONNECT_TIMEOUT_MS": "200"}


@pytest.fixture(scope="module")
def node() -> Iterator[ProcessNode]:
    with rostra.testing.process_node(fsync="never") as node:
        yield node


@pytest.fixture
def cli(node: ProcessNode, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, node.address)


# --- publishing and subscribing ---


@pytest.mark.requirement("CM-23:data-on-stdout")
def test_what_is_published_in_one_command_is_read_in_another(cli: CommandLine) -> None:
    published = cli.run("pub", "greetings", "hello", "world", "--key", "k", "--header", "from=test")
    assert (published.code, published.err) == (0, "")
    assert published.rows == [
        {"topic": "greetings", "partition": 0, "offset": 1},
        {"topic": "greetings", "partition": 0, "offset": 2},
    ]
    read = cli.run("sub", "greetings", "--from", "earliest", "--count", "2")
    assert (read.code, read.err) == (0, "")
    assert [(row["offset"], row["key"], row["value"]) for row in read.rows] == [(1, "k", "hello"), (2, "k", "world")]
    assert read.rows[0]["headers"] == [{"name": "from", "value": "test"}]


def test_lines_of_stdin_become_records_and_raw_output_gives_them_back(cli: CommandLine) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1000)) + b"\xff\xfe no text\n"
    published = cli.run("pub", "lines", "-", stdin=lines)
    assert published.rows == [{"topic": "lines", "records": 1001, "acks": "all"}]
    read = subprocess.run(
        [*COMMAND, "sub", "lines", "--from", "earliest", "--raw", "--count", "1001"],
        cwd=cli.directory,
        env=environment(cli.directory, cli.variables),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert read.stdout == lines
    last = cli.run("sub", "lines", "--from", "last:1", "--count", "1")
    assert last.rows[0]["value_base64"] == "//4gbm8gdGV4dA=="


def test_a_subscription_begins_at_the_given_start_and_ends_at_the_timeout(cli: CommandLine) -> None:
    cli.run("pub", "numbers", "a", "b", "c", "d", "e")
    at_offset = cli.run("sub", "numbers", "--from", "4", "--timeout", "3s")
    assert ([row["value"] for row in at_offset.rows], at_offset.code) == (["d", "e"], 0)
    too_few = cli.run("sub", "numbers", "--from", "last:2", "--count", "3", "--timeout", "3s")
    assert [row["value"] for row in too_few.rows] == ["d", "e"]
    assert too_few.code == 1
    assert "2 of 3 records arrived" in too_few.err


@pytest.mark.requirement("CM-6:new-topics", "CM-6:patterns")
def test_several_topics_and_patterns_are_read_together_and_new_ones_join(cli: CommandLine) -> None:
    cli.run("pub", "plant/a/temp", "1")
    cli.run("pub", "plant/a/hum", "not it")
    with cli.start("sub", "plant/+/temp", "plant/alarm", "--from", "earliest", "--count", "3") as running:
        assert running.stdout is not None
        first = msgspec.json.decode(running.stdout.readline())
        cli.run("pub", "plant/b/temp", "2")
        cli.run("pub", "plant/alarm", "3")
        rest = [msgspec.json.decode(line) for line in running.stdout.read().splitlines()]
        assert running.wait(PATIENCE_S) == 0
    got = {(row["topic"], row["value"]) for row in (first, *rest)}
    assert got == {("plant/a/temp", "1"), ("plant/b/temp", "2"), ("plant/alarm", "3")}
    wrong = cli.run("sub", "plant/#/temp")
    assert wrong.code == 2
    assert "'plant/#/temp' is not a pattern of topic names" in wrong.err


@pytest.mark.requirement("CM-6:start-time")
def test_a_subscription_begins_at_a_time_or_a_duration_before_now(cli: CommandLine, node: ProcessNode) -> None:
    noon_us = 1_714_564_800_000_000
    with node.client() as client:
        for minute in (0, 10, 5, 20):
            client.publish("timed", b"%d" % minute, timestamp=noon_us + minute * 60_000_000)
        client.publish("timed", b"now")
    since = cli.run("sub", "timed", "--from", "2024-05-01T12:06:00Z", "--count", "4")
    assert [row["value"] for row in since.rows] == ["10", "5", "20", "now"], since.err
    zoned = cli.run("sub", "timed", "--from", "2024-05-01T14:11:00+02:00", "--count", "2")
    assert [row["value"] for row in zoned.rows] == ["20", "now"], zoned.err
    recent = cli.run("sub", "timed", "--from", "-10m", "--count", "1")
    assert [row["value"] for row in recent.rows] == ["now"], recent.err


@pytest.mark.requirement("CM-3:life")
def test_topics_are_created_listed_described_and_deleted(cli: CommandLine) -> None:
    made = cli.run(
        "topic", "create", "orders/eu", "--partitions", "3", "--retention", "7d", "--retention-bytes", "1GiB"
    )
    assert made.code == 0
    assert made.rows[0]["retention_ms"] == 7 * 86_400_000
    assert (made.rows[0]["retention_bytes"], made.rows[0]["partitions"]) == (1 << 30, 3)
    assert "orders/eu" in [row["name"] for row in cli.run("topic", "list").rows]
    described = cli.run("topic", "describe", "orders/eu", "-o", "json").rows[0]
    partitions = described["partitions"]
    assert isinstance(partitions, list)
    assert [(state["partition"], state["first"]) for state in partitions] == [(0, 0), (1, 0), (2, 0)]
    assert cli.run("topic", "delete", "orders/eu").rows == [{"name": "orders/eu", "deleted": True}]
    assert "orders/eu" not in [row["name"] for row in cli.run("topic", "list").rows]


def test_a_subscription_to_a_missing_topic_says_that_it_created_it_and_no_create_refuses(cli: CommandLine) -> None:
    refused = cli.run("sub", "typo", "--no-create")
    assert refused.code == 4
    assert "error: there is no topic 'typo'" in refused.err
    assert "typo" not in [row["name"] for row in cli.run("topic", "list").rows]
    created = cli.run("sub", "typo", "--timeout", "3s")
    assert (created.code, created.err) == (
        0,
        "note: topic typo did not exist and was created; --no-create refuses that\n",
    )
    assert cli.run("sub", "typo", "--timeout", "3s", "--no-create").err == ""


def test_a_line_of_fifty_megabytes_is_read_in_linear_time() -> None:
    began = time.process_time()
    chunks = list(chunks_of_lines(_pipe_of(b"x" * (50 << 20) + b"\nsecond\r\nthird")))
    assert [len(line) for lines in chunks for line in lines] == [50 << 20, 6, 5]
    # Copying the line with every chunk of 64 KiB takes some twenty seconds.
    assert time.process_time() - began < 5


def _pipe_of(content: bytes) -> int:
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as stream:
            stream.write(content)

    Thread(target=write, daemon=True).start()
    return reading


# --- exit codes ---


def test_settings_of_a_topic_are_altered_one_by_one(cli: CommandLine) -> None:
    cli.run("topic", "create", "altered", "--partitions", "2", "--retention", "7d")
    altered = cli.run("topic", "alter", "altered", "--retention-bytes", "1GiB", "--compaction", "--tombstones", "2h")
    assert (altered.code, altered.err) == (0, "")
    (row,) = altered.rows
    assert (row["partitions"], row["retention_ms"], row["retention_bytes"]) == (2, 7 * 86_400_000, 1 << 30)
    assert (row["compaction"], row["tombstone_ms"]) == (True, 7_200_000)
    assert cli.run("topic", "alter", "altered", "--retention", "never", "--no-compaction").rows[0] == {
        **row,
        "retention_ms": 0,
        "compaction": False,
    }
    assert cli.run("topic", "alter", "altered").code == 2
    assert cli.run("topic", "alter", "nowhere", "--retention", "1d").code == 4


def test_an_unreachable_node_is_exit_code_3_with_a_hint(cli: CommandLine) -> None:
    for arguments in (["topic", "list"], ["pub", "t", "x"], ["sub", "t"]):
        ran = cli.run(*arguments, variables=NOWHERE)
        assert ran.code == 3
        assert "error: no node answers at 127.0.0.1:1" in ran.err
        assert "hint: start one with `rostra serve`, or give the right address with --node" in ran.err


@pytest.mark.requirement("CM-3:quiet")
def test_an_unknown_topic_is_exit_code_4_unless_that_is_fine(cli: CommandLine) -> None:
    for command in ("describe", "delete"):
        ran = cli.run("topic", command, "never/created")
        assert ran.code == 4
        assert "error: there is no topic 'never/created'" in ran.err
        assert "hint: create it with `rostra topic create never/created`" in ran.err
    assert cli.run("topic", "delete", "never/created", "--if-exists").code == 0


@pytest.mark.requirement("CM-3:quiet")
def test_a_topic_that_exists_is_exit_code_5_unless_that_is_fine(cli: CommandLine) -> None:
    assert cli.run("topic", "create", "twice").code == 0
    again = cli.run("topic", "create", "twice")
    assert again.code == 5
    assert "error: topic 'twice' exists already" in again.err
    assert cli.run("topic", "create", "twice", "--if-not-exists").code == 0


def test_a_data_directory_in_use_and_a_taken_port_are_explained(cli: CommandLine, node: ProcessNode) -> None:
    taken = cli.run("serve", "--data", "other", "--listen", node.address)
    assert taken.code == 1
    host, port = node.address.split(":")
    assert f"error: {node.address} is in use\nhint: try --listen {host}:" in taken.err
    assert f"--listen {node.address}" not in taken.err
    peers = cli.run("serve", "--data", "other", "--listen", "127.0.0.1:0", "--peer-listen", node.peer_address)
    assert f"error: {node.peer_address} is in use\nhint: try --peer-listen {host}:" in peers.err
    metrics = cli.run("serve", "--data", "other", "--listen", "127.0.0.1:0", "--metrics", node.address)
    assert f"error: {node.address} is in use\nhint: try --metrics {host}:" in metrics.err
    assert peers.code == metrics.code == 1
    assert port
    elsewhere = cli.run("serve", "--data", "other", "--listen", "192.0.2.7:7400")
    assert "error: this machine has no address 192.0.2.7:7400\nhint: try --listen 127.0.0.1:7400" in elsewhere.err
    used = cli.run("serve", "--data", str(node.directory / "node"), "--listen", "127.0.0.1:0")
    assert used.code == 1
    assert "is used by another node process" in used.err
    assert "Traceback" not in taken.err + used.err


def test_a_data_directory_that_cannot_be_created_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = CommandLine(tmp_path).run("serve", "--data", "file", "--listen", "127.0.0.1:0")
    assert ran.code == 1
    assert "error: File exists: file" in ran.err
    assert "hint: name a directory" in ran.err


def test_the_installed_command_is_this_one(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "rostra"
    shown = subprocess.run([command, "version"], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert f'"rostra":"{rostra.__version__}"' in shown.stdout


# --- configuration ---


def test_a_flag_wins_over_a_variable_over_a_file(node: ProcessNode, tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    port = node.address.split(":")[1]
    (tmp_path / "rostra.toml").write_text(f'[client]\nnode = "{node.address}"\nacks = "owner"\n')
    by_file = cli.run("pub", "configured", stdin=b"x\n")
    assert (by_file.code, by_file.rows[0]["acks"]) == (0, "owner")
    by_variable = cli.run("topic", "list", variables=NOWHERE)
    assert by_variable.code == 3
    by_flag = cli.run("-n", f"localhost:{port}", "topic", "list", variables={"ROSTRA_NODE": NOWHERE["ROSTRA_NODE"]})
    assert by_flag.code == 0
    shown = cli.run("config", variables={"ROSTRA_OUTPUT": "json", "ROSTRA_FSYNC": "never", "ROSTRA_NODES": "typo"})
    sources = {row["name"]: (row["value"], row["source"]) for row in shown.rows}
    assert sources["node"] == ([node.address], "rostra.toml")
    assert sources["fsync"] == ("never", "ROSTRA_FSYNC")
    assert sources["listen"] == ("127.0.0.1:7400", "default")
    assert "note: the variable ROSTRA_NODES is not a setting of Rostra" in shown.err


def test_a_mistake_in_the_file_stops_every_command_and_names_the_nearest_key(cli: CommandLine) -> None:
    (cli.directory / "rostra.toml").write_text('[client]\nnod = "127.0.0.1:7400"\n')
    ran = cli.run("topic", "list")
    assert ran.code == 2
    assert "[client] has no key 'nod'; the nearest is 'node'" in ran.err


# --- interruption ---


def test_ctrl_c_ends_a_subscriber_with_130_and_leaves_no_process(cli: CommandLine) -> None:
    cli.run("pub", "endless", "first")
    with cli.start("sub", "endless", "--from", "earliest") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        # The first record shows that it is subscribed and waits for the next.
        assert b"first" in running.stdout.readline()
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_S) == 130
        assert running.stderr.read() == b""
    assert not is_alive(running.pid)


def test_ctrl_c_ends_a_subscriber_at_once_while_the_node_is_down(tmp_path: Path) -> None:
    with rostra.testing.process_node() as node:
        cli = CommandLine(tmp_path, node.address)
        cli.run("pub", "t", "first")
        with cli.start("sub", "t", "--from", "earliest") as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert b"first" in running.stdout.readline()
            node.sigkill()
            assert b"was lost" in running.stderr.readline()
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 130
            assert running.stderr.read() == b""


def test_a_closed_pipe_ends_the_command_without_an_error(cli: CommandLine) -> None:
    cli.run("pub", "plenty", "x" * 1000, "--repeat", "2000")
    with cli.start("sub", "plenty", "--from", "earliest") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.wait(PATIENCE_S) == 0
        assert running.stderr.read() == b""


def test_ctrl_c_ends_a_simulation_with_all_its_processes(tmp_path: Path) -> None:
    with CommandLine(tmp_path).start("sim", "--seeds", "0:100000", "--workers", "2") as running:
        assert running.stderr is not None
        wait_until(lambda: len(children_of(running.pid)) >= 2, "the workers to start")
        children = children_of(running.pid)
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_S) == 130
        assert b"Traceback" not in running.stderr.read()
    wait_until(lambda: not any(map(is_alive, children)), "the workers to end")


@pytest.mark.requirement("CM-23:logs-on-stderr")
def test_ctrl_c_stops_a_node_gracefully(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    with cli.start("serve", "--listen", "127.0.0.1:0") as running:
        assert running.stderr is not None
        assert any(b'"listening"' in line for line in iter(running.stderr.readline, b""))
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_S) == 0
        assert b'"finished": true' in running.stderr.read()
    assert not is_alive(running.pid)


# --- on a terminal ---


@pytest.mark.requirement("CM-23:forms")
def test_on_a_terminal_output_is_tables_and_lines(cli: CommandLine) -> None:
    cli.run("topic", "create", "seen", "--partitions", "2")
    cli.run("pub", "seen", "hello", "--key", "k", "--partition", "1")
    table = _on_a_terminal(cli, "topic", "describe", "seen")
    assert "partition" in table
    assert "{" not in table
    line = _on_a_terminal(cli, "sub", "seen", "--from", "earliest", "--count", "1")
    assert "seen/1@1  k → hello" in line
    assert '"name":"seen"' in _on_a_terminal(cli, "topic", "list", "-o", "json")


def _on_a_terminal(cli: CommandLine, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=cli.directory,
        env=environment(cli.directory, cli.variables),
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        # Reading a pty whose other side is closed fails instead of returning end of file.
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:
        pass
    finally:
        os.close(ours)
        assert running.wait(PATIENCE_S) == 0
    return shown.decode()


@pytest.mark.requirement("CM-23:completion")
def test_the_shell_completes_commands_and_the_names_of_topics(cli: CommandLine) -> None:
    cli.run("topic", "create", "invoices")
    complete = {**cli.variables, "_ROSTRA_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    topics = cli.run(variables={**complete, "COMP_WORDS": "rostra sub invo"})
    assert topics.out.split() == ["invoices"]
    commands = cli.run(variables={**complete, "COMP_WORDS": "rostra ver", "COMP_CWORD": "1"})
    assert commands.out.split() == ["version"]
    unreachable = cli.run(variables={**complete, **NOWHERE, "COMP_WORDS": "rostra sub invo"})
    assert (unreachable.out.strip(), unreachable.err) == ("", "")


# --- restart of the node ---


def test_a_subscriber_continues_without_a_gap_after_a_restart_of_the_node(tmp_path: Path) -> None:
    with rostra.testing.process_node() as node:
        cli = CommandLine(tmp_path, node.address)
        cli.run("pub", "t", "before")
        with cli.start("sub", "t", "--from", "earliest", "--raw", "--count", "2") as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b"before\n"
            node.sigkill()
            node.start()
            assert cli.run("pub", "t", "after").code == 0
            assert running.stdout.read() == b"after\n"
            assert running.wait(PATIENCE_S) == 0
