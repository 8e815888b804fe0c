"""What a broker needs of the last segment of a log to rebuild its state."""

from __future__ import annotations

from collections.abc import Callable

from rostra.log.facts import LogFacts, Stamp
from rostra.log.files import File
from rostra.log.scan import ScannedBatch, is_intact
from rostra.log.segment import CONTROL
from rostra.model.batch import BROKER_STATE, CHECKPOINT, Header
from rostra.model.decode import Batch
from rostra.model.ids import Partition


class LastSegment:
    """Its checkpoint, the producer stamps after it, and the positions of the broker's state batches."""

    def __init__(self) -> None:
        self._checkpoint_bytes = 0
        self._stamps: list[Stamp] = []
        self._entries: list[tuple[int, int, int]] = []
        """(base offset, position, length)"""

    def note(self, found: ScannedBatch) -> None:
        header = found.header
        if not header.flags & CONTROL:
            self._stamps.append(_stamp(header))
        elif header.owner_flags & BROKER_STATE:
            self._entries.append((header.base_offset, found.position, header.length))
        elif not found.position and header.owner_flags & CHECKPOINT:
            self._checkpoint_bytes = header.length

    def is_intact(self, file: File, partition: Partition) -> bool:
        """Whether the bodies are intact that a start reads."""
        relied_on = [(position, length) for _, position, length in self._entries]
        if self._checkpoint_bytes:
            relied_on.append((0, self._checkpoint_bytes))
        return all(is_intact(file.read(position, length), partition) for position, length in relied_on)

    def add_to(self, facts: LogFacts, read: Callable[[int, int], bytes]) -> LogFacts:
        """The facts with what was found; `read` returns bytes of the segment and is only called if something was
        found."""
        checkpoint = Batch(read(0, self._checkpoint_bytes)).values()[0] if self._checkpoint_bytes else None
        return LogFacts(
            facts.partition,
            facts.first,
            facts.end,
            facts.epochs,
            facts.damaged_at,
            checkpoint,
            tuple(self._stamps),
            facts.segment_bytes,
            facts.bytes,
            tuple((base, read(position, length)) for base, position, length in self._entries),
            facts.checkpoint_at,
        )


def _stamp(header: Header) -> Stamp:
    return Stamp(
        header.base_offset,
        header.next_offset - 1,
        header.producer,
        header.producer_epoch,
        header.sequence,
        header.next_offset - header.base_offset,
    )
