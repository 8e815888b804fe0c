"""Measures ten thousand topics and named subscriptions on one node: cost at rest, and slowdown of other work."""

import asyncio
import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import uvloop

import rostra
import rostra.blocking
from benchmarks import targets
from benchmarks.bare import BareConnection
from benchmarks.contender import Endpoint
from benchmarks.cpu import resident_bytes, tree_cpu_s
from benchmarks.estimates import Estimate, median_estimate
from benchmarks.findings import Figure
from benchmarks.harness import TrialFailed
from benchmarks.ours import CALL_RECORDS, Rostra, address
from benchmarks.records import distinct_records
from benchmarks.throughput import RECORD_BYTES, absence
from benchmarks.workbench import Workbench
from rostra.client.core.producer.producer_state import PER_RECORD_BYTES
from rostra.model.batch import HEADER_BYTES
from rostra.model.encode import encode as encode_batch
from rostra.model.patterns import Pattern, PatternTrie
from rostra.wire.frames import encode
from rostra.wire.groups import (
    CommitPositions,
    CoordinatorLocation,
    FindCoordinator,
    JoinGroup,
    LeaveGroup,
    MemberAssignment,
    Position,
)
from rostra.wire.messages import Agreed, CreateTopic, Publish, Published, Topic, TopicCreated, TopicSettings

COUNT = 10_000
TOGETHER = 100
LEASE_MS = 60_000
IDLE_S = 5.0
BATCH_RECORDS = (10, CALL_RECORDS, 5_000)
"""The last are judged, as a busy client makes them. Of small ones, many to one topic share a write; spread, none do."""
BATCHES = 10_000
TRIAL_BYTES_MAX = 64 << 20
"""What many trials write must fit into what the system holds back for the disk: else that is what is measured."""
WINDOW = 64
PAIRS = 5
MATCHES = 2_000

T = TypeVar("T")


def run(bench: Workbench) -> None:
    count = bench.scaled(COUNT)
    bench.say(f"many: {count:,} topics and {count:,} named subscriptions on one node")
    patterns(bench, count)
    for fsync in (False, True):
        ours = Rostra(fsync=fsync)
        with bench.running(ours) as endpoint:
            if endpoint is None:
                for target in targets.MANY if not fsync else ():
                    bench.judge(target, None, absence(bench, ours))
                continue
            try:
                measure(bench, ours, endpoint, count)
            except TrialFailed as error:
                bench.judge(targets.MANY_START, None, f"failed: {str(error).splitlines()[-1]}")


def measure(bench: Workbench, ours: Rostra, endpoint: Endpoint, count: int) -> None:
    with BareConnection(endpoint.port) as connection:
        started = time.monotonic()
        topics = make_topics(connection, count)
        figure(bench, ours, "ms to make a topic", 1000 * (time.monotonic() - started) / count)
        started = time.monotonic()
        make_names(connection, topics)
        figure(bench, ours, "ms to make a named subscription", 1000 * (time.monotonic() - started) / count)
    endpoint = starts_again(bench, ours, endpoint, count)
    at_rest(bench, ours, endpoint, count)
    spread(bench, ours, endpoint, topics)
    if not bench.is_quick:
        uvloop.run(spread_by_client(bench, ours, endpoint, topics))


def figure(bench: Workbench, ours: Rostra, quantity: str, value: float) -> None:
    found = Figure("many", ours.name, ours.durability.value, quantity, one(value))
    bench.findings.figures.append(found)
    bench.say(f"  {ours.name}: {value:,.2f} {quantity}")


def slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def one(value: float) -> Estimate:
    return median_estimate([value])


# --- what is there -------------------------------------------------------------------------------


def make_topics(connection: BareConnection, count: int) -> list[Topic]:
    topics: list[Topic] = []
    for numbers in slices(range(count), TOGETHER):
        asks = [CreateTopic(number + 1, f"many/{number}/topic", TopicSettings()) for number in numbers]
        topics += [made.topic for made in connection.ask(asks, TopicCreated)]
    return topics


def make_names(connection: BareConnection, topics: Sequence[Topic]) -> None:
    """Creates named subscriptions, each with a position in its own topic and without members."""
    connection.ask([FindCoordinator(1, "any")], CoordinatorLocation)
    for some in slices(list(enumerate(topics, 1)), TOGETHER):
        named = {f"name-{number}": (number, topic) for number, topic in some}
        joins = [JoinGroup(n, name, n, (topic.name,), LEASE_MS) for name, (n, topic) in named.items()]
        connection.send([encode(join) for join in joins])
        moves = []
        for held in connection.hear(MemberAssignment, len(joins)):
            places = tuple(Position(part.topic, part.partition, 1) for part in held.partitions)
            moves.append(CommitPositions(held.member, held.name, held.member, held.generation, places))
        connection.ask(moves, Agreed)
        connection.ask([LeaveGroup(n, name, n) for name, (n, _) in named.items()], Agreed)


# --- at rest -------------------------------------------------------------------------------------


def starts_again(bench: Workbench, ours: Rostra, endpoint: Endpoint, count: int) -> Endpoint:
    """Stops the node gracefully and starts it again on its data; returns when it answers."""
    started = time.monotonic()
    bench.servers.stop(endpoint.pids, patience_s=120.0)
    figure(bench, ours, "s to stop", time.monotonic() - started)
    started = time.monotonic()
    again = ours.start_in(bench.servers, endpoint.folder or Path(), endpoint.port)
    with rostra.blocking.connect(address(again)) as client:
        client.publish("many/0/topic", b"there")
        start_s = time.monotonic() - started
        topics, names = len(client.list_topics()), client.list_subscriptions()
    figure(bench, ours, "s of processor time to start", tree_cpu_s(again.pids[0]))
    if topics < count or len(names) != count or any(name.partitions != 1 for name in names):
        raise TrialFailed(f"{topics} topics and {len(names)} names after a start, of {count} each")
    bench.judge(targets.MANY_START, one(start_s), ours.durability.value)
    return again


def at_rest(bench: Workbench, ours: Rostra, endpoint: Endpoint, count: int) -> None:
    (pid,) = endpoint.pids
    before_s, since = tree_cpu_s(pid), time.monotonic()
    time.sleep(IDLE_S)
    share = 100 * (tree_cpu_s(pid) - before_s) / (time.monotonic() - since)
    bench.judge(targets.MANY_IDLE, one(share), ours.durability.value)
    figure(bench, ours, f"MiB resident with {count:,} of each", resident_bytes(pid) / (1 << 20))


# --- spread over all of them ---------------------------------------------------------------------


def spread(bench: Workbench, ours: Rostra, endpoint: Endpoint, topics: Sequence[Topic]) -> None:
    """Publishes the same batches to one topic and to all in turn, in pairs."""
    for records in BATCH_RECORDS:
        batches = bench.scaled(min(BATCHES, TRIAL_BYTES_MAX // (records * RECORD_BYTES)))
        batch = bytes(encode_batch(distinct_records(records, RECORD_BYTES), timestamp_us=time.time_ns() // 1000))
        places = {"one topic": topics[:1], f"{len(topics):,} topics": topics}
        rates: dict[str, list[float]] = {name: [] for name in places}
        with BareConnection(endpoint.port) as connection:
            for turn in range(1 + PAIRS):
                for name, chosen in places.items():
                    # Where one trial does not reach them all, the next goes on.
                    first = turn * batches % len(chosen)
                    per_s = (
                        records * batches / publish_s(connection, [*chosen[first:], *chosen[:first]], batch, batches)
                    )
                    if turn:
                        rates[name].append(per_s)
        for name, values in rates.items():
            figure(bench, ours, f"records/s in batches of {records}, {name}", median(values))
        alone, everywhere = rates.values()
        share = median_estimate([100 * each / other for each, other in zip(everywhere, alone, strict=True)])
        remark = f"batches of {records}, {ours.durability.value}"
        if ours.fsyncs or records < CALL_RECORDS:
            bench.say(f"  {ours.name}: {share.median:.0f} % of one topic, {remark}")
        else:
            bench.judge(targets.MANY_SPREAD, share, remark)
    # When every log has been written to.
    (pid,) = endpoint.pids
    there, (allowed, _) = len(os.listdir(f"/proc/{pid}/fd")), resource.prlimit(pid, resource.RLIMIT_NOFILE)
    bench.judge(targets.MANY_FILES, one(100 * there / allowed), f"{there:,} of {allowed:,}")


def publish_s(connection: BareConnection, topics: Sequence[Topic], batch: bytes, count: int) -> float:
    frames = [
        encode(Publish(number + 1, topics[number % len(topics)].topic, 0, "all"), len(batch)) + batch
        for number in range(count)
    ]
    started = time.monotonic()
    awaited = 0
    for chunk in slices(frames, WINDOW):
        connection.send(chunk)
        if awaited:
            connection.hear(Published, awaited)
        awaited = len(chunk)
    connection.hear(Published, awaited)
    return time.monotonic() - started


async def spread_by_client(bench: Workbench, ours: Rostra, endpoint: Endpoint, topics: Sequence[Topic]) -> None:
    """The same with one asyncio client that has a producer for each topic."""
    client = await rostra.connect(address(endpoint))
    started = time.monotonic()
    everywhere = [await client.producer(topic.name).open() for topic in topics]
    figure(bench, ours, "ms for a client to open a producer", 1000 * (time.monotonic() - started) / len(topics))
    for records in BATCH_RECORDS:
        calls = min(BATCHES, TRIAL_BYTES_MAX // (records * RECORD_BYTES))
        values = distinct_records(records, RECORD_BYTES)
        # Each call is a batch, with half a record to spare: else those to one topic would share some, or be cut.
        batch_bytes = HEADER_BYTES + records * (RECORD_BYTES + PER_RECORD_BYTES) + RECORD_BYTES // 2
        alone = await client.producer(topics[0].name, batch_bytes=batch_bytes).open()
        rates: dict[str, list[float]] = {"one topic": [], f"{len(topics):,} topics": []}
        for turn in range(1 + PAIRS):
            first = turn * calls % len(everywhere)
            chosen = [[alone], [*everywhere[first:], *everywhere[:first]][:calls]]
            for name, producers in zip(rates, chosen, strict=True):
                taken_s = await send_s(producers, values, calls)
                if turn:
                    rates[name].append(records * calls / taken_s)
        for name, each in rates.items():
            figure(bench, ours, f"records/s by a client in batches of {records}, {name}", median(each))
        one_topic, spread_out = rates.values()
        share = median([100 * each / other for each, other in zip(spread_out, one_topic, strict=True)])
        bench.say(f"  {ours.name}: {share:.0f} % of one topic by a client, batches of {records}")
    await client.close()


async def send_s(producers: Sequence[rostra.Producer], values: list[bytes], calls: int) -> float:
    started = time.monotonic()
    for number in range(calls):
        await producers[number % len(producers)].send_many(values)
    await asyncio.gather(*(producer.flush() for producer in producers))
    return time.monotonic() - started


# --- patterns ------------------------------------------------------------------------------------


def patterns(bench: Workbench, count: int) -> None:
    """Measures the match of a topic against few and many patterns that do not match."""
    sizes = (count // 1000, count)
    # In turns, and the best of each: other programs disturb one as well as the other.
    few, crowd = (min(taken) for taken in zip(*[map(microseconds_to_match, sizes) for _ in range(PAIRS)], strict=True))
    bench.say(f"  a topic is matched in {few:.2f} µs among {count // 1000} patterns, in {crowd:.2f} µs among {count:,}")
    bench.judge(targets.MANY_PATTERNS, one(crowd / few), "unrelated subscriptions, a thousand times as many")


def microseconds_to_match(others: int) -> float:
    trie: PatternTrie[int] = PatternTrie()
    for number in range(others):
        trie.add(Pattern.parse(f"others/{number}/+/#"), number)
    trie.add(Pattern.parse("wanted/+/#"), others)
    started = time.thread_time()
    for number in range(MATCHES):
        if trie.match(f"wanted/{number}/topic") != [others]:
            raise TrialFailed("the wrong subscriptions match")
    return 1e6 * (time.thread_time() - started) / MATCHES
