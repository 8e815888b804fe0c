"""Publishes staged handles: reads each staged batch from the log and appends it as an ordinary batch.

The log of the partition tells which handles are published (`StagedTable`). So a publication that was cut short, by a
new owner or a failed write, continues behind the last copy, and nothing is published twice. At most one
read of a publication, and what it returned, is uncommitted at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from rostra.broker.partition.control_batch import read_control
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sinks.node_messages import PublishHandles
from rostra.broker.sinks.port import SinkPort
from rostra.broker.sinks.staged_table import BatchPublished, BatchStaged, HandlesDropped
from rostra.errors import RostraError
from rostra.fabric.api import Read
from rostra.model.batch import BODY_CRC_AT, base_offset, batch_length, body_crc
from rostra.model.ids import Partition
from rostra.safeguards import Safeguard

PRODUCER_AT = 40
_PRODUCER = Struct("<QII")
_CRC = Struct("<I")

OnPublished = Callable[[ServedPartition, PublishHandles, int], None]
"""Called with the offset that must be committed before the publication may be reported."""


class Publication:
    """One batch of a query in one partition."""

    def __init__(self, served: ServedPartition, message: PublishHandles, handles: list[int]) -> None:
        self.served = served
        self.message = message
        self.handles = handles
        self.work: list[tuple[int, int]] = []
        """(offset, handle) of the staged batches that are to be published, the first one last."""
        self.token = 0
        """Of the read in progress; 0 if none is."""
        self.last = -1
        """Offset of the last copy that was appended."""


class Publications:
    """All publications in progress at this node."""

    def __init__(self, broker: SinkPort, published: OnPublished) -> None:
        self._broker = broker
        self._published = published
        self._resumes = Safeguard.IDEMPOTENT_APPLY not in broker.without
        self._in_progress: dict[Partition, dict[int, Publication]] = {}
        """By partition and commit."""
        self._reads: dict[int, Publication] = {}

    def begin(self, publication: Publication) -> None:
        """Begins it, unless it is in progress."""
        served, commit = publication.served, publication.message.commit
        running = self._in_progress.setdefault(served.partition, {})
        if commit in running:
            return
        running[commit] = publication
        for handle in publication.handles:
            row = served.derived.staged.get(handle)
            assert row is not None
            if not row.published or not self._resumes:
                publication.work.append((row.offset, handle))
        publication.work.sort(reverse=True)
        self._continue(publication)

    def _continue(self, publication: Publication) -> None:
        served = publication.served
        if not publication.work:
            self._finish(publication)
            return
        broker = self._broker
        publication.token = token = broker.next_token()
        self._reads[token] = publication
        offset = publication.work[-1][0]
        broker.out.append(Read(token, served.partition, offset, served.commit, broker.settings.read_bytes_max))

    def read_done(self, token: int, batches: bytes) -> bool:
        """True if the read is one of a publication."""
        publication = self._reads.pop(token, None)
        if publication is None:
            return False
        if publication.token == token:
            publication.token = 0
            if not self._append_copies(publication, memoryview(batches)):
                self._end(publication)
            elif publication.last < publication.served.commit:
                self._continue(publication)
        return True

    def read_failed(self, token: int) -> bool:
        """True if the read is one of a publication, which ends: the coordinator asks for it again."""
        publication = self._reads.pop(token, None)
        if publication is not None and publication.token == token:
            self._end(publication)
        return publication is not None

    def _append_copies(self, publication: Publication, batches: memoryview) -> bool:
        """False if none could be appended."""
        broker, served, at, before = self._broker, publication.served, 0, len(publication.work)
        while at < len(batches) and publication.work:
            length = batch_length(batches, at)
            offset, handle = publication.work[-1]
            if base_offset(batches, at) == offset:
                copy = _copy_of(batches[at : at + length], handle)
                if copy is None or broker.proposer.write_error(served) is not None:
                    return False
                if served.segment_bytes >= served.segment_bytes_max:
                    broker.proposer.roll(served)
                placed = broker.proposer.propose(served, copy, 0)
                if isinstance(placed, RostraError):
                    return False
                publication.last = placed[1]
                publication.work.pop()
            at += length
        return len(publication.work) < before

    def committed(self, served: ServedPartition) -> None:
        for publication in list(self._in_progress.get(served.partition, {}).values()):
            if not publication.token and publication.last < served.commit:
                self._continue(publication)

    def _finish(self, publication: Publication) -> None:
        """Everything is appended: so are, in one batch with this, the ends of all handles of the query up to now."""
        served, message = publication.served, publication.message
        gone = tuple(
            row.handle
            for row in served.derived.staged.rows()
            if row.query == message.query and row.batch <= message.batch
        )
        self._end(publication)
        published = BatchPublished(message.query, message.batch)
        last = self._broker.proposer.append_control(served, [HandlesDropped(gone), published])
        if not isinstance(last, RostraError):
            self._published(served, message, last)

    def _end(self, publication: Publication) -> None:
        publication.token = 0
        running = self._in_progress.get(publication.served.partition, {})
        running.pop(publication.message.commit, None)
        if not running:
            self._in_progress.pop(publication.served.partition, None)

    def lost(self, partition: Partition) -> None:
        """Another node owns the partition, or its log was truncated: the coordinator asks again."""
        for publication in self._in_progress.pop(partition, {}).values():
            publication.token = 0


def _copy_of(control: memoryview, handle: int) -> bytearray | None:
    """The staged batch inside this control batch, as a batch of the producer `handle`."""
    for entry in read_control(control):
        if isinstance(entry, BatchStaged) and entry.handle == handle:
            copy = bytearray(entry.staged)
            _PRODUCER.pack_into(copy, PRODUCER_AT, handle, 0, 0)
            _CRC.pack_into(copy, BODY_CRC_AT, body_crc(copy, 0, len(copy)))
            return copy
    return None
