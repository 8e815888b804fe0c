"""Measures live traffic while another subscriber reads an old topic from disk."""

import os
from pathlib import Path
from statistics import median

from benchmarks import targets
from benchmarks.contender import Endpoint, Stage
from benchmarks.estimates import median_estimate
from benchmarks.harness import (
    RoleOutcome,
    RoleProcess,
    Trial,
    TrialFailed,
    create_topic,
    flood_trial,
    undisturbed,
    wait_until_ready,
)
from benchmarks.ours import Rostra
from benchmarks.records import distinct_records
from benchmarks.throughput import RECORD_BYTES, absence
from benchmarks.workbench import Workbench

PAIRS = 5
OLD_RECORDS = 200_000
OLD_RECORD_BYTES = 1024
LIVE_RECORDS = 1_000_000


def run(bench: Workbench) -> None:
    bench.say(f"catch-up: live traffic beside a reader of old records, {PAIRS} pairs")
    ours = Rostra(fsync=True)
    old = distinct_records(bench.scaled(OLD_RECORDS), OLD_RECORD_BYTES)
    live = distinct_records(bench.scaled(LIVE_RECORDS), RECORD_BYTES)
    with bench.running(ours) as endpoint:
        if endpoint is None:
            bench.judge(targets.CATCH_UP, None, absence(bench, ours))
            return
        try:
            old_topic = create_topic(ours, endpoint)
            flood_trial(ours, endpoint, old, topic=old_topic)
            costs = [pair_cost(ours, endpoint, live, old_topic, len(old), turn) for turn in range(1 + PAIRS)][1:]
        except TrialFailed as error:
            bench.judge(targets.CATCH_UP, None, f"failed: {str(error).splitlines()[-1]}")
            return
    bench.say(f"  cost in %: {', '.join(f'{cost:.1f}' for cost in costs)}; median {median(costs):.1f}")
    bench.judge(
        targets.CATCH_UP,
        median_estimate(costs),
        "the reader stands back from the processors and decodes nothing; page cache dropped",
    )


def pair_cost(
    ours: Rostra,
    endpoint: Endpoint,
    live: list[bytes],
    old_topic: str,
    old_count: int,
    turn: int,
) -> float:
    """The percentage by which the live rate drops; the order of the two halves alternates."""

    def alone() -> Trial:
        return flood_trial(ours, endpoint, live)

    def beside_a_reader() -> Trial:
        return trial_beside_a_reader(ours, endpoint, live, old_topic, old_count)

    order = [alone, beside_a_reader] if turn % 2 else [beside_a_reader, alone]
    rates = {trial: undisturbed(trial).per_second for trial in order}
    return 100 * (1 - rates[beside_a_reader] / rates[alone])


def trial_beside_a_reader(ours: Rostra, endpoint: Endpoint, live: list[bytes], old_topic: str, old_count: int) -> Trial:
    def reader(stage: Stage) -> RoleOutcome:
        return RoleOutcome(received=ours.read_again(endpoint, old_topic, stage, old_count))

    if endpoint.folder is not None:
        drop_page_cache(endpoint.folder)
    role = RoleProcess(reader)
    try:
        wait_until_ready([role])
        # The reader is part of the trial: its processor time is not a stranger's.
        trial = flood_trial(ours, endpoint, live, companion_pids=(role.pid,))
        role.start_event.set()
        if role.wait_for_outcome().received == 0:
            raise TrialFailed("the reader of old records received none")
    finally:
        role.stop()
    return trial


def drop_page_cache(folder: Path) -> None:
    """Drops the page cache, so that old records are read from disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # dirty pages cannot be dropped
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
