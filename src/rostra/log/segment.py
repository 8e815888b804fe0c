"""One segment: a file of batches, and its index."""

from __future__ import annotations

import re
from collections import OrderedDict
from contextlib import suppress

from rostra.log.facts import EpochRow, LogSettings, SegmentFacts
from rostra.log.files import Files
from rostra.log.index import NO_TIME_US, Index, SealedFacts, decode_index, encode_index
from rostra.log.open_files import OpenFiles
from rostra.log.scan import Damage, scan
from rostra.model.batch import Flag, Header
from rostra.model.ids import Partition

SEGMENT_NAME = re.compile(r"(\d{20})(?:\.([1-9]\d*))?\.log")
TEMPORARY_SUFFIX = ".compact"
CONTROL = int(Flag.CONTROL)


class Segment:
    """`next` and `bytes` are its ends. The active segment has its index here, a sealed one in `Indexes`.

    `version` counts compactions. It is part of the file names, so that the bytes under a name never change while
    readers may use them.
    """

    __slots__ = (
        "bytes",
        "epoch_noted",
        "epochs",
        "first",
        "headers_crc",
        "index",
        "index_path",
        "max_us",
        "next",
        "path",
        "version",
    )

    def __init__(self, directory: str, first: int, index: Index | None, version: int = 0) -> None:
        self.first = first
        self.version = version
        self.next = first
        self.bytes = 0
        self.max_us = NO_TIME_US
        stem = f"{directory}/{first:020}" + (f".{version}" if version else "")
        self.path = f"{stem}.log"
        self.index_path = f"{stem}.index"
        self.index = index
        self.epochs: list[EpochRow] = []
        self.epoch_noted = -1
        """Owner epoch of the last batch noted since `epochs` was set: a shortcut, since it seldom changes."""
        self.headers_crc: int | None = 0
        """Checksum of all headers while it is active; None after truncation."""

    @staticmethod
    def successor(segment: Segment, index: Index | None) -> Segment:
        """The same segment, compacted once more."""
        return Segment(segment.path.rpartition("/")[0], segment.first, index, segment.version + 1)

    @property
    def temporary_path(self) -> str:
        """The name under which it is written until it is complete."""
        return self.path.removesuffix(".log") + TEMPORARY_SUFFIX

    def note(self, position: int, header: Header) -> None:
        """Adds the next batch."""
        assert self.index is not None
        # A checkpoint or another control batch is no record: it neither ages a segment nor keeps it.
        max_us = NO_TIME_US if header.flags & CONTROL else header.max_timestamp_us
        self.index.add(position, header.base_offset, max_us)
        self.note_epoch(header.owner_epoch, header.base_offset)
        self.max_us = max(self.max_us, max_us)
        self.bytes = position + header.length
        self.next = header.next_offset

    def note_epoch(self, epoch: int, offset: int) -> None:
        if not self.epochs or self.epochs[-1].epoch != epoch:
            self.epochs.append(EpochRow(epoch, offset))
        self.epoch_noted = epoch

    @property
    def since_us(self) -> int | None:
        """About the earliest timestamp of its records, as far as a sparse index knows; None without records."""
        if self.index is None:
            return None
        earliest = next((max_us for max_us in self.index.maxima if max_us > NO_TIME_US), self.index.max_us)
        return earliest if earliest > NO_TIME_US else None

    def facts(self) -> SegmentFacts:
        return SegmentFacts(self.first, self.next, self.bytes, self.max_us)

    def sealed_facts(self) -> SealedFacts:
        return SealedFacts(self.first, self.next, self.bytes, self.max_us, tuple(self.epochs))

    def adopt(self, facts: SealedFacts) -> None:
        self.next, self.bytes, self.max_us = facts.next, facts.bytes, facts.max_us
        self.epochs = list(facts.epochs)
        self.epoch_noted = -1


class Indexes:
    """Indexes of sealed segments, the most recently used in memory; thread-safe as `OpenFiles` is."""

    def __init__(self, files: Files, open_files: OpenFiles, settings: LogSettings) -> None:
        self._files = files
        self._open_files = open_files
        self._settings = settings
        self._cached: OrderedDict[str, Index] = OrderedDict()

    def get(self, segment: Segment, partition: Partition) -> Index:
        index = segment.index or self._cached.get(segment.index_path)
        if index is not None:
            return index
        loaded = self.load(segment, partition)
        if loaded is not None and loaded[1] == segment.sealed_facts():
            return self._keep(segment.index_path, loaded[0])
        return self.rebuild(segment, partition)

    def load(self, segment: Segment, partition: Partition) -> tuple[Index, SealedFacts] | None:
        try:
            file = self._files.open(segment.index_path)
            written = file.read(0, file.size())
            file.close()
        except OSError:
            return None
        return decode_index(written, partition, self._settings.index_every_bytes)

    def rebuild(self, segment: Segment, partition: Partition) -> Index:
        """Rebuilds the index from the segment, up to the first damage."""
        index = Index(self._settings.index_every_bytes)
        again = Segment("", segment.first, index)
        file = self._open_files.get(segment.path)
        try:
            settings = self._settings
            found_all = scan(
                file, partition, segment.first, segment.bytes, settings.recover_chunk_bytes, settings.verifies
            )
            for found in found_all:
                again.note(found.position, found.header)
        except Damage:
            # An index needs at least one entry.
            index.add(0, segment.first, NO_TIME_US)
        return self._keep(segment.index_path, index)

    def seal(self, segment: Segment, partition: Partition) -> None:
        """Writes the index file of a sealed segment. If that fails, the index is rebuilt when it is needed."""
        assert segment.index is not None
        with suppress(OSError):
            file = self._files.open(segment.index_path, create=True)
            file.truncate(0)
            file.append([encode_index(segment.index, partition, segment.sealed_facts())])
            file.close()
        self._keep(segment.index_path, segment.index)
        segment.index = None

    def forget(self, segment: Segment) -> None:
        self._cached.pop(segment.index_path, None)

    def _keep(self, path: str, index: Index) -> Index:
        self._cached[path] = index
        while len(self._cached) > self._settings.indexes_cached_max:
            self._cached.popitem(last=False)
        return index
