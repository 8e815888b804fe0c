"""Measures the latency from publish to receive at 1,000 records a second."""

from benchmarks import targets
from benchmarks.contender import Endpoint, Pace, PacedContender
from benchmarks.estimates import percentile, ratio_estimate
from benchmarks.harness import Trial, paced_trial
from benchmarks.ours import RostraBlocking
from benchmarks.peers.jetstream import JetStream
from benchmarks.peers.nats_core import NatsCore
from benchmarks.peers.redis_streams import RedisStreams
from benchmarks.peers.zeromq import ZeroMq
from benchmarks.throughput import absence, durabilities
from benchmarks.workbench import Measurement, Workbench

PER_SECOND = 1000
RECORD_BYTES = 100
WARM_UP_RECORDS = 500
BUSY_POLL_MS = 2
"""Longer than the pause between two records: the node is awake when the next one comes."""
ROUNDS = 7
"""Of those that are judged: which core a process is put on makes trials differ by half."""
OTHER_ROUNDS = 3


def run(bench: Workbench) -> None:
    ours = RostraBlocking(fsync=False, busy_poll_ms=BUSY_POLL_MS, unix=True)
    by_tcp = RostraBlocking(fsync=False, busy_poll_ms=BUSY_POLL_MS)
    as_shipped, nats = RostraBlocking(fsync=False), NatsCore()
    medians = measure(bench, [ours, nats, by_tcp, as_shipped], OTHER_ROUNDS if bench.is_quick else ROUNDS)
    for other in (as_shipped, by_tcp):
        if other.name in medians and nats.name in medians:
            ratio = ratio_estimate(medians[other.name], medians[nats.name])
            bench.compare("latency p50", other, nats, ratio, "")
    if ours.name in medians and nats.name in medians:
        ratio = ratio_estimate(medians[ours.name], medians[nats.name])
        bench.compare("latency p50", ours, nats, ratio, "")
        beside = ""
        if by_tcp.name in medians:
            by_tcp_ratio = ratio_estimate(medians[by_tcp.name], medians[nats.name])
            beside = f"; ours by a Unix socket, which they have not; ours by TCP, too: {by_tcp_ratio.median:.2f}x"
        bench.judge(targets.LATENCY, ratio, durabilities(ours, nats) + beside)
    else:
        bench.judge(targets.LATENCY, None, absence(bench, ours, nats))
    if bench.is_quick:
        return
    durable: list[PacedContender] = [
        RostraBlocking(fsync=True),
        RedisStreams(appendfsync="always"),
        JetStream(sync_always=False),
    ]
    measure(bench, durable, OTHER_ROUNDS)
    measure(bench, [ZeroMq(subscribers=1)], OTHER_ROUNDS)


def measure(bench: Workbench, contenders: list[PacedContender], rounds: int) -> dict[str, list[float]]:
    """Medians per trial in µs, by contender."""
    bench.say(f"latency at {PER_SECOND:,}/s: {', '.join(each.name for each in contenders)}")
    return measure_started(bench, contenders, {}, {}, rounds)


def measure_started(
    bench: Workbench,
    waiting: list[PacedContender],
    started: dict[str, PacedContender],
    measurements: dict[str, Measurement],
    rounds: int,
) -> dict[str, list[float]]:
    """Starts the waiting contenders recursively, then measures all in turn."""
    if waiting:
        contender, *rest = waiting
        with bench.running(contender) as endpoint:
            if endpoint is not None:
                started = {**started, contender.name: contender}
                trial = paced(bench, contender, endpoint)
                measurements = {**measurements, contender.name: trial}
            return measure_started(bench, rest, started, measurements, rounds)
    trials = bench.interleaved(measurements, rounds)
    medians = {}
    for name, done in trials.items():
        medians[name] = [percentile(trial.delays_ns, 0.5) / 1e3 for trial in done]
        tails = [percentile(trial.delays_ns, 0.99) / 1e3 for trial in done]
        bench.record("latency", started[name], "µs p50", medians[name], done, name)
        bench.record("latency", started[name], "µs p99", tails, done, name)
    return medians


def paced(bench: Workbench, contender: PacedContender, endpoint: Endpoint) -> Measurement:
    count = WARM_UP_RECORDS + (1500 if bench.is_quick else 3500)
    pace = Pace(count=count, record_bytes=RECORD_BYTES, per_second=PER_SECOND)

    def trial() -> Trial:
        return paced_trial(contender, endpoint, pace, WARM_UP_RECORDS)

    return trial
