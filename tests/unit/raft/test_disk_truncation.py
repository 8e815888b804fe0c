"""The disk code shared by both drivers, when one turn both appends and truncates."""

from __future__ import annotations

from random import Random

from rostra.broker.disk import Disk
from rostra.fabric.api import Append, Open, Sync, Synced, Truncate
from rostra.log.store import Store
from rostra.model.batch import stamp
from rostra.model.encode import encode
from rostra.simulator.disk.faulty_files import FaultyFiles
from tests.unit.broker.broker_driver import partition_id

HERE = partition_id(5)


def batch(base: int, epoch: int) -> bytearray:
    made = encode([b"%d" % epoch], timestamp_us=1)
    stamp(made, partition=HERE, base_offset=base, owner_epoch=epoch)
    return made


def test_an_append_truncated_in_the_same_turn_is_gone_and_the_rest_syncs_under_the_new_generation() -> None:
    disk = Disk(Store(FaultyFiles(Random(0))))
    disk.boot()
    disk.change(Open(HERE, 1 << 20))
    for effect in (
        Append(HERE, batch(0, 1)),
        Append(HERE, batch(1, 1)),
        Truncate(HERE, 1, 1),
        Append(HERE, batch(1, 2)),
        Sync(HERE),
    ):
        disk.change(effect)
    assert disk.flush() == []
    job = disk.begin_sync()
    assert job is not None
    for call in job.calls:
        call()
    assert job.finish() == [Synced(HERE, 1, 2)]
    assert disk.store.read(HERE, 0, 9, 1 << 20).batches == bytes(batch(0, 1) + batch(1, 2))
