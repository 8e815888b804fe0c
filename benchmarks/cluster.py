"""Measures three nodes on one machine: records per second against three nodes of each peer, and latency at 1,000/s."""

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

import msgspec

from benchmarks import targets
from benchmarks.contender import Contender, Endpoint, PacedContender
from benchmarks.estimates import percentile, ratio_estimate
from benchmarks.findings import Target
from benchmarks.harness import Trial
from benchmarks.latency import PER_SECOND, paced
from benchmarks.ours_trio import RostraTrio, RostraTrioBlocking
from benchmarks.peers.jetstream_r3 import JetStreamR3
from benchmarks.peers.kafka_cluster import KafkaTrio
from benchmarks.peers.rabbitmq_cluster import RabbitTrio
from benchmarks.peers.redis_replicas import RedisReplicas
from benchmarks.throughput import absence, durabilities, flood, ratio_remark
from benchmarks.workbench import Measurement, Workbench

THROUGHPUT, LATENCY = "three nodes", "three nodes, latency"
OUR_RECORDS = 500_000
ROUNDS = 4
LATENCY_ROUNDS = 15
"""Five processes share the cores, and JetStream's trials come in two kinds, one in three faster by a fourth: of few
trials the median is now of the one kind and now of the other."""
QUANTILES = {"p50": 0.5, "p99": 0.99}
HELD_SHARE_MIN = 0.95


class Entry(msgspec.Struct, frozen=True):
    """One configuration of a peer, the number of records for about a second, and the target."""

    peer: Contender
    records: int
    target: Target | None = None
    by_hand_records: int = 0
    """None where the peer's client makes batches itself, or another entry shows it already."""

    @property
    def by_hand(self) -> str:
        return f"{self.peer.name}, hand-batched"


def bouts() -> list[tuple[Entry, ...]]:
    """Groups of entries that share the servers of their first."""
    return [
        (Entry(JetStreamR3(sync_always=False), 15_000, targets.CLUSTER_JETSTREAM, 320_000),),
        (Entry(JetStreamR3(sync_always=True), 8_000, None, 160_000),),
        (
            Entry(RedisReplicas(wait=2), 100_000, targets.CLUSTER_REDIS, 320_000),
            Entry(RedisReplicas(wait=1), 100_000),
        ),
        (Entry(RabbitTrio(), 150_000, None, 320_000),),
        (Entry(KafkaTrio(flush_always=False), 250_000), Entry(KafkaTrio(flush_always=True), 250_000)),
    ]


def run(bench: Workbench) -> None:
    for bout in bouts():
        if bench.is_quick and not any(entry.target for entry in bout):
            continue
        bench.say(f"three nodes: Rostra and {', '.join(entry.peer.name for entry in bout)}")
        ours = RostraTrio(fsync=True)
        with bench.running(ours) as our_endpoint, bench.running(bout[0].peer) as peer_endpoint:
            fight(bench, bout, ours, our_endpoint, peer_endpoint)
    run_latency(bench)


def fight(
    bench: Workbench,
    bout: Sequence[Entry],
    ours: RostraTrio,
    our_endpoint: Endpoint | None,
    peer_endpoint: Endpoint | None,
) -> None:
    say_settings(bench, [ours, *(entry.peer for entry in bout)])
    measurements: dict[str, Measurement] = {}
    contenders: dict[str, Contender] = {ours.name: ours}
    if our_endpoint is not None:
        measurements[ours.name] = flood(bench, ours, our_endpoint, OUR_RECORDS)
    if peer_endpoint is not None:
        for entry in bout:
            peer = entry.peer
            bench.findings.note_settings(peer)
            contenders |= {peer.name: peer, entry.by_hand: peer}
            measurements[peer.name] = flood(bench, peer, peer_endpoint, entry.records)
            if entry.by_hand_records:
                by_hand = flood(bench, peer, peer_endpoint, entry.by_hand_records, by_hand=True)
                measurements[entry.by_hand] = by_hand
    trials = bench.interleaved(measurements, min(bench.rounds, ROUNDS))
    rates = {name: [trial.per_second for trial in done] for name, done in trials.items()}
    for name, done in rates.items():
        bench.record(THROUGHPUT, contenders[name], "records/s", done, trials[name], name)
    for entry in bout:
        compare(bench, entry, ours, rates)


def compare(bench: Workbench, entry: Entry, ours: RostraTrio, rates: dict[str, list[float]]) -> None:
    peer = entry.peer
    if ours.name not in rates or peer.name not in rates:
        if entry.target is not None:
            bench.judge(entry.target, None, absence(bench, ours, peer))
        return
    remark = ratio_remark("hand-batched", rates, ours.name, entry.by_hand)
    ratio = ratio_estimate(rates[ours.name], rates[peer.name])
    bench.say(f"  Rostra is {ratio.median:.1f}x {peer.name}{remark and f'; {remark}'}")
    bench.compare(THROUGHPUT, ours, peer, ratio, remark)
    if entry.target is not None:
        bench.judge(entry.target, ratio, f"{durabilities(ours, peer)}; {remark}".rstrip("; "))


def run_latency(bench: Workbench) -> None:
    ours = RostraTrioBlocking(fsync=False, unix=True)
    peer = JetStreamR3(sync_always=False)
    others = {"by TCP": RostraTrioBlocking(fsync=False)}
    bench.say(f"three nodes, latency at {PER_SECOND:,}/s: {ours.name} and {peer.name}")
    promised = {"p50": targets.CLUSTER_LATENCY_P50, "p99": targets.CLUSTER_LATENCY_P99}
    contenders: tuple[PacedContender, ...] = (ours, peer, *others.values())
    with ExitStack() as running:
        say_settings(bench, contenders)
        measurements: dict[str, Measurement] = {}
        for contender in contenders:
            endpoint = running.enter_context(bench.running(contender))
            if endpoint is not None:
                measurements[contender.name] = paced(bench, contender, endpoint)
        trials = bench.interleaved(measurements, LATENCY_ROUNDS)
    both: tuple[PacedContender, ...] = (ours, peer)
    for contender in contenders:
        note_delays(bench, contender, trials.get(contender.name, []))
    if any(each.name not in trials for each in both):
        for target in promised.values():
            bench.judge(target, None, absence(bench, *both))
        return
    held = [median(trial.per_second for trial in trials[each.name]) for each in both]
    remark = f"held {held[0]:,.0f}/s and {held[1]:,.0f}/s"
    # Who falls behind the schedule was spared the load at which the delay is promised.
    kept_up = held[0] >= HELD_SHARE_MIN * PER_SECOND
    for quantile, fraction in QUANTILES.items():
        ratio = ratio_estimate(*(delays_us(trials[each.name], fraction) for each in both))
        bench.say(f"  Rostra's {quantile} is {ratio.median:.2f}x that of {peer.name}; {remark}")
        bench.compare(f"{LATENCY} {quantile}", ours, peer, ratio, remark)
        beside = "; ours by a Unix socket, which they do not have"
        for name, other in others.items():
            if other.name in trials:
                found = ratio_estimate(*(delays_us(trials[each.name], fraction) for each in (other, peer)))
                bench.compare(f"{LATENCY} {quantile}", other, peer, found, "")
                beside += f"; {name} {found.median:.2f}x"
        bench.judge(promised[quantile], ratio if kept_up else None, f"{durabilities(ours, peer)}; {remark}{beside}")


def note_delays(bench: Workbench, contender: PacedContender, trials: list[Trial]) -> None:
    if not trials:
        return
    for quantile, fraction in QUANTILES.items():
        values = delays_us(trials, fraction)
        bench.record(LATENCY, contender, f"µs {quantile}", values, trials, contender.name)


def delays_us(trials: Sequence[Trial], fraction: float) -> list[float]:
    return [percentile(trial.delays_ns, fraction) / 1e3 for trial in trials]


def say_settings(bench: Workbench, contenders: Sequence[Contender]) -> None:
    for each in contenders:
        bench.say(f"  {each.name}: {each.durability.value}; {'; '.join(each.settings)}")
