"""What the log may expect of files, real or simulated."""

from __future__ import annotations

import pytest

from rostra.log.files import Files


def test_what_is_appended_is_read_back_in_order(files: Files) -> None:
    file = files.open("a", create=True)
    assert file.append([b"one", bytearray(b"two"), memoryview(b"three")]) == 11
    assert file.append([b"four"]) == 15
    assert file.read(0, 100) == b"onetwothreefour"
    assert file.read(3, 3) == b"two"
    assert file.size() == 15


def test_many_buffers_go_in_one_append(files: Files) -> None:
    file = files.open("a", create=True)
    pieces = [b"%04d" % number for number in range(2500)]
    assert file.append(pieces) == 10_000
    assert file.read(0, 10_000) == b"".join(pieces)


def test_an_append_goes_behind_what_another_opening_appended(files: Files) -> None:
    first, second = files.open("a", create=True), files.open("a")
    first.append([b"one"])
    second.append([b"two"])
    assert first.read(0, 10) == b"onetwo"


def test_reading_beyond_the_end_gives_what_there_is(files: Files) -> None:
    file = files.open("a", create=True)
    file.append([b"abc"])
    assert file.read(2, 10) == b"c"
    assert file.read(3, 10) == b""
    assert file.read(30, 10) == b""


def test_writing_in_place_changes_only_that_place(files: Files) -> None:
    file = files.open("a", create=True)
    file.append([b"abcdef"])
    file.write_at(2, b"XY")
    assert file.read(0, 10) == b"abXYef"
    file.write_at(5, memoryview(b"ghi"))
    assert file.read(0, 10) == b"abXYeghi"


def test_truncation_takes_the_end_and_appends_go_on_there(files: Files) -> None:
    file = files.open("a", create=True)
    file.append([b"abcdef"])
    file.truncate(2)
    assert file.size() == 2
    file.append([b"Z"])
    assert file.read(0, 10) == b"abZ"


def test_truncation_upwards_fills_with_zeros(files: Files) -> None:
    file = files.open("a", create=True)
    file.append([b"ab"])
    file.truncate(4)
    assert file.read(0, 10) == b"ab\0\0"


def test_a_sync_begun_before_a_write_may_run_after_it(files: Files) -> None:
    file = files.open("a", create=True)
    file.append([b"ab"])
    call = file.begin_sync()
    file.append([b"cd"])
    call()
    assert file.read(0, 10) == b"abcd"


def test_a_file_that_is_not_there_is_not_made_by_looking(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        files.open("absent")
    assert not files.exists("absent")
    assert files.names("absent") == []
    with pytest.raises(FileNotFoundError):
        files.open("absent/file", create=True)


def test_directories_are_made_with_their_parents_and_listed_in_order(files: Files) -> None:
    files.make_directory("x/y")
    files.make_directory("x/y")
    for name in ("b", "a", "c"):
        files.open(f"x/y/{name}", create=True)
    assert files.names("x/y") == ["a", "b", "c"]
    assert files.exists("x/y/a")
    files.sync_directory("x/y")
    files.sync_directory("x")
    files.sync_directory("")


def test_a_rename_replaces(files: Files) -> None:
    files.open("old", create=True).append([b"new content"])
    files.open("new", create=True).append([b"old content"])
    files.rename("old", "new")
    assert not files.exists("old")
    assert files.open("new").read(0, 100) == b"new content"


def test_a_removed_file_is_gone_but_its_reader_reads_on(files: Files) -> None:
    file = files.open("a", create=True)
    file.append([b"abc"])
    files.remove("a")
    assert not files.exists("a")
    assert file.read(0, 3) == b"abc"
    with pytest.raises(FileNotFoundError):
        files.remove("a")


def test_a_directory_goes_with_all_that_is_in_it(files: Files) -> None:
    files.make_directory("x/y")
    files.open("x/y/a", create=True)
    files.remove_directory("x")
    files.remove_directory("x")
    assert files.names("x") == []
    assert not files.exists("x/y/a")
