"""Files and directories of a simulated disk: current and durable state, and the changes in between."""

from __future__ import annotations

import msgspec


class FileWrite(msgspec.Struct, frozen=True, gc=False):
    number: int
    position: int
    content: bytes


class FileTruncation(msgspec.Struct, frozen=True, gc=False):
    number: int
    size: int


class Inode:
    """A file's content, its durable content, and the pending changes between them, oldest first."""

    __slots__ = ("content", "durable", "pending", "stale")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[FileWrite | FileTruncation] = []
        self.stale = False
        """Whether a failed sync dropped changes, so that the contents differ with nothing pending."""

    def make_durable(self, number: int) -> None:
        """Make the changes up to this one durable."""
        pending, durable = self.pending, self.durable
        settled = 0
        for change in pending:
            if change.number > number:
                break
            apply_change(durable, change)
            settled += 1
        if settled == len(pending):
            pending.clear()
        else:
            del pending[:settled]

    def drop(self, number: int) -> None:
        """Drops changes after a failed sync, as Linux does: the pages count as clean and are never written."""
        kept = [change for change in self.pending if change.number > number]
        self.stale = self.stale or len(kept) < len(self.pending)
        self.pending = kept


def apply_change(durable: bytearray, change: FileWrite | FileTruncation) -> None:
    if isinstance(change, FileTruncation):
        resize(durable, change.size)
    else:
        position, content = change.position, change.content
        if position > len(durable):
            resize(durable, position)
        durable[position : position + len(content)] = content


def resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class SimulatedDirectory:
    """Current and durable entries; `changes` are the steps between them, each of one or two entries."""

    __slots__ = ("changes", "durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Inode | SimulatedDirectory] = {}
        self.durable: dict[str, Inode | SimulatedDirectory] = {}
        self.changes: list[dict[str, Inode | SimulatedDirectory | None]] = []

    def change(self, **changed: Inode | SimulatedDirectory | None) -> None:
        set_entries(self.entries, changed)
        self.changes.append(changed)


def set_entries(
    entries: dict[str, Inode | SimulatedDirectory], changed: dict[str, Inode | SimulatedDirectory | None]
) -> None:
    for name, node in changed.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node
