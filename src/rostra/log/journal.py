"""The journal: hard state by key, and how far each partition is known to be on stable storage.

It is one file, preallocated with zeros and overwritten entry by entry: a sync changes no file size, and a full disk
cannot prevent a vote or a mark from being written. When it is full, and at every start, its live entries are written to
a new file that replaces it by rename. The byte table is in docs/formats/log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from struct import Struct

import msgspec
from crc32c import crc32c

from rostra.errors import CorruptLog
from rostra.log.facts import RecoveryNote
from rostra.log.files import File, Files
from rostra.model.ids import Partition, PartitionIndex, TopicId

PATH = "journal"
NEXT_PATH = "journal.next"
JOURNAL_REUSED = "journal_reused"
"""The note of a start that found the disk full."""
MAGIC = b"RSJ1"
FIELDS: tuple[tuple[str, str], ...] = (
    ("magic", "4s"),
    ("crc", "I"),
    ("length", "I"),
    ("kind", "I"),
    ("durable", "Q"),
)
ENTRY = Struct("<" + "".join(form for _, form in FIELDS))
CHECKED_FROM = 8
_CHECKED = Struct("<" + "".join(form for _, form in FIELDS[2:]))
"""What the checksum covers, before the payload."""
BEGIN, STATE, MARK, FORGET = 0, 1, 2, 3
"""BEGIN is the first entry of every journal; its durable position is the end of the initial content."""
_MARK = Struct("<QIQQQ")
_FORGET = Struct("<QI")
_KEY_BYTES = Struct("<H")


class SyncedMark(msgspec.Struct, frozen=True, gc=False):
    """How far a partition is known to be durable.

    Below `synced`, an fsync has returned. At and above `syncing`, none was ever begun: no record there was
    acknowledged. Below `first`, retention has removed everything.
    """

    first: int
    synced: int
    syncing: int


class Journal:
    """Append-only. Each entry carries the position up to which the journal was durable when the entry was written:
    damage below the highest such position is corruption; damage above it is a torn write."""

    def __init__(self, files: Files, size: int) -> None:
        self._files = files
        self._size = size
        self._file: File | None = None
        self._at = 0
        self._durable = 0
        self.state: dict[str, bytes] = {}
        self.marks: dict[Partition, SyncedMark] = {}

    def load(self) -> list[RecoveryNote]:
        """Reads the journal and starts a new file with its live entries."""
        notes: list[RecoveryNote] = []
        if self._files.exists(PATH):
            written = _read_all(self._files.open(PATH))
            end = self._replay(written)
            lost = len(written[end:].rstrip(b"\0"))
            if lost:
                notes.append(RecoveryNote("journal_cut", PATH, end, lost, 0, "the last entries were never synced"))
            try:
                self._rewrite()
            except OSError as error:
                if error.errno not in (ENOSPC, EDQUOT):
                    raise
                self._reuse(written[:end], len(written))
                notes.append(RecoveryNote(JOURNAL_REUSED, PATH, end, 0, 0, "the disk is full"))
        else:
            self._rewrite()
        return notes

    def _reuse(self, content: bytes, size: int) -> None:
        """Continues the old file, where the disk has no space for a new one: a full node must start to be helped.

        All of it is written again: where a sync failed before the process ended, the system shows bytes that it counts
        as written and that are not on the disk.
        """
        with suppress(OSError):
            self._files.remove(NEXT_PATH)
        file = self._files.open(PATH)
        # What follows was never synced; left there, it might be taken for entries later.
        file.write_at(0, content + bytes(size - len(content)))
        file.begin_sync()()
        self._file = file
        self._at = self._durable = len(content)

    def put(self, key: str, value: bytes) -> None:
        self._add([(STATE, _keyed(key, value))])
        self.state[key] = value

    def mark(self, marks: Iterable[tuple[Partition, SyncedMark]]) -> None:
        listed = list(marks)
        self._add([(MARK, _packed(partition, mark)) for partition, mark in listed])
        self.marks.update(listed)

    def forget(self, partition: Partition) -> None:
        self._add([(FORGET, _FORGET.pack(partition.topic, partition.index))])
        self.marks.pop(partition, None)

    def begin_sync(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The call that makes all entries so far durable, and the function to run after it."""
        assert self._file is not None
        file, end = self._file, self._at

        def finish() -> None:
            if file is self._file:
                self._durable = max(self._durable, end)

        return file.begin_sync(), finish

    def sync(self) -> None:
        call, finish = self.begin_sync()
        call()
        finish()

    @property
    def is_durable(self) -> bool:
        return self._durable == self._at

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, entries: list[tuple[int, bytes]]) -> None:
        assert self._file is not None
        written = b"".join([_entry(kind, payload, self._durable) for kind, payload in entries])
        if self._at + len(written) > self._file.size():
            self._rewrite(extra_bytes=len(written))
            written = b"".join([_entry(kind, payload, self._durable) for kind, payload in entries])
        self._file.write_at(self._at, written)
        self._at += len(written)

    def _rewrite(self, extra_bytes: int = 0) -> None:
        """Writes live entries to a new file. It is synced before use, since entries synced in the old file must
        survive."""
        live = [_entry(STATE, _keyed(key, value), 0) for key, value in sorted(self.state.items())]
        live += [_entry(MARK, _packed(partition, mark), 0) for partition, mark in sorted(self.marks.items())]
        content = b"".join(live)
        content = _entry(BEGIN, b"", ENTRY.size + len(content)) + content
        # Twice its content, so that a large journal is not rewritten all the time.
        size = max(self._size, 2 * len(content) + extra_bytes)
        file = self._files.open(NEXT_PATH, create=True)
        file.truncate(0)
        file.append([content, bytes(size - len(content))])
        file.begin_sync()()
        self._files.rename(NEXT_PATH, PATH)
        self._files.sync_directory("")
        self._file = file
        self._at = self._durable = len(content)

    def _replay(self, written: bytes) -> int:
        """Applies entries up to the first that is not intact; returns its position."""
        at = durable = 0
        while (length := _intact(written, at)) is not None:
            self._apply(written, at, length)
            durable = max(durable, ENTRY.unpack_from(written, at)[4])
            at += ENTRY.size + length
        durable = max(durable, _durable_behind(written, at))
        # The file was synced before it was renamed, so at least its BEGIN entry is intact.
        if durable > at or at == 0:
            raise CorruptLog(PATH, at, f"an entry below the synced position {durable} is not as it was written")
        return at

    def _apply(self, written: bytes, at: int, length: int) -> None:
        kind = ENTRY.unpack_from(written, at)[3]
        payload = written[at + ENTRY.size : at + ENTRY.size + length]
        if kind == STATE:
            (name_bytes,) = _KEY_BYTES.unpack_from(payload)
            name = payload[_KEY_BYTES.size : _KEY_BYTES.size + name_bytes].decode()
            self.state[name] = payload[_KEY_BYTES.size + name_bytes :]
        elif kind == MARK:
            topic, index, *offsets = _MARK.unpack(payload)
            self.marks[Partition(TopicId(topic), PartitionIndex(index))] = SyncedMark(*offsets)
        elif kind == FORGET:
            topic, index = _FORGET.unpack(payload)
            self.marks.pop(Partition(TopicId(topic), PartitionIndex(index)), None)
        elif kind != BEGIN:
            raise CorruptLog(PATH, at, f"entry kind {kind} is from a newer version")


def known_marks(written: bytes) -> dict[Partition, int]:
    """How far each partition is known to be durable, from the bytes of a journal."""
    journal = Journal.__new__(Journal)
    journal.state, journal.marks = {}, {}
    journal._replay(written)
    return {partition: mark.synced for partition, mark in journal.marks.items()}


def _keyed(key: str, value: bytes) -> bytes:
    name = key.encode()
    return _KEY_BYTES.pack(len(name)) + name + value


def _packed(partition: Partition, mark: SyncedMark) -> bytes:
    return _MARK.pack(partition.topic, partition.index, mark.first, mark.synced, mark.syncing)


def _entry(kind: int, payload: bytes, durable: int) -> bytes:
    checked = _CHECKED.pack(len(payload), kind, durable) + payload
    return b"%b%b%b" % (MAGIC, crc32c(checked).to_bytes(4, "little"), checked)


def _intact(written: bytes, at: int) -> int | None:
    """The payload length of the entry at `at` if it is intact."""
    if at + ENTRY.size > len(written):
        return None
    magic, crc, length, _, _ = ENTRY.unpack_from(written, at)
    end = at + ENTRY.size + length
    if magic != MAGIC or end > len(written) or crc != crc32c(memoryview(written)[at + CHECKED_FROM : end]):
        return None
    return int(length)


def _durable_behind(written: bytes, at: int) -> int:
    """The highest durable position stated by an intact entry at or after `at`."""
    durable = 0
    at = written.find(MAGIC, at)
    while at >= 0:
        length = _intact(written, at)
        if length is not None:
            durable = max(durable, ENTRY.unpack_from(written, at)[4])
        at = written.find(MAGIC, at + 1 if length is None else at + ENTRY.size + length)
    return durable


def _read_all(file: File) -> bytes:
    written = file.read(0, file.size())
    file.close()
    return written
