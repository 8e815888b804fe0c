"""`rostra sim`: what it prints and how it exits."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from rostra.errors import InvalidSetting
from rostra.safeguards import Safeguard
from rostra.simulator.command import LINE_CHARACTERS_MAX, parse_seeds, replay_command, simulate, summary_json
from rostra.simulator.faults.fault_plan import CLUSTER_FAULTS, Fault
from rostra.simulator.runner import EVERY_FAULT_FROM_SEEDS, Summary
from rostra.simulator.seed import SeedResult


def result(seed: int, violations: tuple[str, ...] = ()) -> SeedResult:
    return SeedResult(seed, f"digest {seed}", violations, dict.fromkeys(Fault, 1), 300, 1, 1, 0.1)


def test_clean_seeds_exit_with_zero_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("0:2", workers=1, fabric="raft") == 0
    printed = capsys.readouterr().out
    assert all(fault.value in printed for fault in Fault)


def test_json_goes_to_stdout_as_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("0:1", workers=1, output="json") == 0
    printed = msgspec.json.decode(capsys.readouterr().out)
    assert (printed["seeds"], printed["clean"], printed["failed"]) == (1, True, [])
    assert set(printed["faults"]) == {fault.value for fault in Fault}


def test_a_failing_seed_exits_with_one_and_prints_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("0:16", nodes=1, workers=1, without=["dedup"]) == 1
    printed = capsys.readouterr().err
    assert "a record is stored once" in printed
    assert "--trace --without dedup" in printed
    lines = printed.splitlines()
    assert lines[-1].startswith("failed: ")
    assert "--trace --without dedup" in lines[-2]
    assert any("ends with:" in line for line in lines)
    assert max(len(line) for line in lines if "bytes" in line) <= LINE_CHARACTERS_MAX + 2


def test_a_trace_shows_a_single_seed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("0", trace=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1000
    assert any("Welcome" in line for line in lines)


@pytest.mark.parametrize("written", ["", "a:b", "5:5", "9:3", "1:2:3", "-1:4", ":7"])
def test_seeds_that_cannot_be_read_are_refused(written: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_seeds(written)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fabric": "paper"},
        {"nodes": 2},
        {"without": ["luck"]},
        {"rerun": 2.0},
        {"output": "xml"},
        {"trace": True, "seeds": "0:2"},
    ],
    ids=str,
)
def test_wrong_use_says_what_was_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        simulate(**{"seeds": "0", **wrong})  # type: ignore[arg-type]


def test_the_end_of_a_range_is_not_in_it_and_a_single_seed_is() -> None:
    assert (parse_seeds("3:5"), parse_seeds("4711")) == (range(3, 5), range(4711, 4712))


def test_the_command_to_replay_a_seed_names_what_was_switched_off() -> None:
    off = frozenset({Safeguard.CHECKSUM})
    assert replay_command(7, 1, off) == "rostra sim --seeds 7 --nodes 1 --trace --without checksum"
    assert replay_command(7, 0, frozenset()) == "rostra sim --seeds 7 --trace"


def test_a_fault_that_never_took_effect_fails_a_run_of_many_seeds() -> None:
    summary = Summary()
    for seed in range(EVERY_FAULT_FROM_SEEDS):
        summary.add(result(seed))
    assert summary.clean
    summary.faults[Fault.FLIPPED] = 0
    assert (summary.clean, summary.missing) == (False, [Fault.FLIPPED])


def test_a_single_node_needs_no_faults_between_nodes() -> None:
    summary = Summary(nodes=1)
    for seed in range(EVERY_FAULT_FROM_SEEDS):
        summary.add(result(seed))
    for fault in CLUSTER_FAULTS:
        summary.faults[fault] = 0
    assert summary.clean
    summary.expected = tuple(Fault)
    assert summary.missing == list(CLUSTER_FAULTS)


def test_a_rerun_with_another_digest_fails_the_run() -> None:
    summary = Summary()
    summary.add(result(1))
    summary.compare({1: "digest 1"})
    assert summary.clean
    summary.compare({1: "another"})
    assert (summary.clean, summary.mismatched, summary_json(summary, "raft")["digest_mismatches"]) == (False, [1], [1])


def test_the_simulator_runs_as_a_module_with_its_own_flags() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "rostra.simulator", "--seeds", "0:3", "--workers", "2", "--rerun", "34%", "-o", "json"],
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    printed = msgspec.json.decode(ran.stdout)
    assert (printed["seeds"], printed["rerun"], printed["digest_mismatches"]) == (3, 1, [])
    wrong = subprocess.run([sys.executable, "-m", "rostra.simulator", "--seeds", "x"], capture_output=True, check=False)
    assert wrong.returncode == 2
    assert b"seeds" in wrong.stderr
