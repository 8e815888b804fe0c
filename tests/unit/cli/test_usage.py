"""Usage errors, help texts and exit codes of every command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import rostra
from rostra import errors
from rostra.cli.app import app, run
from rostra.cli.exit_codes import MEANINGS, ExitCode, exit_code_of
from tools import cli_docs

COMMANDS = dict(cli_docs.commands(typer.main.get_command(app), "rostra"))


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


USAGE_ERRORS = [
    (["frobnicate"], "frobnicate"),
    (["pub"], "TOPIC"),
    (["serve", "--nope"], "--nope"),
    (["pub", "a b", "x"], "'a b' is not a topic name"),
    (["topic", "create", "../../escape"], "not a topic name"),
    (["sub", "t", "--from", "yesterday"], "yesterday"),
    (["sub", "t", "--from", "-soon"], "-soon"),
    (["sub", "t", "--from", "2026-13-01"], "2026-13-01"),
    (["sub"], "TOPIC..."),
    (["sub", "a/#/b"], "not a pattern"),
    (["sub", "fine", "a b"], "'a b' is not a topic name"),
    (["sub", "t", "--timeout", "soon"], "soon"),
    (["pub", "t", "x", "--acks", "maybe"], "maybe"),
    (["pub", "t", "x", "--header", "novalue"], "novalue"),
    (["topic", "create", "t", "--segment-bytes", "1B"], "segment_bytes"),
    (["-n", "not-an:address", "topic", "list"], "not-an:address"),
    (["topic", "list", "-o", "xml"], "xml"),
    (["topic", "create", "t", "--partitions", "0"], "--partitions"),
    (["topic", "create", "t", "--retention", "soon"], "soon"),
    (["topic", "create", "t", "--retention", "7"], "'7' has no unit"),
    (["topic", "create", "t", "--retention-bytes", "4096"], "'4096' has no unit"),
    (["sub", "t", "--timeout", "5"], "'5' has no unit"),
    (["serve", "--stop-deadline", "5"], "'5' has no unit"),
    (["serve", "--limit", "speed=9"], "speed"),
    (["serve", "--fsync", "sometimes"], "sometimes"),
    (["--config", "missing.toml", "config"], "missing.toml"),
    (["config", "nonsense"], "nonsense"),
    (["serve", "--stop-deadline", "never"], "--stop-deadline "),
    (["serve", "--limit", "heartbeat_ms=often"], "--limit heartbeat_ms "),
    (["sim", "--rerun", "some"], "some"),
    (["demo", "nonsense"], "nonsense"),
    (["demo", "raft-single", "--kills", "1"], "--kills"),
    (["demo", "--duration", "long"], "long"),
    (["cluster", "remove"], "NODE"),
    (["cluster", "transfer", "orders/0"], "NODE"),
    (["sim", "--rerun", "150%"], "150%"),
    (["sub", "t", "--tries", "3"], "--name"),
    (["sub", "t", "--name", "n", "--partition", "0"], "--partition"),
    (["subscription", "reset", "n"], "--to"),
    (["subscription", "reset", "n", "--to", "yesterday"], "yesterday"),
    (["user", "receive", "alice", "--timeout", "soon"], "soon"),
]


@pytest.mark.parametrize(("arguments", "named"), USAGE_ERRORS, ids=[" ".join(use) for use, _ in USAGE_ERRORS])
def test_a_usage_error_names_the_wrong_argument_and_exits_with_2(
    capfd: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert run(arguments) == 2
    shown = capfd.readouterr()
    error, *hints = shown.err.splitlines()
    assert error.startswith("error: ")
    assert named in error
    assert all(hint.startswith("hint: ") for hint in hints)
    assert len(hints) <= 1
    assert shown.out == ""


def test_version_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capfd.readouterr().out == f"rostra {rostra.__version__}\n"


def test_every_promised_command_exists() -> None:
    promised = "serve topic cluster pub sub sim bench demo config version"
    assert {f"rostra {name}" for name in promised.split()} <= COMMANDS.keys()
    assert {f"rostra topic {name}" for name in ("create", "delete", "list", "describe")} <= COMMANDS.keys()
    assert {f"rostra subscription {name}" for name in ("list", "lag", "reset", "delete")} <= COMMANDS.keys()
    verbs = "create subscribe unsubscribe publish receive destroy"
    assert {f"rostra user {name}" for name in verbs.split()} <= COMMANDS.keys()
    promised = "status members add remove transfer"
    assert {f"rostra cluster {name}" for name in promised.split()} <= COMMANDS.keys()


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_every_command_has_an_example_of_it(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*path.split()[1:], "--help"]) == 0
    shown = capfd.readouterr().out
    assert "<bool>" not in shown, "a flag takes no value"
    _, heading, examples = shown.partition("Examples:")
    assert heading
    words = path.split()
    assert any(_uses(line.split(), words) for line in examples.splitlines())


def _uses(line: list[str], words: list[str]) -> bool:
    """Whether the words occur in this order, possibly with options between them."""
    rest = iter(line)
    return all(word in rest for word in words)


@pytest.mark.requirement("CM-23:exit-codes")
def test_the_help_lists_every_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    shown = " ".join(capfd.readouterr().out.split())
    for code, meaning in MEANINGS.items():
        assert f"{int(code)} {meaning}" in shown


def test_the_generated_page_is_up_to_date() -> None:
    assert cli_docs.PAGE.read_text(encoding="utf-8") == cli_docs.page(), "run `python -m tools.cli_docs`"


def _all_errors(base: type[errors.RostraError] = errors.RostraError) -> Iterator[type[errors.RostraError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _all_errors(kind)


def test_every_error_has_a_documented_exit_code() -> None:
    for kind in _all_errors():
        code = exit_code_of(kind.__new__(kind))
        assert code in MEANINGS
        assert code not in (ExitCode.OK, ExitCode.INTERRUPTED)


def test_an_internal_error_is_one_line_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("rostra.cli.commands.config.begin", broken)
    assert run(["version"]) == 1
    shown = capfd.readouterr().err
    assert "ZeroDivisionError: oops" in shown
    assert "Traceback" not in shown


def test_bench_outside_a_checkout_says_where_it_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rostra, "__file__", str(tmp_path / "site-packages" / "rostra" / "__init__.py"))
    assert run(["bench"]) == 1
    shown = capfd.readouterr().err
    assert "error: the benchmarks are not part of the installed package" in shown
    assert "hint: run `make bench` or `rostra bench` in a source checkout" in shown


def test_help_does_not_import_what_it_does_not_need() -> None:
    heavy = ["asyncio", "uvloop", "structlog", "prometheus_client", "pyarrow", "rostra.client", "rostra.runtime.node"]
    script = f"import sys, rostra.cli.app; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.strip() == "[]"
