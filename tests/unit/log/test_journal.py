"""Hard state and marks survive what a crash may do to the journal, and damage in it is not overlooked."""

from __future__ import annotations

from random import Random

import pytest

from rostra.errors import CorruptLog
from rostra.log.files import Files
from rostra.log.journal import JOURNAL_REUSED, Journal, SyncedMark
from rostra.simulator.disk.faulty_files import FaultyFiles
from tests.unit.log.batches import OTHER, PARTITION, copied, disk_of, faulty

MARK = SyncedMark(1, 2, 3)


def loaded(files: Files) -> Journal:
    journal = Journal(files, 1024)
    journal.load()
    return journal


def test_the_last_value_of_a_key_counts(files: Files) -> None:
    journal = loaded(files)
    journal.put("term", b"1")
    journal.put("vote", b"x" * 100)
    journal.put("term", b"2")
    journal.mark([(PARTITION, MARK), (OTHER, MARK)])
    journal.forget(OTHER)
    journal.close()
    again = loaded(files)
    assert again.state == {"term": b"2", "vote": b"x" * 100}
    assert again.marks == {PARTITION: MARK}


def test_its_size_is_bounded_however_much_is_written(files: Files) -> None:
    journal = loaded(files)
    for number in range(500):
        journal.put("term", b"%d" % number)
        journal.mark([(PARTITION, SyncedMark(0, number, number + 1))])
        if number % 10 == 0:
            journal.sync()
    assert files.open("journal").size() == 1024
    assert not files.exists("journal.next")
    journal.close()
    assert loaded(files).state == {"term": b"499"}


def test_it_grows_when_what_lives_in_it_is_larger(files: Files) -> None:
    journal = loaded(files)
    for number in range(50):
        journal.put(f"key {number}", b"v" * 100)
    journal.close()
    assert loaded(files).state == {f"key {number}": b"v" * 100 for number in range(50)}


@pytest.mark.parametrize("seed", range(100))
def test_a_crash_loses_nothing_synced_and_invents_nothing(seed: int) -> None:
    files = faulty(seed)
    journal = loaded(files)
    synced = written = 0
    for number in range(1, 60):
        journal.put("term", b"%d" % number)
        journal.put(f"vote {number % 5}", b"v" * 40)
        written = number
        if (number * 7 + seed) % 11 == 0:
            journal.sync()
            synced = number
    files.crash()
    assert synced <= int(loaded(files).state.get("term", b"0")) <= written


def test_a_crash_between_two_syncs_is_never_taken_for_damage() -> None:
    for seed in range(200):
        files = faulty(seed)
        journal = loaded(files)
        journal.put("term", b"1")
        journal.sync()
        for number in range(12):
            journal.put(f"vote {number}", b"v" * 60)
        files.crash()
        assert loaded(files).state["term"] == b"1"


@pytest.mark.requirement("CM-13:reported")
def test_a_flipped_bit_in_what_was_synced_stops_the_start() -> None:
    files = faulty()
    journal = loaded(files)
    journal.put("term", b"1")
    journal.put("vote", b"node 7")
    journal.sync()
    journal.put("term", b"2")
    journal.sync()
    journal.put("term", b"3")
    contents = copied(files)
    synced = contents["journal"].index(b"vote") + len(b"vote" + b"node 7")
    for bit in range(8 * synced):
        damaged = bytearray(contents["journal"])
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLog):
            loaded(disk_of({"journal": bytes(damaged)}))


def test_what_a_journal_began_with_is_guarded_though_nothing_follows() -> None:
    files = faulty()
    journal = loaded(files)
    journal.put("vote", b"node 7")
    journal.close()
    loaded(files)
    content = bytearray(files.open("journal").read(0, 1024))
    content[content.index(b"node 7")] ^= 1
    with pytest.raises(CorruptLog):
        loaded(disk_of({"journal": bytes(content)}))


def test_an_empty_journal_is_damage() -> None:
    with pytest.raises(CorruptLog):
        loaded(disk_of({"journal": b""}))


def test_a_torn_end_is_cut_and_said() -> None:
    files = faulty()
    journal = loaded(files)
    journal.put("term", b"1")
    journal.sync()
    journal.put("vote", b"node 7")
    content = bytearray(files.open("journal").read(0, 1024))
    content[content.index(b"node 7")] ^= 1
    journal = Journal(disk_of({"journal": bytes(content)}), 1024)
    assert [note.event for note in journal.load()] == ["journal_cut"]
    assert journal.state == {"term": b"1"}


def test_a_journal_that_is_continued_on_a_full_disk_keeps_what_a_failed_sync_lost() -> None:
    """The process that starts reads entries that the system counts as written and that are not on the disk."""
    files = FaultyFiles(Random("journal"))
    before = Journal(files, size=1 << 12)
    before.load()
    before.put("vote", b"one")
    files.faults.sync_failure_chance = 1.0
    with pytest.raises(OSError):
        before.sync()
    files.faults.sync_failure_chance = 0.0
    files.faults.capacity_bytes = 0
    again = Journal(files, size=1 << 12)
    assert [note.event for note in again.load()] == [JOURNAL_REUSED]
    again.put("vote", b"two")
    again.sync()
    files.crash()
    files.faults.capacity_bytes = None
    last = Journal(files, size=1 << 12)
    last.load()
    assert last.state == {"vote": b"two"}
