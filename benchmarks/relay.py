"""1 KiB records through a node, beside the same bytes through a relay that looks at nothing."""

from benchmarks import targets
from benchmarks.estimates import Estimate, median_estimate, ratio_estimate
from benchmarks.findings import Figure, Target
from benchmarks.harness import flood_trial
from benchmarks.limits import RelayLimit, fdatasync_delays_s
from benchmarks.ours import Rostra
from benchmarks.records import distinct_records
from benchmarks.throughput import absence
from benchmarks.workbench import Measurement, Workbench

RECORD_BYTES = 1024
RECORDS = 300_000
RELAY_BYTES = 1 << 30
RELAY_NAME = "relay, Python and uvloop"


def run(bench: Workbench) -> None:
    bench.say("limits: a relay and the disk, with 1 KiB records through Rostra beside")
    delays_us = [delay_s * 1e6 for delay_s in fdatasync_delays_s(bench.servers.new_folder("disk"))]
    note_limit(bench, "fdatasync of 64 KiB appends", "µs p50", median_estimate(delays_us))
    limit = RelayLimit(bench.servers)
    unsynced, synced = Rostra(fsync=False), Rostra(fsync=True)
    records = distinct_records(bench.scaled(RECORDS), RECORD_BYTES)
    with bench.running(unsynced) as unsynced_endpoint, bench.running(synced) as synced_endpoint:
        measurements: dict[str, Measurement] = {RELAY_NAME: lambda: limit.trial(bench.scaled(RELAY_BYTES))}
        if unsynced_endpoint is not None:
            measurements[unsynced.name] = lambda: flood_trial(unsynced, unsynced_endpoint, records)
        if synced_endpoint is not None:
            measurements[synced.name] = lambda: flood_trial(synced, synced_endpoint, records)
        trials = bench.interleaved(measurements, bench.rounds)
    bench.servers.stop(limit.endpoint.pids)
    rates = {
        name: [trial.per_second * (1 if name == RELAY_NAME else RECORD_BYTES) / 1e6 for trial in done]
        for name, done in trials.items()
    }
    if RELAY_NAME in rates:
        note_limit(bench, RELAY_NAME, "MB/s", median_estimate(rates[RELAY_NAME]))
    pairs: list[tuple[Rostra, Target]] = [
        (unsynced, targets.RELAY), (synced, targets.RELAY_FSYNC)
    ]  # fmt: skip
    for ours, target in pairs:
        if ours.name not in rates or RELAY_NAME not in rates:
            bench.judge(target, None, absence(bench, ours))
            continue
        bench.record("1 KiB records", ours, "MB/s", rates[ours.name], trials[ours.name], ours.name)
        bench.judge(target, in_percent(ratio_estimate(rates[ours.name], rates[RELAY_NAME])))


def note_limit(bench: Workbench, name: str, quantity: str, estimate: Estimate) -> None:
    bench.findings.figures.append(
        Figure(
            scenario="limits",
            contender=name,
            durability="",
            quantity=quantity,
            estimate=estimate,
        )
    )
    bench.say(f"  {name}: {estimate.median:,.0f} {quantity}")


def in_percent(ratio: Estimate) -> Estimate:
    return Estimate(median=100 * ratio.median, low=100 * ratio.low, high=100 * ratio.high, count=ratio.count)
