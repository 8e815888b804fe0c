"""The simulated disk fails as it says, and counts it."""

from __future__ import annotations

from errno import EBADF, EIO, ENOSPC

import pytest

from rostra.log.files import File
from rostra.simulator.disk.faulty_files import FaultyFiles
from tests.unit.log.batches import faulty

BLOCK = b"x" * 512


def synced_file(files: FaultyFiles, content: bytes) -> File:
    file = files.open("a", create=True)
    file.append([content])
    file.begin_sync()()
    files.sync_directory("")
    return file


def after_crash(files: FaultyFiles) -> bytes:
    files.crash()
    file = files.open("a")
    return file.read(0, file.size())


@pytest.mark.parametrize("seed", range(50))
def test_a_crash_keeps_what_was_synced(seed: int) -> None:
    files = faulty(seed)
    synced_file(files, b"durable").append([b"not yet"])
    assert after_crash(files).startswith(b"durable")


def test_crashes_lose_tear_and_punch_holes() -> None:
    ends: set[bytes] = set()
    for seed in range(200):
        files = faulty(seed)
        synced_file(files, b"").append([BLOCK, BLOCK, BLOCK])
        ends.add(after_crash(files))
    assert b"" in ends
    assert BLOCK * 3 in ends
    assert bytes(512) + BLOCK + BLOCK in ends
    assert any(len(end) % 512 > 0 for end in ends)


def test_without_reordering_a_crash_leaves_a_beginning() -> None:
    for seed in range(100):
        files = faulty(seed, reorder=False)
        synced_file(files, b"").append([b"a" * 700])
        files.open("a").append([b"b" * 700])
        assert (b"a" * 700 + b"b" * 700).startswith(after_crash(files))


def test_a_sync_covers_exactly_what_was_written_when_it_began() -> None:
    survivors = set()
    for seed in range(50):
        again = faulty(seed)
        copy = synced_file(again, b"")
        copy.append([b"first"])
        call = copy.begin_sync()
        copy.append([b"second"])
        call()
        survivors.add(after_crash(again))
    assert all(survivor.startswith(b"first") for survivor in survivors)
    assert b"first" in survivors


def test_after_a_failed_sync_the_bytes_are_readable_and_never_written() -> None:
    files = faulty(sync_failure_chance=1.0)
    file = files.open("a", create=True)
    file.append([b"lost"])
    with pytest.raises(OSError) as failure:
        file.begin_sync()()
    assert failure.value.errno == EIO
    files.faults.sync_failure_chance = 0.0
    file.begin_sync()()
    files.sync_directory("")
    assert file.read(0, 10) == b"lost"
    assert after_crash(files) == b""
    assert files.counters["syncs_failed"] == 1
    assert files.counters["bytes_lost"] == 4


def test_bytes_written_again_after_a_failed_sync_are_saved() -> None:
    files = faulty(sync_failure_chance=1.0)
    file = files.open("a", create=True)
    file.append([b"saved"])
    with pytest.raises(OSError):
        file.begin_sync()()
    files.faults.sync_failure_chance = 0.0
    file.write_at(0, file.read(0, 5))
    file.begin_sync()()
    files.sync_directory("")
    assert after_crash(files) == b"saved"


def test_a_creation_is_lost_unless_its_directory_was_synced() -> None:
    outcomes = set()
    for seed in range(40):
        files = faulty(seed)
        file = files.open("a", create=True)
        file.append([b"abc"])
        file.begin_sync()()
        files.crash()
        outcomes.add(files.exists("a"))
    assert outcomes == {True, False}


def test_a_rename_is_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in range(40):
        files = faulty(seed)
        synced_file(files, b"old")
        file = files.open("b", create=True)
        file.append([b"new"])
        file.begin_sync()()
        files.sync_directory("")
        files.rename("b", "a")
        outcomes.add((after_crash(files), files.exists("b"), files.counters["renames_lost"]))
    assert outcomes == {(b"new", False, 0), (b"old", True, 1)}


def test_a_full_disk_takes_part_and_gives_room_back() -> None:
    files = faulty(capacity_bytes=10)
    file = files.open("a", create=True)
    with pytest.raises(OSError) as refusal:
        file.append([b"123456789012"])
    assert refusal.value.errno == ENOSPC
    assert file.size() == 10
    assert files.counters["disk_full"] == 1
    file.write_at(0, b"0")
    file.truncate(4)
    file.append([b"567890"])
    files.remove("a")
    files.open("b", create=True).append([b"1234567890"])


def test_flipped_bits_are_seen_by_readers_and_stay() -> None:
    files = faulty()
    files.make_directory("topics")
    file = files.open("topics/a", create=True)
    file.append([bytes(100)])
    file.begin_sync()()
    file.append([bytes(100)])
    assert files.durable_sizes() == {"topics/a": 100}
    assert files.flip_bits(3, below={"topics/a": 0}) == []
    ((path, position),) = files.flip_bits(1, below={"topics/a": 50})
    assert path == "topics/a"
    assert position < 50
    assert file.read(0, 100)[position].bit_count() == 1
    files.sync_directory("")
    files.sync_directory("topics")
    files.crash()
    assert files.open(path).read(0, 100)[position].bit_count() == 1
    assert files.counters["bits_flipped"] == 1


def test_a_write_may_fail() -> None:
    files = faulty(write_failure_chance=1.0)
    with pytest.raises(OSError):
        files.open("a", create=True).append([b"abc"])
    assert files.counters["writes_failed"] == 1


def test_what_was_open_at_the_crash_is_dead() -> None:
    files = faulty()
    file = synced_file(files, b"abc")
    call = file.begin_sync()
    files.crash()
    for attempt in (call, lambda: file.append([b"x"]), lambda: file.truncate(0)):
        with pytest.raises(OSError) as refusal:
            attempt()
        assert refusal.value.errno == EBADF


def test_the_same_seed_crashes_the_same_way() -> None:
    def story(seed: int) -> bytes:
        files = faulty(seed)
        synced_file(files, b"").append([BLOCK] * 20)
        return after_crash(files)

    assert story(5) == story(5)
    assert len({story(seed) for seed in range(20)}) > 5
