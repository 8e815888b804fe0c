"""Named subscriptions and users on the command line, against a real node. The commands run inside this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rostra.testing
from rostra.cli.app import run
from rostra.fabric.registry import FABRICS
from rostra.testing.embedded import EmbeddedNode
from tests.processes.command_line import Completed, wait_until

Commands = Callable[..., Completed]


@pytest.fixture(scope="module", params=sorted(FABRICS))
def node(request: pytest.FixtureRequest) -> Iterator[EmbeddedNode]:
    with rostra.testing.node(fsync="never", fabric=request.param) as started:
        yield started


@pytest.fixture
def cli(
    node: EmbeddedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Commands:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROSTRA_NODE", node.address)

    def ran(*arguments: str) -> Completed:
        code = run(arguments)
        return Completed(code, *capfd.readouterr())

    return ran


def lag(cli: Commands, name: str) -> list[object]:
    shown = cli("subscription", "lag", name)
    assert shown.code == 0, shown.err
    return [row["lag"] for row in shown.rows]


@pytest.mark.requirement("CM-17:lag")
def test_a_named_subscription_continues_at_its_position_and_its_lag_is_shown(cli: Commands) -> None:
    cli("pub", "orders", "a", "b", "c", "d")
    first = cli("sub", "orders", "--name", "billing", "--from", "earliest", "--count", "2", "--raw")
    assert (first.code, first.out) == (0, "a\nb\n")
    assert lag(cli, "billing") == [2]
    seen = cli("sub", "orders", "--group", "billing", "--count", "1", "--no-ack", "--raw")
    assert seen.out == "c\n"
    again = cli("sub", "orders", "--name", "billing", "--count", "2", "--raw")
    assert again.out == "c\nd\n"
    assert lag(cli, "billing") == [0]
    too_few = cli("sub", "orders", "--name", "billing", "--timeout", "3s", "--count", "1")
    assert (too_few.code, "0 of 1 records arrived" in too_few.err) == (1, True)


def test_a_named_subscription_is_listed_reset_and_deleted(cli: Commands) -> None:
    cli("pub", "bills", "a", "b", "c", "d")
    cli("sub", "bills", "--name", "accounting", "--from", "earliest", "--count", "4", "--raw")
    listed = cli("subscription", "list")
    assert ("accounting", 0) in [(row["name"], row["members"]) for row in listed.rows]
    reset = cli("subscription", "reset", "accounting", "--to", "last:1")
    assert (reset.code, [row["lag"] for row in reset.rows]) == (0, [1])
    wrong = cli("subscription", "reset", "accounting", "--to", "99")
    assert (wrong.code, "offset 99 is outside" in wrong.err) == (1, True)
    assert cli("subscription", "delete", "accounting").code == 0
    missing = cli("subscription", "lag", "accounting")
    assert missing.code == 4
    assert "error: there is no subscription named 'accounting'" in missing.err
    assert cli("subscription", "delete", "accounting", "--if-exists").code == 0


@pytest.mark.requirement("FL-3:commands", "FL-9:creates")
def test_a_user_is_created_subscribed_receives_records_and_is_deleted(cli: Commands) -> None:
    assert cli("user", "create", "alice").code == 0
    twice = cli("user", "create", "alice")
    assert (twice.code, "already" in twice.err) == (1, True)
    assert cli("user", "subscribe", "alice", "news").code == 0
    assert cli("user", "publish", "alice", "news", "hello").code == 0
    got = cli("user", "receive", "alice", "--raw")
    assert (got.code, got.out) == (0, "hello\n")
    none = cli("user", "receive", "alice", "--timeout", "3s")
    assert (none.code, none.out) == (1, "")
    assert cli("user", "unsubscribe", "alice", "news").code == 0
    assert cli("user", "unsubscribe", "alice", "news").code == 4
    assert cli("user", "destroy", "alice").code == 0
    assert cli("user", "receive", "alice").code == 4


@pytest.mark.parametrize("command", [("topic", "list"), ("subscription", "lag", "missing")], ids=["ends", "fails"])
def test_a_command_that_has_ended_waits_for_nothing(cli: Commands, command: tuple[str, ...]) -> None:
    cli(*command)
    wait_until(lambda: not any(isinstance(one, threading.Timer) for one in threading.enumerate()), "its timers to end")
