"""Records per second from one publisher to one subscriber, ours and each peer in turn."""

import msgspec

from benchmarks import targets
from benchmarks.contender import Contender, Endpoint
from benchmarks.estimates import median_estimate, ratio_estimate
from benchmarks.findings import Target
from benchmarks.harness import Trial, flood_trial
from benchmarks.ours import Rostra
from benchmarks.peers.jetstream import JetStream
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats_core import NatsCore
from benchmarks.peers.rabbitmq_streams import RabbitStreams
from benchmarks.peers.redis_streams import RedisStreams
from benchmarks.peers.zeromq import ZeroMq
from benchmarks.records import distinct_records
from benchmarks.workbench import Measurement, Workbench

RECORD_BYTES = 100
OUR_RECORDS = 1_000_000
HAND_BATCHED_RECORDS = 640_000


class Duel(msgspec.Struct, frozen=True):
    """One peer, how many records keep it busy for a second or two, and what we promise."""

    peer: Contender
    records: int
    target: Target | None = None
    by_hand: bool = True


def duels() -> list[Duel]:
    return [
        Duel(JetStream(sync_always=False), 60_000, targets.JETSTREAM),
        Duel(JetStream(sync_always=True), 5_000),
        Duel(RedisStreams(appendfsync="always"), 100_000, targets.REDIS_ALWAYS),
        Duel(RedisStreams(appendfsync="everysec"), 100_000),
        Duel(RabbitStreams(), 300_000, targets.RABBITMQ),
        # Its client batches already: there is nothing left to do by hand.
        Duel(Kafka(flush_always=False), 1_000_000, targets.KAFKA, by_hand=False),
        Duel(Kafka(flush_always=True), 1_000_000, by_hand=False),
        Duel(NatsCore(), 200_000),
        Duel(ZeroMq(subscribers=1), 1_000_000, by_hand=False),
    ]


def run(bench: Workbench) -> None:
    for duel in duels():
        if bench.is_quick and duel.target is None:
            continue
        bench.say(f"throughput: Rostra and {duel.peer.name}")
        # Against a peer that keeps nothing, ours still writes, but does not wait for the disk.
        ours = Rostra(fsync=duel.peer.durability is not duel.peer.durability.NOTHING)
        with bench.running(ours) as our_endpoint, bench.running(duel.peer) as peer_endpoint:
            fight(bench, duel, ours, our_endpoint, peer_endpoint)


def fight(
    bench: Workbench,
    duel: Duel,
    ours: Rostra,
    our_endpoint: Endpoint | None,
    peer_endpoint: Endpoint | None,
) -> None:
    peer = duel.peer
    by_hand = f"{peer.name}, hand-batched"
    measurements: dict[str, Measurement] = {}
    if our_endpoint is not None:
        measurements[ours.name] = flood(bench, ours, our_endpoint, OUR_RECORDS)
    if peer_endpoint is not None:
        measurements[peer.name] = flood(bench, peer, peer_endpoint, duel.records)
        if duel.by_hand:
            measurements[by_hand] = flood(bench, peer, peer_endpoint, HAND_BATCHED_RECORDS, by_hand=True)
    trials = bench.interleaved(measurements, bench.rounds)
    rates = {name: [trial.per_second for trial in done] for name, done in trials.items()}
    for name, contender in ((ours.name, ours), (peer.name, peer), (by_hand, peer)):
        if name in rates:
            bench.record("throughput", contender, "records/s", rates[name], trials[name], name)
    remark = ratio_remark("hand-batched", rates, ours.name, by_hand)
    if ours.name in rates and peer.name in rates:
        ratio = ratio_estimate(rates[ours.name], rates[peer.name])
        bench.say(f"  Rostra is {ratio.median:.1f}x {peer.name}{remark and f'; {remark}'}")
        bench.compare("throughput", ours, peer, ratio, remark)
        if duel.target is not None:
            bench.judge(duel.target, ratio, f"{durabilities(ours, peer)}; {remark}".rstrip("; "))
    elif duel.target is not None:
        bench.judge(duel.target, None, absence(bench, ours, peer))


def flood(
    bench: Workbench, contender: Contender, endpoint: Endpoint, count: int, *, by_hand: bool = False
) -> Measurement:
    records = distinct_records(bench.scaled(count), RECORD_BYTES)

    def trial() -> Trial:
        return flood_trial(contender, endpoint, records, by_hand=by_hand)

    return trial


def ratio_remark(word: str, rates: dict[str, list[float]], ours: str, other: str) -> str:
    if ours not in rates or other not in rates:
        return ""
    rate = median_estimate(rates[other]).median
    ratio = ratio_estimate(rates[ours], rates[other]).median
    return f"{word} {rate / 1e6:.2f} M/s, ratio {ratio:.1f}x"


def durabilities(ours: Contender, peer: Contender) -> str:
    return f"ours {ours.durability.value}, theirs {peer.durability.value}"


def absence(bench: Workbench, *contenders: Contender) -> str:
    for contender in contenders:
        if contender.name in bench.findings.absences:
            return f"not measured: {contender.name}: {bench.findings.absences[contender.name]}"
    return "not measured"
