"""One segment: a file of batches and what is known about it."""

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
UNBORN = ".compact"
CONTROL = int(Flag.CONTROL)


class Segment:
    """`next` and `bytes` say how far it reaches. The active one has its index here, a sealed one in `Indexes`.

    `version` counts how often it was compacted. It is part of the names, so that a name stands for the same bytes as
    long as anybody may read them.
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
        """That of the last batch, if it was noted since `epochs` was set: nearly every batch has that of the last."""
        self.headers_crc: int | None = 0
        """Of all headers in it, while it is active; unknown after a cut."""

    @staticmethod
    def successor(segment: Segment, index: Index | None) -> Segment:
        """The same segment, compacted once more."""
        return Segment(segment.path.rpartition("/")[0], segment.first, index, segment.version + 1)

    @property
    def unborn_path(self) -> str:
        """Where it is written until it is whole."""
        return self.path.removesuffix(".log") + UNBORN

    def note(self, position: int, header: Header) -> None:
        """A batch was found behind the others."""
        assert self.index is not None
        self.index.add(position, header.base_offset, NO_TIME_US if header.flags & CONTROL else header.max_timestamp_us)
        self.note_epoch(header.owner_epoch, header.base_offset)
        self.max_us = max(self.max_us, header.max_timestamp_us)
        self.bytes = position + header.length
        self.next = header.next_offset

    def note_epoch(self, epoch: int, offset: int) -> None:
        if not self.epochs or self.epochs[-1].epoch != epoch:
            self.epochs.append(EpochRow(epoch, offset))
        self.epoch_noted = epoch

    def facts(self) -> SegmentFacts:
        return SegmentFacts(self.first, self.next, self.bytes, self.max_us)

    def sealed_facts(self) -> SealedFacts:
        return SealedFacts(self.first, self.next, self.bytes, self.max_us, tuple(self.epochs))

    def adopt(self, facts: SealedFacts) -> None:
        self.next, self.bytes, self.max_us = facts.next, facts.bytes, facts.max_us
        self.epochs = list(facts.epochs)
        self.epoch_noted = -1


class Indexes:
    """Indexes of sealed segments, the most recently used in memory; safe beside other threads as `OpenFiles` is."""

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
        """From the segment itself, as far as it is intact: what lies behind damage is not found by any index."""
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
            # An index without a single entry could not be asked for anything.
            index.add(0, segment.first, NO_TIME_US)
        return self._keep(segment.index_path, index)

    def seal(self, segment: Segment, partition: Partition) -> None:
        """Write the index beside the segment and let go of it. Not being able to costs time later, nothing else."""
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
