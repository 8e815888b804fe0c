"""Deliveries per second from one publisher to ten subscribers in two processes."""

from benchmarks import targets
from benchmarks.contender import Contender, Endpoint
from benchmarks.estimates import ratio_estimate
from benchmarks.harness import Trial, flood_trial
from benchmarks.ours import Rostra
from benchmarks.peers.nats_core import NatsCore
from benchmarks.peers.zeromq import ZeroMq
from benchmarks.records import distinct_records
from benchmarks.throughput import RECORD_BYTES, absence, durabilities, ratio_remark
from benchmarks.workbench import Measurement, Workbench

SUBSCRIBERS_BY_PROCESS = (5, 5)
OUR_RECORDS = 300_000
NATS_RECORDS = 40_000
ZEROMQ_RECORDS = 100_000
HAND_BATCHED_RECORDS = 320_000


def run(bench: Workbench) -> None:
    bench.say("fan-out to 10: Rostra, NATS core, ZeroMQ")
    ours, nats = Rostra(fsync=True), NatsCore()
    zeromq = ZeroMq(subscribers=sum(SUBSCRIBERS_BY_PROCESS))
    by_hand = f"{nats.name}, hand-batched"
    with (
        bench.running(ours) as our_endpoint,
        bench.running(nats) as nats_endpoint,
        bench.running(zeromq) as zeromq_endpoint,
    ):
        measurements: dict[str, Measurement] = {}
        if our_endpoint is not None:
            measurements[ours.name] = flood(bench, ours, our_endpoint, OUR_RECORDS)
        if nats_endpoint is not None:
            measurements[nats.name] = flood(bench, nats, nats_endpoint, NATS_RECORDS)
            measurements[by_hand] = flood(bench, nats, nats_endpoint, HAND_BATCHED_RECORDS, by_hand=True)
        if zeromq_endpoint is not None:
            measurements[zeromq.name] = flood(bench, zeromq, zeromq_endpoint, ZEROMQ_RECORDS)
        trials = bench.interleaved(measurements, bench.rounds)
    rates = {name: [trial.per_second for trial in done] for name, done in trials.items()}
    named: list[tuple[str, Contender]] = [
        (ours.name, ours), (nats.name, nats), (by_hand, nats), (zeromq.name, zeromq)
    ]  # fmt: skip
    for name, contender in named:
        if name in rates:
            bench.record("fan-out to 10", contender, "deliveries/s", rates[name], trials[name], name)
    if ours.name not in rates or nats.name not in rates:
        bench.judge(targets.FAN_OUT, None, absence(bench, ours, nats))
        return
    remark = ratio_remark("hand-batched", rates, ours.name, by_hand)
    ratio = ratio_estimate(rates[ours.name], rates[nats.name])
    bench.compare("fan-out to 10", ours, nats, ratio, remark)
    bench.judge(targets.FAN_OUT, ratio, f"{durabilities(ours, nats)}; {remark}")
    if zeromq.name in rates:
        ratio = ratio_estimate(rates[ours.name], rates[zeromq.name])
        bench.compare("fan-out to 10", ours, zeromq, ratio, "")


def flood(
    bench: Workbench, contender: Contender, endpoint: Endpoint, count: int, *, by_hand: bool = False
) -> Measurement:
    records = distinct_records(bench.scaled(count), RECORD_BYTES)

    def trial() -> Trial:
        return flood_trial(
            contender,
            endpoint,
            records,
            by_hand=by_hand,
            subscribers_by_process=SUBSCRIBERS_BY_PROCESS,
        )

    return trial
