"""What it costs to have a trace of everything."""

from statistics import median

from benchmarks import targets
from benchmarks.contender import Endpoint
from benchmarks.estimates import median_estimate
from benchmarks.harness import Trial, TrialFailed, flood_trial, undisturbed
from benchmarks.ours import Rostra
from benchmarks.records import distinct_records
from benchmarks.throughput import RECORD_BYTES, absence
from benchmarks.workbench import Workbench

PAIRS = 15
"""One trial takes a second, and differs from the next by a fifth: the median of few says nothing of a twentieth."""
RECORDS = 2_000_000


def run(bench: Workbench) -> None:
    pairs = 5 if bench.is_quick else PAIRS
    bench.say(f"trace: records with and without traces of node, publisher and subscriber, {pairs} pairs")
    plain, traced = Rostra(fsync=False), Rostra(fsync=False, traced=True)
    records = distinct_records(bench.scaled(RECORDS), RECORD_BYTES)
    with bench.running(plain) as one, bench.running(traced) as other:
        if one is None or other is None:
            bench.judge(targets.TRACE, None, absence(bench, plain, traced))
            return
        try:
            costs = [pair_cost((plain, one), (traced, other), records, turn) for turn in range(1 + pairs)][1:]
        except TrialFailed as error:
            bench.judge(targets.TRACE, None, f"failed: {str(error).splitlines()[-1]}")
            return
    bench.say(f"  cost in %: {', '.join(f'{cost:.1f}' for cost in costs)}; median {median(costs):.1f}")
    bench.judge(targets.TRACE, median_estimate(costs), "one publisher, one subscriber, no fsync, all three traced")


def pair_cost(
    plain: tuple[Rostra, Endpoint], traced: tuple[Rostra, Endpoint], records: list[bytes], turn: int
) -> float:
    """Percent by which the rate drops; which half goes first alternates."""

    def without() -> Trial:
        return flood_trial(*plain, records)

    def within() -> Trial:
        return flood_trial(*traced, records)

    order = [without, within] if turn % 2 else [within, without]
    rates = {trial: undisturbed(trial).per_second for trial in order}
    return 100 * (1 - rates[within] / rates[without])
