"""One hundred subscribers, one of which takes nothing: what the others pay for it."""

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
    require_same,
    undisturbed,
    wait_until_ready,
)
from benchmarks.ours import Rostra
from benchmarks.records import Inbox, distinct_records
from benchmarks.throughput import RECORD_BYTES, absence
from benchmarks.workbench import Workbench

PAIRS = 7
OTHERS_BY_PROCESS = (50, 49)
RECORDS = 60_000


def run(bench: Workbench) -> None:
    bench.say(f"stall: one of 100 subscribers takes nothing, {PAIRS} pairs")
    ours = Rostra(fsync=True)
    records = distinct_records(bench.scaled(RECORDS), RECORD_BYTES)
    with bench.running(ours) as endpoint:
        if endpoint is None:
            bench.judge(targets.STALL, None, absence(bench, ours))
            return
        try:
            costs = [pair_cost(ours, endpoint, records, turn) for turn in range(1 + PAIRS)][1:]
        except TrialFailed as error:
            bench.judge(targets.STALL, None, f"failed: {str(error).splitlines()[-1]}")
            return
    bench.say(f"  cost in %: {', '.join(f'{cost:.1f}' for cost in costs)}; median {median(costs):.1f}")
    bench.judge(
        targets.STALL,
        median_estimate(costs),
        "the stalled one then received every record, in order",
    )


def pair_cost(ours: Rostra, endpoint: Endpoint, records: list[bytes], turn: int) -> float:
    """Percent by which the others' rate drops; which half goes first alternates."""

    def alone() -> Trial:
        topic = create_topic(ours, endpoint)
        return flood_trial(ours, endpoint, records, topic=topic, subscribers_by_process=OTHERS_BY_PROCESS)

    def beside_a_stalled_one() -> Trial:
        return stalled_trial(ours, endpoint, records)

    order = [alone, beside_a_stalled_one] if turn % 2 else [beside_a_stalled_one, alone]
    rates = {trial: undisturbed(trial).per_second for trial in order}
    return 100 * (1 - rates[beside_a_stalled_one] / rates[alone])


def stalled_trial(ours: Rostra, endpoint: Endpoint, records: list[bytes]) -> Trial:
    topic = create_topic(ours, endpoint)

    def stalled(stage: Stage) -> RoleOutcome:
        inbox = Inbox(len(records))
        ours.subscribe_stalled(endpoint, topic, stage, inbox)
        require_same(inbox, records)
        return RoleOutcome(received=len(inbox))

    role = RoleProcess(stalled)
    try:
        wait_until_ready([role])
        trial = flood_trial(ours, endpoint, records, topic=topic, subscribers_by_process=OTHERS_BY_PROCESS)
        role.start_event.set()
        role.wait_for_outcome()
    finally:
        role.stop()
    return trial
