"""What it costs to have a trace of everything."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from statistics import median

import rostra.blocking
from benchmarks import targets
from benchmarks.contender import Endpoint
from benchmarks.cpu import kept_apart
from benchmarks.estimates import median_estimate
from benchmarks.harness import TrialFailed, create_topic, require_same
from benchmarks.ours import CALL_RECORDS, Rostra, address, values_of
from benchmarks.records import distinct_records
from benchmarks.throughput import RECORD_BYTES, absence
from benchmarks.workbench import Workbench

PAIRS = 21
TURNS = 8
"""A pair is so many short bursts through either node, in turns: a machine's speed may change from second to second, by
more than what is to be found. Together they last longer than a trace waits until it writes a file."""
BURST_RECORDS = 250_000
PATIENCE_S = 60.0

_fork = multiprocessing.get_context("fork")


def run(bench: Workbench) -> None:
    pairs = 5 if bench.is_quick else PAIRS
    bench.say(f"trace: records with and without traces of node, publisher and subscriber, {pairs} pairs")
    plain, traced = Rostra(fsync=False), Rostra(fsync=False, traced=True)
    records = distinct_records(BURST_RECORDS, RECORD_BYTES)
    with bench.running(plain) as one, bench.running(traced) as other:
        if one is None or other is None:
            bench.judge(targets.TRACE, None, absence(bench, plain, traced))
            return
        try:
            with (
                kept_apart((*one.pids, *other.pids)),
                passing(plain, one, records) as burst,
                passing(traced, other, records) as burst_traced,
            ):
                costs = [pair_cost(burst, burst_traced, turn) for turn in range(1 + pairs)][1:]
        except (TrialFailed, EOFError) as error:
            bench.judge(targets.TRACE, None, f"failed: {error or 'a publisher or subscriber died'}")
            return
    bench.say(f"  cost in %: {', '.join(f'{cost:.1f}' for cost in costs)}; median {median(costs):.1f}")
    remark = "one publisher, one subscriber, no fsync, all three traced, the nodes on a core of their own"
    bench.judge(targets.TRACE, median_estimate(costs), remark)


Burst = Callable[[], float]
"""Sends the records through a node once; the seconds until the subscriber has the last of them."""


def pair_cost(plain: Burst, traced: Burst, turn: int) -> float:
    """Percent by which the rate drops; which half goes first alternates."""
    order = [plain, traced] if turn % 2 else [traced, plain]
    took = dict.fromkeys(order, 0.0)
    for _ in range(TURNS):
        for burst in order:
            took[burst] += burst()
    return 100 * (1 - took[plain] / took[traced])


@contextmanager
def passing(ours: Rostra, endpoint: Endpoint, records: Sequence[bytes]) -> Iterator[Burst]:
    """A publisher and a subscriber in processes of their own, which stay for many bursts."""
    topic = create_topic(ours, endpoint)
    with ExitStack() as stack:
        subscriber = stack.enter_context(forked(subscribe, ours, endpoint, topic, records))
        answer_of(subscriber)
        publisher = stack.enter_context(forked(publish, ours, endpoint, topic, records))

        def burst() -> float:
            publisher.send(True)
            started, finished = answer_of(publisher), answer_of(subscriber)
            if not answer_of(subscriber):
                raise TrialFailed("received other records than were published, or in another order")
            return finished - started

        yield burst


@contextmanager
def forked(role: Callable[..., None], *about: object) -> Iterator[Connection]:
    here, there = _fork.Pipe()
    process: BaseProcess = _fork.Process(target=role, args=(there, *about), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        process.kill()
        process.join()


def answer_of(role: Connection) -> float:
    if not role.poll(PATIENCE_S):
        raise TrialFailed(f"no answer within {PATIENCE_S:.0f} s")
    answer: float = role.recv()
    return answer


def publish(told: Connection, ours: Rostra, endpoint: Endpoint, topic: str, records: Sequence[bytes]) -> None:
    chunks = [records[at : at + CALL_RECORDS] for at in range(0, len(records), CALL_RECORDS)]
    with (
        rostra.blocking.connect(address(endpoint), trace=ours.trace(endpoint)) as client,
        client.producer(topic, acks="all") as producer,
    ):
        while told.recv():
            started = time.monotonic()
            for chunk in chunks:
                producer.send_many(chunk)
            producer.flush()
            told.send(started)


def subscribe(told: Connection, ours: Rostra, endpoint: Endpoint, topic: str, records: Sequence[bytes]) -> None:
    with (
        rostra.blocking.connect(address(endpoint), trace=ours.trace(endpoint)) as client,
        client.subscribe(topic, start="earliest") as subscription,
    ):
        told.send(0.0)
        received: list[bytes] = []
        for batch in subscription.batches():
            received += values_of(batch)
            if len(received) >= len(records):
                told.send(time.monotonic())
                told.send(is_same(received, records))
                received = []


def is_same(received: Sequence[bytes], records: Sequence[bytes]) -> bool:
    try:
        require_same(received, records)
    except TrialFailed:
        return False
    return True
