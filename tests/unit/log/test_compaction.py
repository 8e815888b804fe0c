"""Compaction by key: the latest record of each key stays where it was, whatever happens meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rostra.errors import StorageError
from rostra.log.facts import LogFacts, LogSettings
from rostra.log.files import Files
from rostra.log.jobs import CompactJob
from rostra.log.store import Store
from rostra.model.batch import OwnerFlag, read_header, stamp
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.simulator.disk.faulty_files import FaultyFiles, SimulatedCrash
from tests.unit.log.batches import DIRECTORY, PARTITION, SMALL, faulty, opened, read_all, sync

Keyed = list[tuple[bytes | None, bytes | None]]
"""Records of one batch; an empty list stands for a checkpoint."""
NEVER = 0
ALWAYS = 1 << 60

RECORD = st.tuples(st.sampled_from([None, b"a", b"b", b"c"]), st.sampled_from([None, b"", b"one", b"two" * 40]))
BATCH: st.SearchStrategy[Keyed] = st.one_of(
    st.just([]), st.lists(RECORD, min_size=1, max_size=5), st.lists(RECORD, min_size=1, max_size=5)
)


def keyed(base: int, records: Keyed, epoch: int = 1, flags: int = 0) -> bytearray:
    if not records:
        made = encode([b"checkpoint"], timestamp_us=base, control=True)
        flags = int(OwnerFlag.CHECKPOINT)
    else:
        made = encode(
            [value for _, value in records],
            keys=[key for key, _ in records],
            headers=[[("n", b"%d" % place)] for place in range(len(records))],
            timestamp_us=base,
            timestamps_us=[1000 * base + place for place in range(len(records))],
            producer=5,
            producer_epoch=2,
            sequence=base,
        )
    stamp(made, partition=PARTITION, base_offset=base, owner_epoch=epoch, owner_flags=flags)
    return made


def filled(files: Files, batches: list[Keyed], settings: LogSettings = SMALL) -> Store:
    store = opened(files, settings)
    for place, records in enumerate(batches):
        store.append(PARTITION, [keyed(store.end(PARTITION), records, epoch=1 + place // 3)])
    sync(store)
    return store


def run(job: CompactJob) -> int:
    job.run()
    return job.finish()


def compacted(store: Store, below: int | None = None, tombstones_us: int = NEVER) -> int:
    return run(store.begin_compaction(PARTITION, store.end(PARTITION) if below is None else below, tombstones_us))


def records(store: Store) -> list[tuple[int, bytes | None, bytes | None, int]]:
    found: list[tuple[int, bytes | None, bytes | None, int]] = []
    for raw in read_all(store):
        batch = Batch(raw)
        if not batch.is_control:
            found += zip(batch.offsets(), batch.keys(), batch.values(), batch.timestamps(), strict=True)
    return found


def shape(store: Store) -> list[tuple[int, ...]]:
    """What compaction must not change of any batch."""
    headers = map(read_header, read_all(store))
    return [
        (h.base_offset, h.next_offset, h.owner_epoch, h.owner_flags, h.producer, h.producer_epoch, h.sequence)
        for h in headers
    ]


def sealed_end(store: Store) -> int:
    return max((segment.next for segment in store.sealed(PARTITION)), default=store.first(PARTITION))


def expected(
    before: list[tuple[int, bytes | None, bytes | None, int]], below: int
) -> list[tuple[int, bytes | None, bytes | None, int]]:
    latest = {key: offset for offset, key, _, _ in before if offset < below}
    return [row for row in before if row[1] is None or row[0] >= below or latest[row[1]] == row[0]]


@settings(max_examples=150, deadline=None)
@given(st.lists(BATCH, min_size=1, max_size=12), st.booleans())
def test_the_latest_record_of_each_key_stays_where_it_was(batches: list[Keyed], twice: bool) -> None:
    store = filled(faulty(), batches)
    before, forms = records(store), shape(store)
    compacted(store)
    left = expected(before, sealed_end(store))
    # A segment that would not shrink is left alone; then it holds more than it must, never less or other.
    assert [row for row in records(store) if row in left] == left
    assert all(row in before for row in records(store))
    after = {key: value for _, key, value, _ in records(store)}
    assert after == {key: value for _, key, value, _ in before}
    assert shape(store) == forms, "offsets, epochs and stamps are as they were"
    if twice:
        again = records(store)
        assert compacted(store) == 0 and records(store) == again


def test_records_that_a_later_one_replaces_are_gone(files: Files) -> None:
    store = filled(files, [[(b"a", b"x" * 500), (b"b", b"x" * 500)], [], [(b"a", b"y")], [], [(b"b", b"z")]])
    assert compacted(store) > 400
    assert [(offset, key, value) for offset, key, value, _ in records(store)] == [
        (1, b"b", b"x" * 500),
        (3, b"a", b"y"),
        (5, b"b", b"z"),
    ], "the active segment does not count yet"
    assert store.read(PARTITION, 0, 6, 1).next == 2, "a reader is led over the gap"
    assert store.find_last(PARTITION, 2, 6) == 3
    assert store.find_time(PARTITION, 0, 6) == 1


def test_a_batch_may_lose_all_its_records_and_keeps_its_place(files: Files) -> None:
    store = filled(files, [[(b"a", b"x" * 300)], [(b"a", b"y")], []])
    compacted(store)
    first, second, _ = map(Batch, read_all(store))
    assert (first.count, first.base_offset, first.next_offset) == (0, 0, 1)
    assert second.values() == [b"y"]
    assert store.find_time(PARTITION, 0, 3) == 1
    assert store.find_last(PARTITION, 5, 3) == 0


def test_records_without_a_key_and_suppressed_ones_stay(files: Files) -> None:
    store = opened(files)
    suppressed = keyed(1, [(b"a", b"not delivered")], flags=int(OwnerFlag.SUPPRESSED))
    store.append(PARTITION, [keyed(0, [(b"a", b"x" * 300)]), suppressed, keyed(2, [(None, b"1")]), keyed(3, [])])
    sync(store)
    assert compacted(store) == 0
    assert [value for _, _, value, _ in records(store)] == [b"x" * 300, b"not delivered", b"1"]


def test_a_tombstone_goes_when_it_is_old_and_what_it_hides_is_gone(files: Files) -> None:
    store = filled(files, [[(b"a", b"x" * 300)], [(b"a", None)], [(b"b", b"1")], []])
    compacted(store, tombstones_us=ALWAYS)
    assert [(key, value) for _, key, value, _ in records(store)] == [(b"a", None), (b"b", b"1")]
    compacted(store, tombstones_us=NEVER)
    assert [(key, value) for _, key, value, _ in records(store)] == [(b"a", None), (b"b", b"1")]
    compacted(store, tombstones_us=ALWAYS)
    assert [(key, value) for _, key, value, _ in records(store)] == [(b"b", b"1")]


def test_nothing_at_or_above_the_bound_is_touched(files: Files) -> None:
    store = filled(files, [[(b"a", b"x" * 300)], [], [(b"a", b"y" * 300)], [], [(b"a", b"z")]])
    assert compacted(store, below=2) == 0
    assert compacted(store, below=3) > 0


def test_what_is_not_on_stable_storage_is_not_touched(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, [keyed(0, [(b"a", b"x" * 300)]), keyed(1, [(b"a", b"y")]), keyed(2, [])])
    assert compacted(store) == 0


def test_keys_beyond_the_bound_of_memory_keep_all_their_records(files: Files) -> None:
    small = LogSettings(index_every_bytes=256, compact_keys_bytes_max=1)
    before: list[Keyed] = [[(b"a", b"x" * 300)], [(b"b", b"x" * 300)], [(b"a", b"1")], [(b"b", b"1")], []]
    store = filled(files, before, small)
    compacted(store)
    assert [key for _, key, _, _ in records(store)] == [b"b", b"a", b"b"]


def test_a_start_finds_the_compacted_log(files: Files) -> None:
    store = filled(files, [[(b"a", b"x" * 300)], [(b"b", b"y")], [(b"a", b"y")], [], [(b"a", b"z")]])
    compacted(store)
    left, names = records(store), files.names(DIRECTORY)
    assert [name for name in names if name.endswith(".log")] == [f"{0:020}.1.log", f"{3:020}.log"]
    store.close(clean=False)
    store = Store(files, SMALL)
    recovery = store.recover()
    assert recovery.notes == () and records(store) == left
    store.append(PARTITION, [keyed(5, []), keyed(6, [(b"b", b"v")])])
    sync(store)
    compacted(store)
    assert [key for _, key, _, _ in records(store)] == [b"b", b"a", b"b"]


def test_a_compacted_log_is_trimmed_truncated_and_dropped_like_any_other(files: Files) -> None:
    batches: list[Keyed] = [[(b"a", b"x" * 300)], [(b"a", b"1")], [], [(b"a", b"x" * 300), (b"a", b"2")], []]
    store = filled(files, batches)
    compacted(store)
    store.truncate(PARTITION, 5)
    store.append(PARTITION, [keyed(5, [(b"a", b"3")], epoch=9)])
    sync(store)
    assert [value for _, _, value, _ in records(store)] == [b"2", b"3"]
    store.close(clean=False)
    store = Store(files, SMALL)
    (facts,) = store.recover().logs
    assert facts.end == 6 and facts.damaged_at is None
    assert [(s.base, s.last, s.count) for s in facts.stamps] == [(3, 4, 2), (5, 5, 1)]
    store.trim(PARTITION, 2)
    assert [name for name in files.names(DIRECTORY) if name.startswith(f"{0:020}")] == []
    store.drop(PARTITION)
    assert files.names(DIRECTORY) == []


def test_a_log_that_changes_during_the_run_is_replaced_only_where_it_is_the_same(files: Files) -> None:
    batches: list[Keyed] = [[(b"a", b"x" * 300)], [], [(b"a", b"x" * 300)], [], [(b"a", b"1")], []]
    store = filled(files, batches)
    job = store.begin_compaction(PARTITION, 6, NEVER)
    job.run()
    store.trim(PARTITION, 1)
    job.finish()
    assert [value for _, _, value, _ in records(store)] == [b"1"]
    assert not [name for name in files.names(DIRECTORY) if name.endswith(".compact")]
    job = store.begin_compaction(PARTITION, 6, NEVER)
    job.run()
    store.drop(PARTITION)
    assert job.finish() == 0


def test_a_reader_that_was_under_way_reads_on(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(files, [[(b"a", b"x" * 300)], [(b"b", b"1")], [(b"a", b"1")], []])
    log = store._logs[PARTITION]
    look = log._read
    found: list[object] = []

    def interrupted(offset: int, end: int, bytes_max: int):  # type: ignore[no-untyped-def]
        segments = log.segments
        if not found:
            found.append(segments)
            compacted(store)
            log.segments, fresh = segments, log.segments
            try:
                return look(offset, end, bytes_max)
            finally:
                log.segments = fresh
        return look(offset, end, bytes_max)

    monkeypatch.setattr(type(log), "_read", lambda _, offset, end, bytes_max: interrupted(offset, end, bytes_max))
    chunk = store.read(PARTITION, 0, 3, 1 << 20)
    assert [Batch(chunk.batches).count, chunk.next] == [0, 3]


def test_a_disk_that_refuses_leaves_the_log_as_it_was() -> None:
    files = faulty()
    store = filled(files, [[(b"a", b"x" * 300)], [(b"a", b"1")], []])
    before = read_all(store)
    files.faults.write_failure_chance = 1.0
    assert compacted(store) == 0
    files.faults.write_failure_chance = 0.0
    assert read_all(store) == before
    assert not [name for name in files.names(DIRECTORY) if name.endswith(".compact")]


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_moment_leaves_the_old_or_the_new(seed: int) -> None:
    batches: list[Keyed] = [
        [(b"a", b"x" * 300), (b"b", b"x" * 300)],
        [(b"a", None)],
        [],
        [(b"b", b"y" * 300), (b"c", b"1")],
        [],
        [(b"b", b"z")],
        [],
    ]
    done = False
    moment = 0
    while not done:
        files = faulty(seed)
        store = filled(files, batches)
        before, forms, below = records(store), shape(store), sealed_end(store)
        files.faults.operations_left = moment
        try:
            compacted(store)
            compacted(store, tombstones_us=ALWAYS)
            done = True
        except (SimulatedCrash, StorageError):
            pass
        files.faults.operations_left = None
        files.crash()
        again = Store(files, SMALL)
        (facts,) = again.recover().logs
        assert_whole(facts, again, files)
        assert shape(again) == forms
        left = [row for row in expected(before, below) if row[2] is not None]
        found = records(again)
        assert [row for row in found if row in left] == left and all(row in before for row in found)
        assert latest(found) == latest(before), "nothing that was deleted comes back"
        moment += 1
    assert moment > 20


def test_what_a_start_found_after_a_crash_in_the_run_is_there_after_a_power_cut() -> None:
    """The process ended before the new names were durable; the start that finds them takes the old files away."""
    batches: list[Keyed] = [[(b"a", b"x" * 300), (b"b", b"1")], [], [(b"a", b"y" * 300)], [], [(b"a", b"z")], []]
    moment = done = 0
    while not done:
        files = faulty(moment)
        store = filled(files, batches)
        files.faults.operations_left = moment
        try:
            compacted(store)
            done = True
        except (SimulatedCrash, StorageError):
            pass
        files.faults.operations_left = None
        after_the_process = Store(files, SMALL)
        after_the_process.recover()
        found = records(after_the_process)
        files.crash()
        after_the_power = Store(files, SMALL)
        (facts,) = after_the_power.recover().logs
        assert_whole(facts, after_the_power, files)
        assert records(after_the_power) == found
        moment += 1


def latest(rows: list[tuple[int, bytes | None, bytes | None, int]]) -> dict[bytes | None, bytes]:
    """As an application keeps it that takes a tombstone for a deletion."""
    table = {key: value for _, key, value, _ in rows}
    return {key: value for key, value in table.items() if value is not None}


def assert_whole(facts: LogFacts, store: Store, files: FaultyFiles) -> None:
    assert facts.damaged_at is None
    assert not [name for name in files.names(DIRECTORY) if name.endswith(".compact")]
    names = [name.split(".")[0] for name in files.names(DIRECTORY) if name.endswith(".log")]
    assert len(names) == len(set(names)), "one file for each segment"
    assert store.bytes(PARTITION) == facts.bytes
