"""A simulated disk in memory that fails as real disks do, by the choices of a seeded generator.

Theory of operation: the crash model. Written bytes are readable at once, but durable only when a sync that began after
the write has returned. Every file keeps its content, its durable content, and the writes and truncations in between.

- `crash` is a power cut. Each file keeps its durable content and, of the pending changes, one of: nothing; a prefix,
  whose last write may be torn; or a random subset of 512-byte blocks, so that later blocks may survive earlier ones,
  and the size may survive without the bytes. Directory changes survive as a prefix, as in a journalling file system:
  a rename that was not synced may be undone. Files that were open can no longer be used.
- A failed sync drops the dirty pages, as Linux does: the changes stay readable and never become durable, even if a
  later sync succeeds.
- A write may fail, or be cut short on a full disk.
- `SimulatedCrash` is raised before the n-th next change, so that a process can crash between any two disk operations.
- Bits can be flipped in durable bytes.

`counters` counts a fault when it takes effect, not when it is switched on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from errno import EBADF, EIO, ENOENT, ENOSPC
from random import Random

import msgspec

from rostra.log.files import Buffer, File
from rostra.simulator.disk.inode import (
    FileTruncation,
    FileWrite,
    Inode,
    SimulatedDirectory,
    apply_change,
    resize,
    set_entries,
)

BLOCK_BYTES = 512
"""The disk writes a block atomically."""


class SimulatedCrash(BaseException):
    """The process crashes between two disk operations. A BaseException, so that no error handling catches it."""

    def __init__(self, files: FaultyFiles) -> None:
        super().__init__()
        self.files = files


class DiskFaults(msgspec.Struct):
    """The faults that are on. Chances are per operation; a capacity of None is unlimited."""

    sync_failure_chance: float = 0.0
    write_failure_chance: float = 0.0
    capacity_bytes: int | None = None
    reorder: bool = True
    """Whether a crash may keep later blocks of a file and lose earlier ones."""
    operations_left: int | None = None
    """After so many further changes to the disk, the next one raises `SimulatedCrash` instead."""


class CrashSurvival(Enum):
    """What a crash keeps of a file's unsynced writes."""

    NOTHING = 0
    BEGINNING = 1
    BLOCKS = 2


class FaultyFile:
    __slots__ = ("_crashes", "_files", "_inode")

    def __init__(self, files: FaultyFiles, inode: Inode) -> None:
        self._files = files
        self._inode = inode
        self._crashes = files.crashes

    def size(self) -> int:
        return len(self._inode.content)

    def append(self, buffers: Sequence[Buffer], end: int = -1) -> int:
        inode = self._inode
        assert end in (-1, len(inode.content)), (end, len(inode.content))
        self._write(len(inode.content), b"".join(buffers))
        return len(inode.content)

    def write_at(self, position: int, buffer: Buffer) -> None:
        self._write(position, bytes(buffer))

    def _write(self, position: int, written: bytes) -> None:
        files, inode = self._files, self._inode
        self._check_alive()
        files.begin_operation()
        refusal = files.write_error()
        content = inode.content
        before = len(content)
        growth = position + len(written) - before
        if growth > 0:
            space = files.space_for(growth)
            if space < growth:
                refusal = OSError(ENOSPC, "no space left on device")
                files.counters["disk_full"] += 1
                written = written[: max(len(written) - (growth - space), 0)]
            if position > before:
                resize(content, position)
        content[position : position + len(written)] = written
        if growth > 0:
            files.used_bytes += len(content) - before
        files.number = number = files.number + 1
        inode.pending.append(FileWrite(number, position, written))
        if refusal is not None:
            raise refusal

    def read(self, position: int, count: int) -> bytes:
        return bytes(self._inode.content[position : position + count])

    def truncate(self, size: int) -> None:
        self._check_alive()
        self._files.begin_operation()
        content = self._inode.content
        if size != len(content):
            self._files.used_bytes += size - len(content)
            resize(content, size)
            self._inode.pending.append(FileTruncation(self._files.next_number(), size))

    def begin_sync(self) -> Callable[[], None]:
        number = self._files.number

        def sync() -> None:
            self._check_alive()
            self._files.begin_operation()
            if self._inode.pending and self._files.sync_fails():
                self._inode.drop(number)
                raise OSError(EIO, "input/output error")
            self._inode.make_durable(number)

        return sync

    def close(self) -> None:
        pass

    def _check_alive(self) -> None:
        if self._crashes != self._files.crashes:
            raise OSError(EBADF, "this file was open when the power went")


class FaultyFiles:
    """The simulated implementation of `rostra.log.files.Files`: one disk, which outlives processes and power cuts."""

    def __init__(self, random: Random, faults: DiskFaults | None = None) -> None:
        self._random = random
        self.faults = faults or DiskFaults()
        self.counters: Counter[str] = Counter()
        self.crashes = 0
        self.number = 0
        self.used_bytes = 0
        self.files_with_loss: dict[str, None] = {}
        """Paths of files that lost bytes in a crash."""
        self._root = SimulatedDirectory()
        self.has_sync_all = True

    # --- the port ----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(ENOENT, "no such file", path)
            self.begin_operation()
            node = Inode()
            directory.change(**{name: node})
        if isinstance(node, SimulatedDirectory):
            raise IsADirectoryError(path)
        return FaultyFile(self, node)

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in directory.entries

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(self._directory(directory).entries)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        node = self._root
        for level in path.split("/"):
            entry = node.entries.get(level)
            if entry is None:
                self.begin_operation()
                entry = SimulatedDirectory()
                node.change(**{level: entry})
            assert isinstance(entry, SimulatedDirectory)
            node = entry

    def rename(self, old: str, new: str) -> None:
        directory, old_name = self._parent(old)
        target, new_name = self._parent(new)
        assert directory is target, "a rename stays in its directory"
        node = directory.entries.get(old_name)
        if node is None:
            raise FileNotFoundError(ENOENT, "no such file", old)
        self.begin_operation()
        self._release(directory.entries.get(new_name))
        directory.change(**{old_name: None, new_name: node})

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(ENOENT, "no such file", path)
        self.begin_operation()
        self._release(node)
        directory.change(**{name: None})

    def remove_directory(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is not None:
            self.begin_operation()
            self._release(node)
            directory.change(**{name: None})

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        if directory.changes:
            self.begin_operation()
            if self.sync_fails():
                raise OSError(EIO, "input/output error")
            directory.durable = dict(directory.entries)
            directory.changes.clear()

    def begin_sync_all(self) -> Callable[[], None] | None:
        return self._sync_all_of(self.number, self.crashes) if self.has_sync_all else None

    def _sync_all_of(self, number: int, crashes: int) -> Callable[[], None]:
        def sync() -> None:
            if crashes != self.crashes:
                raise OSError(EBADF, "this file was open when the power went")
            self.begin_operation()
            inodes = [inode for _, inode in self._inodes(self._root, "") if inode.pending]
            directories = [directory for directory in self._directories(self._root) if directory.changes]
            fails = bool(inodes or directories) and self.sync_fails()
            for inode in inodes:
                # Some changes reach the disk even so.
                if fails and self._random.random() < 0.5:
                    inode.drop(number)
                else:
                    inode.make_durable(number)
            if fails:
                raise OSError(EIO, "input/output error")
            for directory in directories:
                directory.durable = dict(directory.entries)
                directory.changes.clear()

        return sync

    # --- faults ------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Cuts the power: invalidates open files and decides which unsynced changes survive."""
        self.crashes += 1
        self._crash_directory(self._root, "")
        self.used_bytes = sum(len(inode.content) for _, inode in self._inodes(self._root, ""))

    def durable_sizes(self, under: str = "topics") -> dict[str, int]:
        """How many bytes of each file are durable."""
        found = ((path, inode) for path, inode in self._inodes(self._root, "") if path.startswith(under))
        return {path: min(len(inode.durable), len(inode.content)) for path, inode in found}

    def flip_bits(self, count: int, below: Mapping[str, int] | None = None) -> list[tuple[str, int]]:
        """Flips bits in durable bytes of the log; returns where. `below` limits it to the first bytes of some files.

        Damage to the last group commit cannot be told from a torn tail: use `durable_sizes` right after a recovery.
        """
        sizes = self.durable_sizes()
        limits = [(path, min(sizes[path], limit)) for path, limit in sorted((below or sizes).items()) if path in sizes]
        limits = [(path, limit) for path, limit in limits if limit > 0]
        flipped: list[tuple[str, int]] = []
        for _ in range(count if limits else 0):
            path, limit = self._random.choice(limits)
            position = self._random.randrange(limit)
            directory, name = self._parent(path)
            inode = directory.entries[name]
            assert isinstance(inode, Inode)
            bit = 1 << self._random.randrange(8)
            inode.durable[position] ^= bit
            inode.content[position] ^= bit
            self.counters["bits_flipped"] += 1
            flipped.append((path, position))
        return flipped

    def paths(self, under: str) -> list[str]:
        return [path for path, _ in self._inodes(self._root, "") if path.startswith(under)]

    def read_whole(self, path: str) -> bytes:
        return bytes(self._inode(path).content)

    def durable_bytes(self, path: str) -> bytes:
        """The durable content of a file."""
        return bytes(self._inode(path).durable)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        inode = self._inode(path)
        for content in (inode.durable, inode.content):
            if position < len(content):
                content[position] ^= 1 << bit
        self.counters["bits_flipped"] += 1

    def _inode(self, path: str) -> Inode:
        directory, name = self._parent(path)
        node = directory.entries[name]
        assert isinstance(node, Inode)
        return node

    def begin_operation(self) -> None:
        """Counts a change to the disk, and raises `SimulatedCrash` if it is the one to crash at."""
        left = self.faults.operations_left
        if left is not None:
            if left <= 0:
                self.faults.operations_left = None
                self.counters["outages"] += 1
                raise SimulatedCrash(self)
            self.faults.operations_left = left - 1

    def write_error(self) -> OSError | None:
        chance = self.faults.write_failure_chance
        if chance and self._random.random() < chance:
            self.counters["writes_failed"] += 1
            return OSError(EIO, "input/output error")
        return None

    def sync_fails(self) -> bool:
        chance = self.faults.sync_failure_chance
        if chance and self._random.random() < chance:
            self.counters["syncs_failed"] += 1
            return True
        return False

    def space_for(self, growth: int) -> int:
        capacity = self.faults.capacity_bytes
        return growth if capacity is None else max(min(growth, capacity - self.used_bytes), 0)

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def _crash_directory(self, directory: SimulatedDirectory, path: str) -> None:
        """Keeps a prefix of the directory's changes, as a journalling file system does."""
        kept = self._random.randint(0, len(directory.changes)) if directory.changes else 0
        for changed in directory.changes[:kept]:
            set_entries(directory.durable, changed)
        for changed in directory.changes[kept:]:
            self.counters["renames_lost" if len(changed) > 1 else "entries_lost"] += 1
        directory.changes.clear()
        directory.entries = dict(directory.durable)
        for name, node in sorted(directory.entries.items()):
            if isinstance(node, SimulatedDirectory):
                self._crash_directory(node, f"{path}{name}/")
            elif (node.pending or node.stale) and self._crash_inode(node):
                self.files_with_loss[f"{path}{name}"] = None

    def _crash_inode(self, inode: Inode) -> bool:
        """Applies the surviving changes; whether any bytes were lost."""
        survival = self._random.choice(
            list(CrashSurvival) if self.faults.reorder else [CrashSurvival.NOTHING, CrashSurvival.BEGINNING]
        )
        if survival is not CrashSurvival.NOTHING:
            self._keep_some_writes(inode, survival)
        inode.pending.clear()
        lost = count_differing_bytes(inode.content, inode.durable)
        self.counters["bytes_lost"] += lost
        inode.content = bytearray(inode.durable)
        inode.stale = False
        return lost > 0

    def _keep_some_writes(self, inode: Inode, survival: CrashSurvival) -> None:
        kept = self._random.randint(0, len(inode.pending))
        for at, change in enumerate(inode.pending):
            if survival is CrashSurvival.BEGINNING and at >= kept:
                if isinstance(change, FileWrite) and len(change.content) > 1:
                    torn = change.content[: self._random.randrange(1, len(change.content))]
                    apply_change(inode.durable, FileWrite(0, change.position, torn))
                    self.counters["writes_torn"] += 1
                return
            if isinstance(change, FileTruncation):
                # Writes after a lost truncation are lost with it.
                if survival is CrashSurvival.BLOCKS and self._random.random() < 0.5:
                    return
                apply_change(inode.durable, change)
            elif survival is CrashSurvival.BEGINNING:
                apply_change(inode.durable, change)
            else:
                self._keep_some_blocks(inode, change)

    def _keep_some_blocks(self, inode: Inode, write: FileWrite) -> None:
        lost = 0
        position, end = write.position, write.position + len(write.content)
        while position < end:
            stop = min(position - position % BLOCK_BYTES + BLOCK_BYTES, end)
            if self._random.random() < 0.5:
                block = write.content[position - write.position : stop - write.position]
                apply_change(inode.durable, FileWrite(0, position, block))
            else:
                lost += stop - position
            position = stop
        if 0 < lost < len(write.content):
            self.counters["writes_torn"] += 1
        if lost and end > len(inode.durable) and self._random.random() < 0.25:
            # The size reached the disk, the bytes did not.
            resize(inode.durable, end)

    # --- the tree ----------------------------------------------------------------------------------

    def _parent(self, path: str) -> tuple[SimulatedDirectory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _directory(self, path: str) -> SimulatedDirectory:
        node = self._root
        for level in path.split("/") if path else ():
            entry = node.entries.get(level)
            if not isinstance(entry, SimulatedDirectory):
                raise FileNotFoundError(ENOENT, "no such directory", path)
            node = entry
        return node

    def _directories(self, directory: SimulatedDirectory) -> Iterator[SimulatedDirectory]:
        yield directory
        for _, node in sorted(directory.entries.items()):
            if isinstance(node, SimulatedDirectory):
                yield from self._directories(node)

    def _inodes(self, directory: SimulatedDirectory, path: str) -> Iterator[tuple[str, Inode]]:
        for name, node in sorted(directory.entries.items()):
            if isinstance(node, SimulatedDirectory):
                yield from self._inodes(node, f"{path}{name}/")
            else:
                yield f"{path}{name}", node

    def _release(self, node: Inode | SimulatedDirectory | None) -> None:
        """Frees the space of a removed file or directory."""
        if isinstance(node, SimulatedDirectory):
            self.used_bytes -= sum(len(inode.content) for _, inode in self._inodes(node, ""))
        elif node is not None:
            self.used_bytes -= len(node.content)


def count_differing_bytes(content: bytearray, durable: bytearray) -> int:
    """How many bytes of the content are missing or different in the durable content."""
    common = min(len(content), len(durable))
    apart = int.from_bytes(content[:common], "little") ^ int.from_bytes(durable[:common], "little")
    return len(content) - apart.to_bytes(common, "little").count(0)
