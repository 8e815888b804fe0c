"""A ring of brokers: records per second against Redis with WAIT, and what a record costs by the size of the ring."""

from statistics import median

from benchmarks import targets
from benchmarks.cluster import say_settings
from benchmarks.contender import Endpoint
from benchmarks.cpu import tree_cpu_s
from benchmarks.estimates import median_estimate, ratio_estimate
from benchmarks.findings import Figure
from benchmarks.harness import Trial, TrialFailed
from benchmarks.ours_ring import RostraRing
from benchmarks.peers.redis_replicas import RedisReplicas
from benchmarks.throughput import absence, durabilities, flood
from benchmarks.workbench import Measurement, Workbench

SCENARIO, COST = "ring", "ring, cost of a record"
NODES = 3
SIZES = (1, 2, 3, 4, 5)
OUR_RECORDS = 500_000
PEER_RECORDS = 100_000
ROUNDS = 4


def run(bench: Workbench) -> None:
    against_redis(bench)
    by_size(bench)


def against_redis(bench: Workbench) -> None:
    ours, peer = RostraRing(NODES), RedisReplicas(wait=2)
    bench.say(f"ring: {ours.name} and {peer.name}")
    say_settings(bench, [ours, peer])
    measurements: dict[str, Measurement] = {}
    with bench.running(ours) as our_endpoint, bench.running(peer) as peer_endpoint:
        if our_endpoint is not None:
            measurements[ours.name] = flood(bench, ours, our_endpoint, OUR_RECORDS)
        if peer_endpoint is not None:
            measurements[peer.name] = flood(bench, peer, peer_endpoint, PEER_RECORDS)
        trials = bench.interleaved(measurements, min(bench.rounds, ROUNDS))
    rates = {name: [trial.per_second for trial in done] for name, done in trials.items()}
    for each in (ours, peer):
        if each.name in rates:
            bench.record(SCENARIO, each, "records/s", rates[each.name], trials[each.name], each.name)
    if len(rates) < 2:
        bench.judge(targets.RING_REDIS, None, absence(bench, ours, peer))
        return
    ratio = ratio_estimate(rates[ours.name], rates[peer.name])
    bench.say(f"  Rostra is {ratio.median:.1f}x {peer.name}")
    bench.compare(SCENARIO, ours, peer, ratio, "")
    bench.judge(targets.RING_REDIS, ratio, durabilities(ours, peer))


# --- what a record costs -----------------------------------------------------------------------------


def by_size(bench: Workbench) -> None:
    """Processor time of all brokers together: every record is taken, written and passed on at each of them."""
    bench.say("ring: what a record costs, by the size of the ring")
    for size in SIZES:
        ours = RostraRing(size)
        with bench.running(ours) as endpoint:
            if endpoint is None:
                continue
            try:
                measure(bench, ours, endpoint, size)
            except TrialFailed as error:
                bench.findings.note_absence(ours.name, str(error).splitlines()[-1])
                bench.say(f"  {ours.name}: failed: {error}")


def measure(bench: Workbench, ours: RostraRing, endpoint: Endpoint, size: int) -> None:
    run_once = flood(bench, ours, endpoint, OUR_RECORDS)
    run_once()
    costs_us: list[float] = []
    trials: list[Trial] = []
    for _ in range(min(bench.rounds, ROUNDS)):
        before_s = sum(map(tree_cpu_s, endpoint.pids))
        trials.append(run_once())
        spent_s = sum(map(tree_cpu_s, endpoint.pids)) - before_s
        costs_us.append(spent_s * 1e6 / trials[-1].received)
    rate = median(trial.per_second for trial in trials)
    bench.findings.figures.append(
        Figure(
            scenario=COST,
            contender=ours.name,
            durability=ours.durability.value,
            quantity="µs of processor a record",
            estimate=median_estimate(costs_us),
            disturbed_trials=sum(trial.is_disturbed for trial in trials),
        )
    )
    cost_us = median(costs_us)
    bench.say(f"  {ours.name}: {cost_us:.2f} µs a record, {cost_us / size:.2f} at each broker; {rate:,.0f} records/s")
