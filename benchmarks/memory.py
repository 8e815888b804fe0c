"""Measures how far the memory of a fresh node rises while 1 GB passes through it."""

from collections.abc import Iterable, Iterator, Sequence

from benchmarks import targets
from benchmarks.contender import Endpoint, Stage
from benchmarks.cpu import peak_resident_bytes, resident_bytes
from benchmarks.estimates import median_estimate
from benchmarks.harness import RoleOutcome, TrialFailed, create_topic, run_trial
from benchmarks.ours import Rostra
from benchmarks.records import Inbox, distinct_records
from benchmarks.throughput import absence
from benchmarks.workbench import Workbench

RECORD_BYTES = 1024
RECORDS = 1_000_000
BASE_RECORDS = 4096
MIB = 1 << 20


def run(bench: Workbench) -> None:
    count = bench.scaled(RECORDS)
    bench.say(f"memory: {count * RECORD_BYTES / 1e9:.2f} GB through a fresh node")
    ours = Rostra(fsync=True)
    with bench.running(ours) as endpoint:
        if endpoint is None:
            bench.judge(targets.MEMORY, None, absence(bench, ours))
            return
        try:
            growth_mib = pass_through(ours, endpoint, count) / MIB
        except TrialFailed as error:
            bench.judge(targets.MEMORY, None, f"failed: {str(error).splitlines()[-1]}")
            return
    bench.judge(targets.MEMORY, median_estimate([growth_mib]), "peak above the node at rest")


def pass_through(ours: Rostra, endpoint: Endpoint, count: int) -> int:
    topic = create_topic(ours, endpoint)
    base = distinct_records(BASE_RECORDS, RECORD_BYTES)
    (pid,) = endpoint.pids
    at_rest = resident_bytes(pid)

    def publisher(stage: Stage) -> RoleOutcome:
        ours.publish(endpoint, topic, stage, numbered_records(base, count))
        return RoleOutcome()

    def subscriber(stage: Stage) -> RoleOutcome:
        inbox = CheckedInbox(base, count)
        ours.subscribe(endpoint, topic, stage, [inbox])
        return RoleOutcome(received=len(inbox))

    if run_trial(publisher, [subscriber], endpoint.pids).received != count:
        raise TrialFailed("records are missing")
    return peak_resident_bytes(pid) - at_rest


def numbered_records(base: Sequence[bytes], count: int) -> Iterator[bytes]:
    """Generates distinct records one at a time, more than should be in memory at once."""
    bodies = [record[8:] for record in base]
    for index in range(count):
        yield index.to_bytes(8, "little") + bodies[index % len(bodies)]


class CheckedInbox(Inbox):
    """Compares received records and keeps none."""

    def __init__(self, base: Sequence[bytes], expected: int) -> None:
        super().__init__(expected)
        self._wanted = numbered_records(base, expected)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, record: bytes, /) -> None:
        if record != next(self._wanted, None):
            raise TrialFailed(f"record {self._count} is not the one published there")
        self._count += 1

    def extend(self, records: Iterable[bytes], /) -> None:
        for record in records:
            self.append(record)
