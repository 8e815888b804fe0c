"""A power cut on a real file system: ext4 in an image file, of which a copy is what the disk held at that moment.

Needs root, mkfs.ext4 and loop devices; the automatic run has them. With commit=300 the file system writes nothing back
by itself during the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rostra.errors import CorruptLog
from rostra.log.facts import Recovery
from rostra.log.store import Store
from rostra.runtime.disk.files import DiskFiles
from tests.processes.power_cut_writer import PARTITION, numbered

IMAGE_BYTES = 32 << 20
STARTS = [0, 10, 20, 30, 40, 41, 51, 61, 71]
"""The base offsets of the batches that the test writes, in order."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    """Detaches and unmounts the image at the end, also after an error."""
    at.mkdir()
    subprocess.run(["mount", "-t", "ext4", "-o", "loop,commit=300", str(image), str(at)], check=True)
    try:
        yield at
    finally:
        # After a failed test something may still hold a file in there; the device is free when that goes.
        subprocess.run(["umount", "--lazy", str(at)], check=True)


class Writer:
    """The writing process, controlled by lines on stdin."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.power_cut_writer", str(directory)],
            cwd=Path(__file__).parent.parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, *commands: str) -> int:
        """Runs commands; returns the end of the log after the last one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        end = -1
        for command in commands:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
            end = int(self._process.stdout.readline())
        return end

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    image = tmp_path / "disk.ext4"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    return image


def cut_power(image: Path, commands: list[list[str]], tmp_path: Path) -> tuple[list[int], list[Path]]:
    """Copies of the image after each list of commands, and where the log ended then."""
    ends: list[int] = []
    copies: list[Path] = []
    with mounted(image, tmp_path / "live") as live:
        writer = Writer(live / "store")
        try:
            for number, some in enumerate(commands):
                ends.append(writer.do(*some))
                copies.append(tmp_path / f"copy-{number}.ext4")
                shutil.copyfile(image, copies[-1])
        finally:
            writer.kill()
    return ends, copies


def start_on(copy: Path, tmp_path: Path) -> tuple[Recovery, list[bytes]]:
    """Recovers the copy; returns the result and all records."""
    with mounted(copy, tmp_path / copy.stem) as directory:
        files = DiskFiles(directory / "store")
        try:
            store = Store(files)
            recovery = store.recover()
            served: list[bytes] = []
            for facts in recovery.logs:
                offset = facts.first
                while offset < facts.end:
                    chunk = store.read(PARTITION, offset, facts.end, 1)
                    served.append(chunk.batches)
                    offset = chunk.next
            store.close(clean=False)
        finally:
            files.close()
    return recovery, served


@pytest.mark.requirement("CM-13:torn-tail")
def test_a_power_cut_keeps_what_was_synced_and_cuts_the_rest(image: Path, tmp_path: Path) -> None:
    story = [
        ["append"],
        ["append", "sync"],
        ["append", "append"],
        ["sync", "roll", "append"],
        ["sync", "append"],
        ["append", "sync", "roll"],
    ]
    synced = [0, 20, 20, 40, 51, 71]
    ends, copies = cut_power(image, story, tmp_path)
    assert ends == [10, 20, 40, 51, 61, 72]
    lost = 0
    for end, durable, copy in zip(ends, synced, copies, strict=True):
        recovery, served = start_on(copy, tmp_path)
        found = max((facts.end for facts in recovery.logs), default=0)
        assert durable <= found <= end
        assert all(facts.damaged_at is None for facts in recovery.logs)
        expected = [
            bytes(numbered(base, 1 if base in (40, 71) else 10, checkpoint=base in (40, 71))) for base in STARTS
        ]
        assert served == expected[: len(served)]
        lost += end - found
    assert lost > 0, "the copies hold unsynced bytes too: this proves nothing"


@pytest.mark.requirement("CM-13:reported", "CM-13:torn-tail")
def test_a_torn_tail_on_a_real_file_system_is_cut_and_damage_is_reported(image: Path, tmp_path: Path) -> None:
    _, (copy,) = cut_power(image, [["append", "sync", "append", "sync", "append", "sync", "append"]], tmp_path)
    segment = Path("store/topics/0000000000000007-0") / f"{0:020}.log"
    sizes = [len(numbered(base, 10)) for base in (0, 10, 20, 30)]
    with mounted(copy, tmp_path / "torn") as directory, (directory / segment).open("r+b") as file:
        # Behind the three synced batches: half of a fourth, as if the cut had come while it was written.
        assert file.seek(0, 2) == sum(sizes[:3])
        file.write(bytes(numbered(30, 10))[: sizes[3] // 2])
    recovery, served = start_on(copy, tmp_path)
    assert [(note.event, note.offset, note.bytes) for note in recovery.notes] == [("tail_cut", 30, sizes[3] // 2)]
    assert len(served) == 3
    with mounted(copy, tmp_path / "damage") as directory, (directory / segment).open("r+b") as file:
        file.seek(sizes[0] + 300)
        file.write(b"\0")
    with mounted(copy, tmp_path / "again") as directory:
        files = DiskFiles(directory / "store")
        store = Store(files)
        (facts,) = store.recover().logs
        assert facts.damaged_at == 10
        with pytest.raises(CorruptLog):
            store.read(PARTITION, 10, 30, 1 << 20)
        store.close(clean=False)
        files.close()
