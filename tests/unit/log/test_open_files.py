"""Files that several threads open at once."""

from __future__ import annotations

from pathlib import Path

from rostra.log.files import File
from rostra.log.open_files import OpenFiles
from rostra.runtime.disk.files import DiskFiles


class Twice(DiskFiles):
    """While one thread opens a file, another opens it too, and keeps it first."""

    others: OpenFiles | None = None

    def open(self, path: str, *, create: bool = False) -> File:
        opened = super().open(path, create=create)
        others, self.others = self.others, None
        if others is not None:
            others.get(path)
        return opened


def test_of_a_file_that_two_threads_open_at_once_the_first_is_kept(tmp_path: Path) -> None:
    files = Twice(tmp_path)
    for name in ("a", "b", "c"):
        files.open(name, create=True)
    open_files = OpenFiles(files, 2)
    files.others = open_files
    file = open_files.get("a")
    assert open_files.get("a") is file and len(open_files) == 1
    open_files.get("b")
    open_files.get("c")
    assert len(open_files) == 2 and open_files.get("a") is not file
    files.close()


def test_a_file_that_is_made_anew_is_not_the_one_that_was_open(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    open_files = OpenFiles(files, 2)
    before = open_files.create("a")
    files.remove("a")
    after = open_files.create("a")
    after.append([b"x"])
    assert after is not before and open_files.get("a") is after and after.size() == 1 and before.size() == 0
    files.close()
