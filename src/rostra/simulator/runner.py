"""Runs many seeds in worker processes, reruns some of them in a new process, and sums up the results."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from threading import Event, current_thread, main_thread

import msgspec

from rostra.safeguards import ALL_ON, Safeguard, Without
from rostra.simulator.faults.fault_plan import CLUSTER_FAULTS, Fault
from rostra.simulator.seed import WORLDS, SeedResult, run_seed

SEEDS_PER_TASK = 8
TASKS_PER_WORKER = 2
POLL_S = 0.2
EVERY_FAULT_FROM_SEEDS = 200
"""From this many seeds on, every fault must have taken effect at least once."""
_HASH_SEEDS = ("1", "2")


class Summary:
    """Sums up the results of seeds, in any order."""

    def __init__(self, nodes: int = 0, fabric: str = "raft") -> None:
        self.nodes = nodes
        self.fabric = fabric
        excluded_faults = WORLDS[fabric].excluded_faults
        self.expected = tuple(
            fault for fault in Fault if (nodes != 1 or fault not in CLUSTER_FAULTS) and fault not in excluded_faults
        )
        """The faults that must take effect; a single node has no faults between nodes."""
        self.seeds = 0
        self.operations = 0
        self.events = 0
        self.virtual_us = 0
        self.cpu_s = 0.0
        self.faults: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self.failed: list[SeedResult] = []
        self.digests: dict[int, str] = {}
        self.rerun = 0
        self.mismatched: list[int] = []
        """Seeds whose rerun had another digest."""

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        self.operations += result.operations
        self.events += result.events
        self.virtual_us += result.virtual_us
        self.cpu_s += result.cpu_s
        for fault, count in result.faults.items():
            self.faults[fault] += count
        self.digests[result.seed] = result.digest
        if result.violations:
            self.failed.append(result)

    def compare(self, digests: dict[int, str]) -> None:
        self.rerun += len(digests)
        self.mismatched += [seed for seed, digest in digests.items() if self.digests[seed] != digest]

    @property
    def missing(self) -> list[Fault]:
        """Faults that never took effect, if there were enough seeds to expect them."""
        if self.seeds < EVERY_FAULT_FROM_SEEDS:
            return []
        return [fault for fault in self.expected if not self.faults[fault]]

    @property
    def clean(self) -> bool:
        return not (self.failed or self.missing or self.mismatched)


def run_seeds(
    seeds: Sequence[int],
    *,
    fabric: str = "raft",
    nodes: int = 0,
    workers: int = 1,
    without: Without = ALL_ON,
    rerun: float = 0.0,
    done: Callable[[SeedResult], None] = lambda _: None,
) -> Summary:
    """Runs every seed once, and the share `rerun` of them again in a new process under another hash seed.

    `nodes` 0 means as many as each seed draws.
    """
    summary = Summary(nodes, fabric)
    for result in _results(seeds, fabric, nodes, workers, without):
        summary.add(result)
        done(result)
    chosen = list(seeds)[:: max(round(1 / rerun), 1)] if rerun > 0 else []
    if chosen:
        summary.compare(digests_in_new_process(chosen, nodes, without, fabric))
    return summary


def _results(seeds: Sequence[int], fabric: str, nodes: int, workers: int, without: Without) -> Iterator[SeedResult]:
    if workers <= 1:
        with _collecting_between_seeds():
            for seed in seeds:
                yield _run_one(seed, fabric, nodes, without)
        return
    tasks = [list(seeds[at : at + SEEDS_PER_TASK]) for at in range(0, len(seeds), SEEDS_PER_TASK)][::-1]
    # Spawned, not forked: a forked worker could inherit locks held by threads of the caller.
    # Ctrl-C reaches all processes; only this one handles it and ends the workers.
    with (
        _deferred_interrupt() as interrupted,
        ProcessPoolExecutor(
            workers, get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
        ) as pool,
    ):
        others = set(active_children())
        running: set[Future[list[SeedResult]]] = set()
        while tasks or running:
            while tasks and len(running) < workers * TASKS_PER_WORKER:
                running.add(pool.submit(_run_task, tasks.pop(), fabric, nodes, sorted(without)))
            finished, running = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for task in finished:
                yield from task.result()
            if interrupted.is_set():
                # No task is cancelled: the thread of the pool fails on a cancelled task when its workers are gone.
                for worker in set(active_children()) - others:
                    worker.kill()
                # Leaving the pool joins its thread, which ends once the workers are gone.
                raise KeyboardInterrupt


@contextmanager
def _deferred_interrupt() -> Iterator[Event]:
    """Sets an event at Ctrl-C, because a KeyboardInterrupt raised anywhere may leave a lock of the pool held."""
    interrupted = Event()
    if current_thread() is not main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _run_task(seeds: list[int], fabric: str, nodes: int, without: list[str]) -> list[SeedResult]:
    switched_off = frozenset(map(Safeguard, without))
    with _collecting_between_seeds():
        return [_run_one(seed, fabric, nodes, switched_off) for seed in seeds]


def _run_one(seed: int, fabric: str, nodes: int, without: Without) -> SeedResult:
    """Runs a seed; its CPU time includes the garbage collection of its world."""
    began_s = time.process_time()
    result = run_seed(seed, fabric=fabric, nodes=nodes, without=without)
    gc.collect()
    return msgspec.structs.replace(result, cpu_s=time.process_time() - began_s)


@contextmanager
def _collecting_between_seeds() -> Iterator[None]:
    """Turns the garbage collector off within a seed: a world becomes garbage as a whole, and collecting costs 10 %.

    Objects that exist already are frozen, so that collections between seeds skip them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def digests_in_new_process(
    seeds: Sequence[int], nodes: int = 0, without: Without = ALL_ON, fabric: str = "raft"
) -> dict[int, str]:
    """The digests of these seeds, run in a new process with another `PYTHONHASHSEED`."""
    ours = os.environ.get("PYTHONHASHSEED", "")
    hash_seed = next(other for other in _HASH_SEEDS if other != ours)
    chosen = ",".join(map(str, seeds))
    command = [sys.executable, "-m", "rostra.simulator.digests", chosen, str(nodes), ",".join(sorted(without)), fabric]
    printed = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, stdout=subprocess.PIPE, check=True
    ).stdout
    return msgspec.json.decode(printed, type=dict[int, str])
