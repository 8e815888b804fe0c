"""Trials: one publisher and some subscribers in processes of their own, on one clock.

A rate is records received divided by the time from the first publish to the last receive.
CLOCK_MONOTONIC is the same in every process of a machine, so times from different roles compare.
"""

import ctypes
import gc
import itertools
import mmap
import multiprocessing
import resource
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import msgspec

from benchmarks.contender import Contender, Endpoint, Pace, PacedContender, Stage
from benchmarks.cpu import cpu_mark, foreign_share, wait_for_quiet
from benchmarks.records import (
    STAMP,
    Inbox,
    SplittingInbox,
    TimedInbox,
    hand_batches,
)

# Forked roles share the records made before: nothing is generated or copied while the clock runs.
_fork = multiprocessing.get_context("fork")

FOREIGN_SHARE_MAX = 0.15
DISTURBED_TRIALS_MAX = 3
TRIAL_TIMEOUT_S = 60.0
PYTHON_ARENA_BYTES_MAX = 512
CLAIMED_BYTES = 2 << 30
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Of mallopt(3)."""
_topic_numbers = itertools.count(1)


class TrialFailed(Exception):
    """A role failed, or the received records differ from the published ones."""


class RoleOutcome(msgspec.Struct, frozen=True):
    """The outcome of one role process."""

    started_ns: int = 0
    finished_ns: int = 0
    cpu_s: float = 0.0
    received: int = 0
    delays_ns: tuple[int, ...] = ()
    failure: str = ""


class Trial(msgspec.Struct, frozen=True):
    """One complete, verified run."""

    received: int
    elapsed_s: float
    foreign_share: float
    delays_ns: tuple[int, ...] = ()

    @property
    def per_second(self) -> float:
        return self.received / self.elapsed_s

    @property
    def is_disturbed(self) -> bool:
        return self.foreign_share > FOREIGN_SHARE_MAX


Role = Callable[[Stage], RoleOutcome]


def flood_trial(
    contender: Contender,
    endpoint: Endpoint,
    records: Sequence[bytes],
    *,
    topic: str | None = None,
    by_hand: bool = False,
    subscribers_by_process: Sequence[int] = (1,),
    companion_pids: Sequence[int] = (),
) -> Trial:
    """Publishes everything as fast as possible; every subscriber must receive exactly that."""
    topic = topic or create_topic(contender, endpoint)

    def publisher(stage: Stage) -> RoleOutcome:
        # A copy touches every record, so that the pages shared by the fork are our own beforehand.
        own = list(records)
        messages: Iterable[bytes] = hand_batches(own) if by_hand else own
        contender.publish(endpoint, topic, stage, messages)
        return RoleOutcome()

    def subscriber(stage: Stage, subscribers: int) -> RoleOutcome:
        size = len(records[0])
        own_memory(len(records) * subscribers, size)
        inboxes = [SplittingInbox(len(records), size) if by_hand else Inbox(len(records)) for _ in range(subscribers)]
        contender.subscribe(endpoint, topic, stage, inboxes)
        for inbox in inboxes:
            require_same(inbox, records)
        return RoleOutcome(received=sum(map(len, inboxes)))

    roles = [partial(subscriber, subscribers=count) for count in subscribers_by_process]
    return run_trial(publisher, roles, (*endpoint.pids, *companion_pids))


def own_memory(count: int, size: int) -> None:
    """Take the memory that the harness will keep so many records in, and give it back to this process alone.

    The publisher's records are its own before the clock runs; so must be the pages that a subscriber's are kept in, or
    the kernel's work of handing out fresh ones is counted as receiving. A contender that drops what it received never
    has that work. Small objects come from Python's own arenas, which cannot be kept.
    """
    if size > PYTHON_ARENA_BYTES_MAX:
        allocator = ctypes.CDLL(None)
        allocator.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        allocator.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        del [bytes(bytearray(size)) for _ in range(count)][:]


def claim_memory() -> None:
    """Make a virtual machine's host give memory for what a trial writes: not a contender's cost, and not a small one.

    A host takes back what its guest has not used for a while, and a gigabyte that it must give again costs seconds.
    """
    with mmap.mmap(-1, CLAIMED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE):
        pass


def paced_trial(contender: PacedContender, endpoint: Endpoint, pace: Pace, warm_up: int) -> Trial:
    """Publishes at a fixed rate and measures the latency of each record; the first ones warm up."""
    topic = create_topic(contender, endpoint)

    def publisher(stage: Stage) -> RoleOutcome:
        contender.publish_paced(endpoint, topic, stage, pace)
        return RoleOutcome()

    def subscriber(stage: Stage) -> RoleOutcome:
        inbox = TimedInbox(pace.count)
        contender.subscribe(endpoint, topic, stage, [inbox])
        if [STAMP.unpack_from(record)[1] for record in inbox] != list(range(pace.count)):
            raise TrialFailed(f"{len(inbox)} of {pace.count} paced records, or another order")
        return RoleOutcome(received=len(inbox), delays_ns=tuple(inbox.delays_ns[warm_up:]))

    return run_trial(publisher, [subscriber], endpoint.pids)


def create_topic(contender: Contender, endpoint: Endpoint) -> str:
    """Creates a topic in a separate process: no client may run in the process that forks."""
    topic = f"bench-{next(_topic_numbers)}"

    def creator(stage: Stage) -> RoleOutcome:
        contender.create(endpoint, topic)
        return RoleOutcome()

    role = RoleProcess(creator)
    try:
        role.wait_for_outcome()
    finally:
        role.stop()
    return topic


def require_same(received: Sequence[bytes], published: Sequence[bytes]) -> None:
    """Checks number, content and order of records."""
    if len(received) != len(published):
        raise TrialFailed(f"received {len(received)} of {len(published)} records")
    if any(map(bytes.__ne__, received, published)):
        raise TrialFailed("received other records than were published, or in another order")


def run_trial(publisher: Role, subscribers: Sequence[Role], server_pids: Sequence[int]) -> Trial:
    """Starts subscribers, then the publisher; stops all of them in any case."""
    claim_memory()
    wait_for_quiet(FOREIGN_SHARE_MAX, timeout_s=3.0)
    roles: list[RoleProcess] = []
    try:
        roles += [RoleProcess(subscriber) for subscriber in subscribers]
        wait_until_ready(roles)
        roles.append(RoleProcess(publisher))
        wait_until_ready(roles[-1:])
        before = cpu_mark(server_pids)
        for started in roles:
            started.start_event.set()
        outcomes = collect(roles)
        after = cpu_mark(server_pids)
    finally:
        for started in roles:
            started.stop()
    *received, published = outcomes
    last_ns = max(outcome.finished_ns for outcome in received)
    return Trial(
        received=sum(outcome.received for outcome in received),
        elapsed_s=(last_ns - published.started_ns) / 1e9,
        foreign_share=foreign_share(before, after, sum(outcome.cpu_s for outcome in outcomes)),
        delays_ns=tuple(itertools.chain.from_iterable(o.delays_ns for o in received)),
    )


def undisturbed(trial: Callable[[], Trial]) -> Trial:
    """Repeats a disturbed trial a few times; keeps the least disturbed one, marked as such."""
    attempts: list[Trial] = []
    for _ in range(1 + DISTURBED_TRIALS_MAX):
        attempts.append(trial())
        if not attempts[-1].is_disturbed:
            break
    return min(attempts, key=lambda attempt: attempt.foreign_share)


class RoleProcess:
    """A forked process that plays one role and sends back one outcome."""

    def __init__(self, role: Role) -> None:
        self.ready = _fork.Semaphore(0)
        self.start_event = _fork.Event()
        self.outcomes, sender = _fork.Pipe(duplex=False)
        stage = Stage(self.ready, self.start_event, TRIAL_TIMEOUT_S)
        self.process: ForkProcess = _fork.Process(target=play, args=(role, stage, sender), daemon=True)
        self.process.start()
        sender.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def wait_for_outcome(self) -> RoleOutcome:
        if not self.outcomes.poll(TRIAL_TIMEOUT_S):
            raise TrialFailed(f"no result within {TRIAL_TIMEOUT_S:.0f} s")
        try:
            outcome: RoleOutcome = self.outcomes.recv()
        except EOFError:
            raise TrialFailed("a role process died") from None
        if outcome.failure:
            raise TrialFailed(outcome.failure)
        return outcome

    def stop(self) -> None:
        self.process.join(0.5)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()
        self.outcomes.close()


def play(role: Role, stage: Stage, sender: Connection) -> None:
    """The body of a role process."""
    gc.freeze()  # records made before the fork need no collection
    cpu_before_s = own_cpu_s()

    def note_ready() -> None:
        nonlocal cpu_before_s
        cpu_before_s = own_cpu_s()

    stage.on_ready = note_ready
    try:
        outcome = msgspec.structs.replace(
            role(stage),
            started_ns=stage.started_ns,
            finished_ns=stage.finished_ns,
            cpu_s=own_cpu_s() - cpu_before_s,
        )
    except BaseException as error:
        story = traceback.format_exception(error)
        outcome = RoleOutcome(failure="".join(story[-3:]).strip())
    sender.send(outcome)


def own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def wait_until_ready(roles: Sequence[RoleProcess]) -> None:
    deadline = time.monotonic() + TRIAL_TIMEOUT_S
    for role in roles:
        while not role.ready.acquire(timeout=0.05):
            if role.outcomes.poll():
                role.wait_for_outcome()  # raises its failure
            if time.monotonic() > deadline:
                raise TrialFailed("a role never became ready")


def collect(roles: Sequence[RoleProcess]) -> list[RoleOutcome]:
    """Collects outcomes in the order of the roles; the first failure ends the wait."""
    deadline = time.monotonic() + TRIAL_TIMEOUT_S
    outcomes: dict[int, RoleOutcome] = {}
    while len(outcomes) < len(roles):
        waiting = [role for index, role in enumerate(roles) if index not in outcomes]
        left_s = max(0.0, deadline - time.monotonic())
        if not wait([role.outcomes for role in waiting], left_s):
            raise TrialFailed(f"not finished within {TRIAL_TIMEOUT_S:.0f} s")
        for index, role in enumerate(roles):
            if index not in outcomes and role.outcomes.poll():
                outcomes[index] = role.wait_for_outcome()
    return [outcomes[index] for index in range(len(roles))]
