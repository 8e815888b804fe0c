"""A broker's disk effects on a real log over a disk with injected failures."""

from __future__ import annotations

from rostra.broker.api import FindLast, ListSegments, Persisted, SegmentsListed, SyncedTogether, SyncFailed
from rostra.broker.disk import Disk, Job
from rostra.errors import DiskUntrusted, UnknownPartition
from rostra.fabric.api import Append, Drop, Open, Persist, Read, ReadFailed, Sync, Synced, Truncate
from rostra.model.ids import Partition, PartitionIndex
from rostra.simulator.disk.faulty_files import FaultyFiles
from tests.unit.log.batches import PARTITION, batch, faulty, opened


def ready() -> tuple[Disk, FaultyFiles]:
    files = faulty()
    disk = Disk(opened(files))
    disk.change(Open(PARTITION, 1 << 20))
    return disk, files


def finished(job: Job | None) -> list[object]:
    assert job is not None
    for call in job.calls:
        call()
    return list(job.finish())


def test_a_sync_that_begins_before_the_flush_leaves_the_batch_to_the_next_one() -> None:
    disk, _ = ready()
    disk.change(Append(PARTITION, batch(0)))
    disk.change(Sync(PARTITION))
    disk.flush()
    disk.change(Append(PARTITION, batch(1)))
    disk.change(Sync(PARTITION))
    assert finished(disk.begin_sync()) == [Synced(PARTITION, 0, 1)]
    assert disk.wants_sync
    disk.flush()
    assert finished(disk.begin_sync()) == [Synced(PARTITION, 0, 2)]
    assert not disk.wants_sync


def test_batches_synced_together_are_reported_together() -> None:
    other = Partition(PARTITION.topic, PartitionIndex(PARTITION.index + 1))
    for syncs in (False, True):
        disk = Disk(opened(faulty()), syncs=syncs)
        for partition in (PARTITION, other):
            disk.change(Open(partition, 1 << 20))
            disk.change(Append(partition, batch(0, partition=partition), True))
        inputs = disk.flush() or finished(disk.begin_sync())
        assert inputs == [SyncedTogether((Synced(PARTITION, 0, 1), Synced(other, 0, 1)))]
        disk.change(Append(other, batch(1, partition=other), True))
        assert (disk.flush() or finished(disk.begin_sync())) == [Synced(other, 0, 2)], "alone it needs no company"


def test_a_failed_write_of_hard_state_counts_as_a_failed_sync() -> None:
    disk, files = ready()
    assert finished(disk.begin_persist(Persist("key", b"state"))) == [Persisted(())]
    files.faults.write_failure_chance = 1.0
    (broke,) = finished(disk.begin_persist(Persist("key", b"other")))
    assert isinstance(broke, SyncFailed) and isinstance(broke.error, DiskUntrusted)


def test_a_lookup_is_answered_although_its_log_was_dropped_meanwhile() -> None:
    disk, _ = ready()
    disk.change(Append(PARTITION, batch(0)))
    disk.flush()
    disk.change(Drop(PARTITION))
    read = disk.look_up(Read(1, PARTITION, 0, 1, 100))
    assert isinstance(read, ReadFailed) and isinstance(read.error, UnknownPartition)
    assert isinstance(disk.look_up(FindLast(2, PARTITION, 1, 1)), ReadFailed)
    assert disk.look_up(ListSegments(PARTITION)) == SegmentsListed(PARTITION, ())


def test_a_failed_truncation_counts_as_a_failed_sync_and_leaves_the_log() -> None:
    disk, files = ready()
    for offset in range(2):
        disk.change(Append(PARTITION, batch(offset)))
    disk.change(Sync(PARTITION))
    disk.flush()
    finished(disk.begin_sync())
    files.faults.sync_failure_chance = 1.0
    disk.change(Truncate(PARTITION, 1, 1))
    disk.change(Append(PARTITION, batch(1)))
    (broke,) = disk.flush()
    assert isinstance(broke, SyncFailed)
    assert disk.store.end(PARTITION) == 2
