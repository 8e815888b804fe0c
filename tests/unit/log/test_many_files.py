"""More partitions with unsynced writes than files may be open."""

from __future__ import annotations

from random import Random

import pytest

from rostra.errors import DiskUntrusted
from rostra.log.facts import LogSettings
from rostra.log.store import Store
from rostra.model.ids import Partition, PartitionIndex
from rostra.simulator.disk.faulty_files import FaultyFiles
from tests.unit.log.batches import PARTITION, batch, read_all

OPEN_MAX = 3
PARTITIONS = [Partition(PARTITION.topic, PartitionIndex(number)) for number in range(10)]


def settings(*, syncs: bool = True) -> LogSettings:
    return LogSettings(files_open_max=OPEN_MAX, journal_bytes=4096, syncs=syncs)


def written(files: FaultyFiles, *, syncs: bool = True) -> Store:
    store = Store(files, settings(syncs=syncs))
    store.recover()
    for partition in PARTITIONS:
        store.open(partition, 1 << 20)
        store.append(partition, [batch(0, 2, partition=partition)])
        held = sum(file is not None for log in store._logs.values() for file, _ in log.dirty.values())
        assert held <= OPEN_MAX and len(store._open_files) <= OPEN_MAX
    return store


def recovered(files: FaultyFiles) -> list[Partition]:
    store = Store(files, settings())
    store.recover()
    return [
        partition
        for partition in PARTITIONS
        if partition in store._logs and read_all(store, partition) == [batch(0, 2, partition=partition)]
    ]


@pytest.mark.parametrize("sync_all", [True, False])
def test_what_a_sync_vouches_for_is_there_although_its_file_was_let_go_of(sync_all: bool) -> None:
    files = FaultyFiles(Random(1))
    files.has_sync_all = sync_all
    store = written(files)
    job = store.begin_sync(PARTITIONS)
    job.run()
    assert [durable.partition for durable in job.finish()] == PARTITIONS
    assert not store._dirty
    files.crash()
    assert recovered(files) == PARTITIONS


def test_partitions_beyond_the_bound_wait_for_no_disk_while_they_are_written() -> None:
    files = FaultyFiles(Random(1))
    files.faults.sync_failure_chance = 0.0
    store = Store(files, settings())
    store.recover()
    files.faults.sync_failure_chance = 1.0
    for partition in PARTITIONS:
        store.open(partition, 1 << 20)
        store.append(partition, [batch(0, 2, partition=partition)])
    assert not files.counters["syncs_failed"]


@pytest.mark.parametrize("sync_all", [True, False])
def test_a_store_that_does_not_sync_syncs_nothing_before_it_is_closed(sync_all: bool) -> None:
    files = FaultyFiles(Random(1))
    files.has_sync_all = sync_all
    store = written(files, syncs=False)
    assert not any(files.durable_sizes().values())
    store.close(clean=True)
    files.crash()
    assert recovered(files) == PARTITIONS


def test_a_failed_sync_of_a_file_that_was_let_go_of_is_not_missed() -> None:
    files = FaultyFiles(Random(1))
    store = written(files)
    files.faults.sync_failure_chance = 1.0
    job = store.begin_sync(PARTITIONS[:1])
    with pytest.raises(DiskUntrusted):
        job.run()
    with pytest.raises(DiskUntrusted):
        job.finish()
