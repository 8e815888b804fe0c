"""What only the real files promise: one owner, and no way out of the directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rostra.errors import StoreInUse
from rostra.runtime.disk.files import DiskFiles


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first = DiskFiles(tmp_path)
    with pytest.raises(StoreInUse, match="used by another node"):
        DiskFiles(tmp_path)
    first.close()
    DiskFiles(tmp_path).close()


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "topics/../../outside", ".."])
def test_no_path_leads_out_of_the_directory(tmp_path: Path, path: str) -> None:
    files = DiskFiles(tmp_path / "store")
    for attempt in (files.open, files.remove, files.names, files.remove_directory, files.make_directory):
        with pytest.raises(PermissionError):
            attempt(path)
    files.close()


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path / "store")
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        files.open("link")
    files.close()


def test_a_descriptor_goes_with_the_last_reference(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    file = files.open("a", create=True)
    call = file.begin_sync()
    del file
    call()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del call
    assert len(os.listdir("/proc/self/fd")) == before
    files.close()
