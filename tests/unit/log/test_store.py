"""Appending, reading, rolling, truncating, trimming; on real and simulated files alike."""

from __future__ import annotations

from errno import EIO
from threading import Event, Thread

import pytest

from rostra.errors import CorruptLog, DiskFailed, DiskFull, DiskUntrusted, OffsetTrimmed
from rostra.log.facts import Durable, LogSettings
from rostra.log.files import Files
from rostra.log.store import Store
from rostra.simulator.disk.faulty_files import FaultyFile
from rostra.simulator.disk.inode import Inode
from tests.unit.log.batches import (
    DIRECTORY,
    OTHER,
    PARTITION,
    SMALL,
    batch,
    chain,
    faulty,
    opened,
    read_all,
    split,
    sync,
)


def test_a_read_begins_with_the_batch_that_holds_the_offset(files: Files) -> None:
    store = opened(files)
    batches = chain(3, 4, 5)
    store.append(PARTITION, batches)
    for offset, first in ((0, 0), (2, 0), (3, 1), (6, 1), (7, 2), (11, 2)):
        chunk = store.read(PARTITION, offset, 12, 1 << 20)
        assert chunk.batches == b"".join(batches[first:])
        assert chunk.next == 12


def test_a_read_gives_one_batch_even_if_it_is_larger_than_asked(files: Files) -> None:
    store = opened(files)
    batches = chain(100, 1)
    store.append(PARTITION, batches)
    assert store.read(PARTITION, 5, 101, 1) == (bytes(batches[0]), 100)


def test_a_read_stays_within_its_bytes(files: Files) -> None:
    store = opened(files)
    batches = chain(*[2] * 50)
    store.append(PARTITION, batches)
    size = len(batches[0])
    for wanted in (size, 2 * size, 7 * size + 5):
        chunk = store.read(PARTITION, 40, 100, wanted)
        assert size <= len(chunk.batches) <= wanted
        assert b"".join(batches[20:]).startswith(chunk.batches)


def test_a_read_shows_nothing_at_or_beyond_its_end(files: Files) -> None:
    store = opened(files)
    batches = chain(2, 2, 2, 2)
    store.append(PARTITION, batches)
    assert store.read(PARTITION, 0, 4, 1 << 20) == (b"".join(batches[:2]), 4)
    assert store.read(PARTITION, 4, 4, 1 << 20) == (b"", 4)
    assert store.read(PARTITION, 8, 100, 1 << 20) == (b"", 8)


def test_a_checkpoint_begins_a_segment_wherever_it_stands_in_an_append(files: Files) -> None:
    store = opened(files)
    batches = chain(0, 2, 3, 0, 2, 0, 1)
    store.append(PARTITION, batches)
    assert [(facts.first, facts.next) for facts in store.sealed(PARTITION)] == [(0, 6), (6, 9)]
    assert [name for name in files.names(DIRECTORY) if name.endswith(".log")] == [
        f"{first:020}.log" for first in (0, 6, 9)
    ]
    assert store.segment_bytes(PARTITION) == len(batches[5]) + len(batches[6])
    assert store.bytes(PARTITION) == sum(map(len, batches))
    assert read_all(store) == batches


def test_sealed_segments_say_how_old_they_are(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, [batch(0, 2, times_us=[50, 900]), batch(2, checkpoint=True)])
    (facts,) = store.sealed(PARTITION)
    assert facts.max_us == 900
    assert facts.bytes == len(batch(0, 2, times_us=[50, 900]))


def test_opening_twice_changes_nothing(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(5))
    store.open(PARTITION, 1 << 20, first=400)
    assert store.end(PARTITION) == 5


def test_a_log_may_begin_anywhere(files: Files) -> None:
    store = opened(files)
    store.open(OTHER, 1 << 20, first=1000)
    batches = [batch(1000, 3, partition=OTHER)]
    store.append(OTHER, batches)
    assert (store.first(OTHER), store.end(OTHER)) == (1000, 1003)
    with pytest.raises(OffsetTrimmed):
        store.read(OTHER, 999, 1003, 100)
    sync(store, OTHER)
    store.close(clean=False)
    (facts,) = [log for log in Store(files, SMALL).recover().logs if log.partition == OTHER]
    assert (facts.first, facts.end) == (1000, 1003)


def test_truncation_cuts_across_segments_and_raises_the_generation(files: Files) -> None:
    store = opened(files)
    batches = chain(0, 2, 3, 0, 2, 0, 1)
    store.append(PARTITION, batches)
    assert store.truncate(PARTITION, 9) == 1
    assert read_all(store) == batches[:5]
    assert store.truncate(PARTITION, 3) == 2
    assert read_all(store) == batches[:2]
    assert [name for name in files.names(DIRECTORY) if name.endswith(".index")] == []
    other = chain(2, 0, 2, base=3, epoch=2, value=b"other")
    store.append(PARTITION, other)
    assert read_all(store) == batches[:2] + other
    store.close(clean=False)
    (facts,) = Store(files, SMALL).recover().logs
    assert facts.epochs == ((1, 0), (2, 3))
    assert facts.end == 8


def test_truncation_to_the_start_leaves_an_empty_log(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(0, 2))
    store.truncate(PARTITION, 0)
    assert (store.first(PARTITION), store.end(PARTITION), store.bytes(PARTITION)) == (0, 0, 0)
    store.append(PARTITION, chain(0, 1, epoch=2))
    assert read_all(store) == chain(0, 1, epoch=2)


def test_a_truncation_at_the_end_still_raises_the_generation(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(3))
    assert store.truncate(PARTITION, 3) == 1
    assert store.end(PARTITION) == 3


def test_a_sync_begun_before_a_truncation_vouches_for_the_old_generation_only(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(3, 3))
    job = store.begin_sync([PARTITION])
    store.truncate(PARTITION, 3)
    store.append(PARTITION, chain(5, base=3, epoch=2))
    job.run()
    assert job.finish() == [Durable(PARTITION, 0, 6)]
    assert store.generation(PARTITION) == 1


def test_a_sync_vouches_for_what_was_written_when_it_began(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(3))
    job = store.begin_sync([PARTITION])
    store.append(PARTITION, chain(3, base=3))
    job.run()
    assert job.finish() == [Durable(PARTITION, 0, 3)]


def test_two_syncs_under_way_at_once_both_cover_the_file() -> None:
    files = faulty()
    store = opened(files)
    store.append(PARTITION, chain(3))
    first, second = store.begin_sync([PARTITION]), store.begin_sync([PARTITION])
    second.run()
    assert second.finish() == [Durable(PARTITION, 0, 3)]
    files.crash()
    (facts,) = Store(files, SMALL).recover().logs
    assert facts.end == 3
    assert len(first.calls) >= 1


def test_a_sync_of_a_dropped_partition_vouches_for_nothing(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(3))
    job = store.begin_sync([PARTITION])
    store.drop(PARTITION)
    store.open(PARTITION, 1 << 20)
    job.run()
    assert job.finish() == []


def test_a_partition_dropped_before_its_sync_has_run_breaks_nothing(files: Files) -> None:
    store = opened(files)
    store.open(OTHER, 1 << 20)
    store.append(PARTITION, chain(3))
    store.append(OTHER, chain(2))
    job = store.begin_sync([PARTITION, OTHER])
    store.drop(PARTITION)
    job.run()
    assert job.finish() == [Durable(OTHER, 0, 2)]


def test_a_dropped_partition_is_gone_for_good(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(3))
    sync(store)
    store.drop(PARTITION)
    assert files.names("topics") == []
    store.close(clean=False)
    assert Store(files, SMALL).recover().logs == ()


def test_trimming_removes_whole_segments_below_the_offset(files: Files) -> None:
    store = opened(files)
    batches = chain(0, 2, 0, 2, 0, 2)
    store.append(PARTITION, batches)
    store.trim(PARTITION, 5)
    assert store.first(PARTITION) == 3
    with pytest.raises(OffsetTrimmed, match="below 3"):
        store.read(PARTITION, 2, 9, 100)
    assert read_all(store) == batches[2:]
    store.trim(PARTITION, 9)
    assert store.first(PARTITION) == 6, "the active segment stays"
    assert files.names(DIRECTORY) == [f"{6:020}.log"]
    store.close(clean=False)
    (facts,) = Store(files, SMALL).recover().logs
    assert (facts.first, facts.end, facts.epochs) == (6, 9, ((1, 6),))


def test_the_last_records_are_found_without_counting_control_batches(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, [*chain(0, 2, 3, 0, 2), batch(9, control=True), *chain(4, base=10)])
    expected = [14, 13, 12, 11, 10, 8, 7, 5, 4, 3, 2, 1, 0, 0]
    assert [store.find_last(PARTITION, count, 14) for count in range(len(expected))] == expected
    assert store.find_last(PARTITION, 1, 9) == 8
    assert store.find_last(PARTITION, 3, 6) == 3


def test_from_a_time_on_is_the_first_record_at_or_after_it(files: Files) -> None:
    store = opened(files)
    times = [[10, 30, 20], [25, 5], [40], [35, 60, 50], [45]]
    base = 0
    flat: list[int] = []
    for number, some in enumerate(times):
        store.append(PARTITION, [batch(base, len(some), times_us=some)])
        base += len(some)
        flat += some
        if number == 2:
            store.append(PARTITION, [batch(base, checkpoint=True)])
            base += 1
            flat.append(-1)
    for wanted in range(70):
        first = next((offset for offset, time_us in enumerate(flat) if time_us >= wanted), base)
        assert store.find_time(PARTITION, wanted, base) == first
        # What lies behind the end asked for may still be cut: it is not looked at.
        for end in (0, 3, 5, 6, 7, 10, 11):
            assert store.find_time(PARTITION, wanted, end) == min(first, end)


def test_what_is_suppressed_is_neither_counted_nor_found_by_its_time(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, [batch(0, 2), batch(2, 3, suppressed=True), batch(5), batch(6, suppressed=True)])
    assert [store.find_last(PARTITION, count, 7) for count in range(5)] == [7, 5, 1, 0, 0]
    assert store.find_time(PARTITION, 1_000_002, 7) == 5
    assert store.find_time(PARTITION, 1_000_006, 7) == 7


def test_a_full_disk_refuses_the_append_and_reads_go_on() -> None:
    files = faulty(capacity_bytes=6000)
    store = opened(files)
    written: list[bytearray] = []
    with pytest.raises(DiskFull):
        while True:
            some = chain(0, 20, base=store.end(PARTITION))
            store.append(PARTITION, some)
            written += some
    assert store.end(PARTITION) < 200
    assert read_all(store)[: len(written)] == written
    sync(store)
    files.faults.capacity_bytes = 60_000
    end = store.end(PARTITION)
    store.append(PARTITION, chain(0, 20, base=end))
    assert read_all(store)[-2:] == chain(0, 20, base=end)
    assert files.counters["disk_full"] > 0


def test_a_refused_checkpoint_leaves_the_segment_before_it_active() -> None:
    files = faulty()
    store = opened(files)
    store.append(PARTITION, chain(0, 2))
    files.faults.write_failure_chance = 1.0
    with pytest.raises(DiskFailed):
        store.append(PARTITION, chain(0, 2, base=3))
    files.faults.write_failure_chance = 0.0
    assert store.end(PARTITION) == 3
    assert store.sealed(PARTITION) == ()
    store.append(PARTITION, chain(2, 0, base=3))
    assert read_all(store) == chain(0, 2, 2, 0)


def test_after_a_failed_sync_the_store_vouches_for_nothing() -> None:
    files = faulty()
    store = opened(files)
    store.append(PARTITION, chain(2))
    files.faults.sync_failure_chance = 1.0
    job = store.begin_sync([PARTITION])
    with pytest.raises(DiskUntrusted):
        job.run()
    files.faults.sync_failure_chance = 0.0
    with pytest.raises(DiskUntrusted):
        job.finish()
    with pytest.raises(DiskUntrusted):
        store.begin_sync([PARTITION])
    with pytest.raises(DiskUntrusted):
        store.begin_persist("vote", b"1")
    assert read_all(store) == chain(2)
    store.close(clean=True)
    files.crash()
    assert not Store(files, SMALL).recover().clean


def test_the_start_after_a_failed_sync_saves_what_the_system_holds_for_written() -> None:
    files = faulty()
    store = opened(files)
    sync(store)
    store.append(PARTITION, chain(2, 3))
    job = store.begin_sync([PARTITION])
    files.faults.sync_failure_chance = 1.0
    for call in job.calls:
        with pytest.raises(DiskUntrusted):
            call()
    files.faults.sync_failure_chance = 0.0
    store.close(clean=False)
    # The process ends, not the machine: the bytes are still readable, and no sync would write them.
    (facts,) = Store(files, SMALL).recover().logs
    assert facts.end == 5
    files.crash()
    (facts,) = Store(files, SMALL).recover().logs
    assert (facts.end, facts.damaged_at) == (5, None)


def test_hard_state_is_there_after_a_crash_once_its_job_has_run(files: Files) -> None:
    store = opened(files)
    for round_number in range(200):
        job = store.begin_persist(f"key-{round_number % 7}", b"value %d" % round_number)
        job.run()
        job.finish()
    store.close(clean=False)
    hard = Store(files, SMALL).recover().hard
    assert hard == {f"key-{number % 7}": b"value %d" % number for number in range(193, 200)}


def test_files_open_stay_within_their_bound() -> None:
    files = faulty()
    store = Store(files, LogSettings(files_open_max=3, journal_bytes=4096))
    store.recover()
    partitions = [type(PARTITION)(PARTITION.topic, type(PARTITION.index)(number)) for number in range(10)]
    for partition in partitions:
        store.open(partition, 1 << 20)
        store.append(partition, [batch(0, 2, partition=partition)])
        assert len(store._open_files) <= 3
        assert len(store._kept_open) <= 3
    for partition in partitions:
        assert read_all(store, partition) == [batch(0, 2, partition=partition)]
        assert len(store._open_files) <= 3


def test_damage_is_never_served_while_the_store_runs(files: Files) -> None:
    store = opened(files)
    batches = chain(0, 2, 3, 4, 0, 2)
    store.append(PARTITION, batches)
    sync(store)
    file = files.open(f"{DIRECTORY}/{0:020}.log")
    position = len(batches[0]) + len(batches[1]) + 100
    file.write_at(position, bytes([file.read(position, 1)[0] ^ 1]))
    assert split(store.read(PARTITION, 0, 13, 1 << 20).batches) == batches[:2]
    with pytest.raises(CorruptLog) as damage:
        store.read(PARTITION, 4, 13, 1 << 20)
    assert damage.value.path == f"{DIRECTORY}/{0:020}.log"
    assert split(store.read(PARTITION, 10, 13, 1 << 20).batches) == batches[4:]


def test_a_batch_of_another_partition_is_damage(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(2))
    files.open(f"{DIRECTORY}/{0:020}.log").write_at(0, batch(0, 2, partition=OTHER))
    with pytest.raises(CorruptLog):
        store.read(PARTITION, 0, 2, 100)


def test_an_intact_batch_in_the_wrong_place_is_damage(files: Files) -> None:
    store = opened(files)
    batches = chain(2, 2, 2)
    store.append(PARTITION, batches)
    assert len(batches[0]) == len(batches[1])
    files.open(f"{DIRECTORY}/{0:020}.log").write_at(len(batches[0]), batches[0])
    assert split(store.read(PARTITION, 0, 6, 1 << 20).batches) == batches[:1]
    with pytest.raises(CorruptLog, match="offset 0 found where 2 was expected"):
        store.read(PARTITION, 2, 6, 1 << 20)


def test_an_index_that_is_lost_or_wrong_is_made_again(files: Files) -> None:
    store = opened(files)
    batches = chain(0, *[1] * 40, 0, 1)
    store.append(PARTITION, batches)
    sync(store)
    store.close(clean=True)
    path = f"{DIRECTORY}/{0:020}.index"
    for spoiled in (None, b"\xff\xff"):
        if spoiled is None:
            files.remove(path)
        else:
            files.open(path).write_at(90, spoiled)
        store = Store(files, SMALL)
        recovery = store.recover()
        assert [note.event for note in recovery.notes] == ["index_rebuilt"]
        assert read_all(store) == batches
        store.close(clean=True)


def test_reading_goes_on_beside_appending_rolling_and_trimming(files: Files) -> None:
    store = opened(files, LogSettings(index_every_bytes=256, files_open_max=2, indexes_cached_max=2))
    done = Event()
    failures: list[BaseException] = []

    def follow() -> None:
        offset = 0
        try:
            while not (done.is_set() and offset >= store.end(PARTITION)):
                try:
                    chunk = store.read(PARTITION, offset, store.end(PARTITION), 2000)
                except OffsetTrimmed:
                    offset = store.first(PARTITION)
                    continue
                for found in split(chunk.batches):
                    base = int.from_bytes(found[8:16], "little")
                    assert base == offset
                    offset = base + 1 + int.from_bytes(found[24:28], "little")
        except BaseException as failure:
            failures.append(failure)

    readers = [Thread(target=follow) for _ in range(3)]
    for reader in readers:
        reader.start()
    end = 0
    for round_number in range(300):
        some = chain(*([0] if round_number % 10 == 0 else []), 2, 3, base=end)
        store.append(PARTITION, some)
        end = store.end(PARTITION)
        if round_number % 50 == 49:
            store.trim(PARTITION, end - 150)
    done.set()
    for reader in readers:
        reader.join(timeout=30)
        assert not reader.is_alive()
    assert failures == []


def test_a_write_that_cannot_be_undone_closes_the_log_for_writing() -> None:
    files = faulty()
    store = opened(files)
    store.append(PARTITION, chain(2))

    class Stuck(FaultyFile):
        def truncate(self, size: int) -> None:
            raise OSError(EIO, "stuck")

    inode = files._directory(DIRECTORY).entries[f"{0:020}.log"]
    assert isinstance(inode, Inode)
    stuck = Stuck(files, inode)
    store._open_files.forget(f"{DIRECTORY}/{0:020}.log")
    store._open_files._keep(f"{DIRECTORY}/{0:020}.log", stuck)
    files.faults.write_failure_chance = 1.0
    with pytest.raises(DiskFailed):
        store.append(PARTITION, chain(2, base=2))
    files.faults.write_failure_chance = 0.0
    with pytest.raises(DiskFailed, match="could not be undone"):
        store.append(PARTITION, chain(2, base=2))
    assert read_all(store) == chain(2)


@pytest.mark.requirement("CM-13:checksums")
def test_bits_flipped_below_what_a_start_found_are_always_noticed() -> None:
    for seed in range(60):
        files = faulty(seed)
        store = opened(files)
        batches = chain(0, *[3] * 8, 0, *[3] * 4)
        store.append(PARTITION, batches)
        sync(store)
        store.close(clean=seed % 2 == 0)
        store = Store(files, SMALL)
        (facts,) = store.recover().logs
        logs = {path: size for path, size in files.durable_sizes().items() if path.endswith(".log")}
        files.flip_bits(1, below=logs)
        store.append(PARTITION, chain(3, base=facts.end))
        files.crash()
        store = Store(files, SMALL)
        (facts,) = store.recover().logs
        with pytest.raises(CorruptLog):
            read_all(store)
            store.read(PARTITION, store.end(PARTITION), 1 << 40, 100)


def test_a_killed_process_leaves_its_last_sync_marked() -> None:
    files = faulty()
    store = opened(files)
    store.append(PARTITION, chain(2, 3))
    sync(store)
    store.append(PARTITION, chain(4, base=5))
    store.close(clean=False)
    file = files.open(f"{DIRECTORY}/{0:020}.log")
    file.write_at(len(chain(2, 3)[0]) + 100, b"\xff")
    (facts,) = Store(files, SMALL).recover().logs
    assert facts.damaged_at == 2


def test_an_idle_store_makes_its_marks_durable_once() -> None:
    files = faulty()
    store = opened(files)
    store.append(PARTITION, chain(2))
    sync(store)
    job = store.begin_mark()
    assert len(job.calls) == 1
    job.run()
    assert job.finish() == []
    assert store.begin_mark().calls == []
