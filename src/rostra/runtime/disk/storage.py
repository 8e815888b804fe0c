"""Runs the blocking disk work of a node (syncs, hard state, reads, compaction) on worker threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rostra.broker.api import BrokerInput, Compact, SyncFailed
from rostra.broker.disk import Disk, Job, LookUp
from rostra.errors import StorageError
from rostra.fabric.api import Persist
from rostra.runtime.disk.workers import Workers
from rostra.runtime.node_port import NodePort

SYNCERS = 4
READERS = 2
FULL_DISK_RETRY_S = 0.1


class Storage:
    """Syncs run back to back; those of records and of hard state run side by side."""

    def __init__(self, node: NodePort, disk: Disk, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._disk = disk
        self._loop = loop
        self._syncers = Workers(loop, "sync", SYNCERS)
        self._readers = Workers(loop, "read", READERS)
        self._compactor = Workers(loop, "compact", 1)
        self._syncing = False
        self._persists: list[Job] = []
        self._persisting = False

    def stop(self) -> None:
        """Waits until all queued work is done."""
        self._syncers.stop()
        self._readers.stop()
        self._compactor.stop()

    def persist(self, effect: Persist) -> None:
        self._persists.append(self._disk.begin_persist(effect))

    def start_pending(self) -> None:
        """Starts the next sync and the next write of hard state unless they are running. Called at the end of a
        turn."""
        if not self._syncing and self._disk.wants_sync:
            self._start_sync()
        if self._persists and not self._persisting:
            self._start_persisting()

    def _start_sync(self) -> None:
        """Syncs all that was written by now; the next sync starts when this one has finished."""
        job = self._disk.begin_sync()
        if job is None:
            if self._disk.wants_sync:
                self._loop.call_later(FULL_DISK_RETRY_S, self._node.end_turn)
            return
        self._syncing = True
        started = time.perf_counter()

        def done() -> None:
            self._syncing = False
            self._node.counters.synced((time.perf_counter() - started) * 1000)

        self._run(job, done, self._syncers)

    def compact(self, effect: Compact) -> None:
        """On a thread of its own, since its steps run in sequence and nothing waits for them."""
        self._run(self._disk.begin_compaction(effect), lambda: None, self._compactor)

    def _start_persisting(self) -> None:
        """One sync of the journal for all hard state since the last one: many groups elect at the same time."""
        jobs, self._persists = self._persists, []
        calls = next((job.calls for job in reversed(jobs) if job.calls), [])
        self._persisting = True

        def done() -> None:
            self._persisting = False

        self._run(Job(calls, lambda: [given for job in jobs for given in job.finish()]), done, self._syncers)

    def _run(self, job: Job, done: Callable[[], None], workers: Workers) -> None:
        """Runs the calls in parallel, then gives the resulting inputs, or the failure, to the broker."""

        def over(error: BaseException | None) -> None:
            done()
            node = self._node
            if node.closed:
                return
            try:
                if error is not None:
                    raise error
                happened = job.finish()
            except StorageError as failure:
                happened = [SyncFailed(failure)]
            for given in happened:
                node.step(given)
            node.end_turn()

        workers.run(job.calls, over)

    def look_up(self, effect: LookUp) -> None:
        """On a thread, so that a slow read delays only the subscriber that needs it."""
        found: list[BrokerInput] = []

        def over(error: BaseException | None) -> None:
            if error is not None:
                raise error
            self._node.step(found[0])
            self._node.end_turn()

        self._readers.run([lambda: found.append(self._disk.look_up(effect))], over)
