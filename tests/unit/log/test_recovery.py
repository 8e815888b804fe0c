"""Recovery at the start: torn tails, damage, and a clean stop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rostra.errors import CorruptLog
from rostra.log.files import Files, ReadableFile
from rostra.log.index import Index
from rostra.log.scan import SEARCH_FACTOR, intact_batch_behind
from rostra.log.store import Store
from rostra.model.batch import HEADER_BYTES
from tests.unit.log.batches import (
    DIRECTORY,
    PARTITION,
    SMALL,
    batch,
    chain,
    copied,
    disk_of,
    faulty,
    opened,
    read_all,
    sync,
)

SEGMENT = f"{DIRECTORY}/{0:020}.log"
BATCHES = [bytes(made) for made in chain(0, 2, 3, 4)]
BOUNDS = [0, 1, 3, 6, 10]
SIZES = [len(made) for made in BATCHES]


def left_behind(*, synced: int, begun: int) -> dict[str, bytes]:
    """A disk whose node was killed: so many batches are known to be synced, a sync of so many was begun."""
    files = faulty()
    store = opened(files)
    store.append(PARTITION, BATCHES[:synced])
    if synced:
        sync(store)
        mark = store.begin_mark()
        mark.run()
        mark.finish()
    store.append(PARTITION, BATCHES[synced:begun])
    if begun > synced:
        store.begin_sync([PARTITION])
    store.append(PARTITION, BATCHES[begun:])
    store.close(clean=False)
    return copied(files)


def cleanly_closed() -> dict[str, bytes]:
    files = faulty()
    store = opened(files)
    store.append(PARTITION, BATCHES)
    store.close(clean=True)
    return copied(files)


ALL_SYNCED = left_behind(synced=4, begun=4)
LAST_IN_DOUBT = left_behind(synced=3, begun=4)
TWO_IN_DOUBT = left_behind(synced=2, begun=4)
TWO_NEVER_BEGUN = left_behind(synced=2, begun=2)
CLEAN = cleanly_closed()


def started(contents: dict[str, bytes], segment: bytes | None = None) -> Store:
    files = disk_of(contents if segment is None else {**contents, SEGMENT: segment})
    return Store(files, SMALL)


@pytest.mark.requirement("CM-13:torn-tail")
def test_a_last_batch_cut_at_any_byte_is_a_torn_tail_unless_it_was_synced() -> None:
    whole = b"".join(BATCHES)
    for missing in range(1, SIZES[3] + 1):
        store = started(LAST_IN_DOUBT, whole[:-missing])
        recovery = store.recover()
        (facts,) = recovery.logs
        assert (facts.end, facts.damaged_at) == (6, None)
        assert facts.bytes == len(whole) - SIZES[3]
        cut = [(note.event, note.path, note.offset, note.bytes) for note in recovery.notes]
        assert cut == ([("tail_cut", SEGMENT, 6, SIZES[3] - missing)] if missing < SIZES[3] else [])
        again = chain(2, base=6, epoch=2)
        store.append(PARTITION, again)
        assert read_all(store) == BATCHES[:3] + again


@pytest.mark.requirement("CM-13:reported")
def test_a_synced_batch_cut_at_any_byte_is_corruption_and_nothing_is_cut_off() -> None:
    whole = b"".join(BATCHES)
    for missing in range(1, SIZES[3] + 1):
        files = disk_of({**ALL_SYNCED, SEGMENT: whole[:-missing]})
        for _ in range(2):
            store = Store(files, SMALL)
            recovery = store.recover()
            (facts,) = recovery.logs
            assert (facts.end, facts.damaged_at) == (6, 6)
            assert [note.event for note in recovery.notes] == ["damage_found"]
            assert files.open(SEGMENT).size() == len(whole) - missing
            assert read_all(store) == BATCHES[:3]
            with pytest.raises(CorruptLog):
                store.read(PARTITION, 6, 10, 1 << 20)
            with pytest.raises(CorruptLog):
                store.append(PARTITION, chain(1, base=6))
            store.close(clean=True)


@pytest.mark.requirement("CM-13:checksums")
@settings(max_examples=300)
@given(bit=st.integers(0, 8 * sum(SIZES) - 1), contents=st.sampled_from([ALL_SYNCED, TWO_IN_DOUBT, CLEAN]))
def test_a_flipped_bit_anywhere_is_never_served(bit: int, contents: dict[str, bytes]) -> None:
    check_flip(bit, contents)


@pytest.mark.requirement("CM-13:checksums")
@pytest.mark.parametrize("contents", [ALL_SYNCED, CLEAN], ids=["killed", "clean"])
def test_a_flipped_bit_anywhere_in_a_header_is_never_served(contents: dict[str, bytes]) -> None:
    start = SIZES[0] + SIZES[1]
    for bit in range(8 * start, 8 * (start + HEADER_BYTES)):
        check_flip(bit, contents)


def check_flip(bit: int, contents: dict[str, bytes]) -> None:
    damaged = bytearray(b"".join(BATCHES))
    damaged[bit // 8] ^= 1 << bit % 8
    hit = next(place for place in range(4) if bit // 8 < sum(SIZES[: place + 1]))
    store = started(contents, bytes(damaged))
    (facts,) = store.recover().logs
    if contents is TWO_IN_DOUBT and hit == 3:
        # Nothing intact lies behind it, and it is not known to be synced: a torn tail.
        assert (facts.end, facts.damaged_at) == (BOUNDS[3], None)
        assert read_all(store) == BATCHES[:3]
        return
    if facts.damaged_at is None:
        assert contents is CLEAN
    else:
        assert facts.damaged_at == BOUNDS[hit]
    for place in range(hit):
        assert store.read(PARTITION, BOUNDS[place], BOUNDS[place + 1], 1) == (BATCHES[place], BOUNDS[place + 1])
    with pytest.raises(CorruptLog):
        store.read(PARTITION, BOUNDS[hit], 10, 1 << 20)


@pytest.mark.requirement("CM-13:reported")
def test_damage_with_an_intact_batch_behind_it_is_corruption_where_a_sync_was_begun() -> None:
    damaged = bytearray(b"".join(BATCHES))
    damaged[SIZES[0] + SIZES[1] + 100] ^= 1
    store = started(TWO_IN_DOUBT, bytes(damaged))
    (facts,) = store.recover().logs
    assert (facts.end, facts.damaged_at) == (3, 3)


def test_where_no_sync_was_begun_a_hole_is_cut_with_all_that_lies_behind_it() -> None:
    damaged = bytearray(b"".join(BATCHES))
    damaged[SIZES[0] + SIZES[1] + 100] ^= 1
    store = started(TWO_NEVER_BEGUN, bytes(damaged))
    recovery = store.recover()
    (facts,) = recovery.logs
    assert (facts.end, facts.damaged_at) == (3, None)
    assert [(note.event, note.bytes) for note in recovery.notes] == [("tail_cut", SIZES[2] + SIZES[3])]


def test_a_damaged_log_is_whole_again_when_cut_there_and_refilled() -> None:
    damaged = bytearray(b"".join(BATCHES))
    damaged[SIZES[0] + SIZES[1] + 100] ^= 1
    files = disk_of({**ALL_SYNCED, SEGMENT: bytes(damaged)})
    store = Store(files, SMALL)
    (facts,) = store.recover().logs
    assert facts.damaged_at == 3
    store.truncate(PARTITION, 3)
    store.append(PARTITION, BATCHES[2:])
    sync(store)
    store.close(clean=False)
    files.crash()
    store = Store(files, SMALL)
    (facts,) = store.recover().logs
    assert (facts.end, facts.damaged_at) == (10, None)
    assert read_all(store) == BATCHES


def test_a_missing_segment_in_the_middle_is_corruption(files: Files) -> None:
    store = opened(files)
    batches = chain(0, 2, 0, 2, 0, 2)
    store.append(PARTITION, batches)
    sync(store)
    store.close(clean=False)
    files.remove(f"{DIRECTORY}/{3:020}.log")
    store = Store(files, SMALL)
    (facts,) = store.recover().logs
    assert (facts.end, facts.damaged_at) == (3, 3)
    assert read_all(store) == batches[:2]
    assert files.exists(f"{DIRECTORY}/{6:020}.log")
    store.truncate(PARTITION, 3)
    assert not files.exists(f"{DIRECTORY}/{6:020}.log")


def test_a_partition_whose_files_are_gone_is_reported(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(3))
    store.close(clean=True)
    files.remove_directory(DIRECTORY)
    (facts,) = Store(files, SMALL).recover().logs
    assert (facts.partition, facts.end, facts.damaged_at) == (PARTITION, 0, 0)


def test_logs_without_a_journal_are_not_started(files: Files) -> None:
    opened(files).close(clean=True)
    files.remove("journal")
    with pytest.raises(CorruptLog, match="hard state"):
        Store(files, SMALL).recover()


def test_segments_that_retention_removed_stay_removed(files: Files) -> None:
    store = opened(files)
    batches = chain(0, 2, 0, 2, 0, 2)
    store.append(PARTITION, batches)
    sync(store)
    file = files.open(f"{DIRECTORY}/{3:020}.log")
    content = file.read(0, file.size())
    store.trim(PARTITION, 6)
    store.close(clean=False)
    # The crash undid one of the two removals.
    files.open(f"{DIRECTORY}/{3:020}.log", create=True).append([content])
    store = Store(files, SMALL)
    (facts,) = store.recover().logs
    assert (facts.first, facts.end, facts.damaged_at) == (6, 9, None)
    assert read_all(store) == batches[4:]


def test_an_empty_segment_behind_the_last_checkpoint_does_not_hide_it(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(0, 2))
    sync(store)
    store.close(clean=False)
    files.open(f"{DIRECTORY}/{3:020}.log", create=True)
    store = Store(files, SMALL)
    (facts,) = store.recover().logs
    assert (facts.end, facts.checkpoint) == (3, b"value-0")
    assert files.names(DIRECTORY) == [f"{0:020}.log"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_finds_checkpoint_stamps_and_epochs(files: Files, clean: bool) -> None:
    store = opened(files)
    store.append(PARTITION, chain(0, 2))
    store.append(PARTITION, [*chain(2, 0, 3, base=3, epoch=4), batch(9, control=True, epoch=5)])
    store.append(PARTITION, chain(1, base=10, epoch=5))
    sync(store)
    store.close(clean=clean)
    store = Store(files, SMALL)
    recovery = store.recover()
    (facts,) = recovery.logs
    assert recovery.clean is clean
    assert recovery.notes == ()
    assert facts.epochs == ((1, 0), (4, 3), (5, 9))
    assert facts.checkpoint == b"value-5"
    assert [(s.base, s.last, s.producer, s.epoch, s.sequence, s.count) for s in facts.stamps] == [
        (6, 8, 77, 2, 6, 3),
        (10, 10, 77, 2, 10, 1),
    ]
    assert (facts.first, facts.end) == (0, 11)
    assert facts.bytes == store.bytes(PARTITION)
    assert facts.segment_bytes == store.segment_bytes(PARTITION) < facts.bytes


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_finds_the_brokers_own_entries_behind_the_checkpoint(files: Files, clean: bool) -> None:
    store = opened(files)
    kept = [batch(3, ledger=True), batch(6, 2, ledger=True)]
    store.append(PARTITION, [batch(0, ledger=True), *chain(1, 0, base=1), kept[0], *chain(2, base=4), kept[1]])
    sync(store)
    before = store.inspect(PARTITION)
    store.close(clean=clean)
    store = Store(files, SMALL)
    (facts,) = store.recover().logs
    assert facts.controls == tuple((base, bytes(one)) for base, one in zip((3, 6), kept, strict=True))
    assert (facts.checkpoint, facts.checkpoint_at) == (b"value-2", 2)
    assert before == facts == store.inspect(PARTITION)


def test_an_entry_of_the_broker_that_is_damaged_is_found_after_a_clean_stop(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, [*chain(1, 0), batch(2, ledger=True), *chain(1, base=3)])
    store.close(clean=True)
    file = files.open(f"{DIRECTORY}/{1:020}.log")
    at = file.read(0, file.size()).index(b"value-2")
    file.write_at(at, b"VALUE")
    (facts,) = Store(files, SMALL).recover().logs
    assert facts.damaged_at == 2


def test_a_log_that_was_cut_below_its_checkpoint_says_what_is_left(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, [*chain(0, 2), batch(3, ledger=True), *chain(1, 0, 1, base=4)])
    store.truncate(PARTITION, 4)
    facts = store.inspect(PARTITION)
    assert (facts.checkpoint, facts.checkpoint_at, facts.end) == (b"value-0", 0, 4)
    assert [stamp.base for stamp in facts.stamps] == [1]
    assert [base for base, _ in facts.controls] == [3]


def test_a_clean_stop_counts_once(files: Files) -> None:
    store = opened(files)
    store.append(PARTITION, chain(3))
    store.close(clean=True)
    store = Store(files, SMALL)
    assert store.recover().clean
    store.append(PARTITION, chain(3, base=3))
    store.close(clean=False)
    assert not Store(files, SMALL).recover().clean


def test_a_clean_stop_after_another_one_is_found_clean(files: Files) -> None:
    opened(files).close(clean=True)
    for base in range(0, 9, 3):
        store = Store(files, SMALL)
        recovery = store.recover()
        assert recovery.clean
        assert recovery.notes == ()
        store.append(PARTITION, chain(3, base=base))
        store.close(clean=True)
    (facts,) = Store(files, SMALL).recover().logs
    assert facts.end == 9


def test_a_changed_stamp_is_noticed_after_a_clean_stop() -> None:
    damaged = bytearray(b"".join(BATCHES))
    damaged[SIZES[0] + 52] ^= 1  # the base sequence, which only the body's checksum covers
    (facts,) = started(CLEAN, bytes(damaged)).recover().logs
    assert facts.damaged_at == 1


def test_a_log_never_synced_and_gone_leaves_no_trace() -> None:
    for seed in range(30):
        files = faulty(seed)
        store = opened(files)
        store.append(PARTITION, chain(0, 2))
        store.begin_sync([PARTITION])
        files.crash()
        store = Store(files, SMALL)
        for facts in store.recover().logs:
            assert facts.damaged_at is None or facts.damaged_at >= 0
        store.open(PARTITION, 1 << 20)


def test_the_search_behind_damage_reads_a_bounded_number_of_bytes() -> None:
    """Headers that claim long bodies could make it look at the same bytes again and again."""

    class Counting(ReadableFile):
        def __init__(self, content: bytes) -> None:
            self.content = content
            self.bytes_read = 0

        def size(self) -> int:
            return len(self.content)

        def read(self, position: int, count: int) -> bytes:
            found = self.content[position : position + count]
            self.bytes_read += len(found)
            return found

    bomb = batch(50, 700)
    lure = bytes(bomb[:HEADER_BYTES])
    file = Counting(lure * 200 + bytes(len(bomb)))
    assert intact_batch_behind(file, PARTITION, 0, range(5, 100), 1024)
    assert file.bytes_read < (SEARCH_FACTOR + 2) * file.size() + 4096
    file = Counting(lure * 3 + bytes(len(bomb)))
    assert not intact_batch_behind(file, PARTITION, 0, range(5, 100), 1024)


def test_an_older_batch_inside_a_record_is_no_evidence_behind_a_torn_end() -> None:
    files = faulty()
    store = opened(files)
    store.append(PARTITION, BATCHES[:3])
    sync(store)
    mark = store.begin_mark()
    mark.run()
    mark.finish()
    quoting = batch(6, 1, value=bytes(BATCHES[1]) + b"tail" * 20)
    store.append(PARTITION, [quoting])
    store.begin_sync([PARTITION])
    store.close(clean=False)
    file = files.open(SEGMENT)
    file.truncate(file.size() - 30)
    (facts,) = Store(files, SMALL).recover().logs
    assert (facts.end, facts.damaged_at) == (6, None)


def test_an_index_finds_every_stride() -> None:
    index = Index(100)
    for number in range(50):
        index.add(number * 60, number * 2, number)
    assert list(index.positions) == [number * 60 for number in range(0, 50, 2)]
    for offset in range(100):
        base, start, stop = index.span(offset, 100, 1, 3000)
        assert base <= offset < base + 4
        assert (start, stop) == (base * 30, min(base * 30 + 120, 3000))
