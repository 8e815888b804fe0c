"""A power cut in the middle of a sync leaves holes, and whole batches behind them: that is no corruption."""

from __future__ import annotations

import pytest

from rostra.log.files import Files
from rostra.log.scan import SECTOR_BYTES
from rostra.log.store import Store
from tests.unit.log.batches import DIRECTORY, PARTITION, SMALL, batch, opened, read_all

SEGMENT = f"{DIRECTORY}/{0:020}.log"
BATCHES = [batch(0), batch(1, value=b"long" * 300), batch(2)]
HOLE_AT = len(BATCHES[0])


def with_a_sync_begun(files: Files) -> Store:
    """The first sync of a log is begun, and nobody knows whether it has ended: no mark says so yet."""
    store = opened(files)
    store.append(PARTITION, BATCHES)
    store.begin_sync([PARTITION])
    store.close(clean=False)
    return Store(files, SMALL)


@pytest.mark.requirement("CM-13:torn-tail")
def test_a_sector_that_never_reached_the_disk_ends_the_log_and_does_not_block_it(files: Files) -> None:
    store = with_a_sync_begun(files)
    files.open(SEGMENT).write_at(SECTOR_BYTES, bytes(SECTOR_BYTES))
    (facts,) = store.recover().logs
    assert (facts.end, facts.damaged_at) == (1, None)
    assert read_all(store) == BATCHES[:1]


def test_a_next_segment_that_outran_the_end_of_the_one_before_goes_with_it(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, [*BATCHES, batch(3, checkpoint=True), batch(4)])
    store.begin_sync([PARTITION])
    store.close(clean=False)
    files.open(SEGMENT).truncate(HOLE_AT + 100)
    store = Store(files, SMALL)
    (facts,) = store.recover().logs
    assert (facts.end, facts.damaged_at) == (1, None)
    assert not files.exists(f"{DIRECTORY}/{3:020}.log")


@pytest.mark.requirement("CM-13:reported")
def test_bytes_that_changed_between_whole_batches_are_corruption(files: Files) -> None:
    store = with_a_sync_begun(files)
    files.open(SEGMENT).write_at(HOLE_AT + 500, b"?")
    (facts,) = store.recover().logs
    assert (facts.end, facts.damaged_at) == (1, 1)


def test_remains_behind_a_sealed_segment_are_cut_when_the_next_goes_on_where_it_ends(files: Files) -> None:
    store = opened(files)
    batches = [batch(0), batch(1, checkpoint=True), batch(2)]
    store.append(PARTITION, batches)
    store.close(clean=True)
    files.open(SEGMENT).append([batch(1)[:60]])
    store = Store(files, SMALL)
    recovery = store.recover()
    assert (recovery.logs[0].end, recovery.logs[0].damaged_at) == (3, None)
    assert ("tail_cut", 60) in [(note.event, note.bytes) for note in recovery.notes]
    assert read_all(store) == batches
