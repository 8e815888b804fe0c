"""A reference model of what a broker promises its clients: no log, no disk, no node, no messages.

It takes only the offsets from the broker: they must rise, and everything else follows from them.
"""

from __future__ import annotations

from typing import NamedTuple

from rostra.wire.messages import TopicSettings


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    stamp_us: int
    delivered: bool
    """False if a stronger publisher was alive when it was written: it is stored but not delivered."""

    def __repr__(self) -> str:
        hidden = "" if self.delivered else ", suppressed"
        return f"<{self.offset}: {self.key!r} = {self.value and self.value.rstrip(b'.')!r}{hidden}>"


class Producer(NamedTuple):
    """`sent` has the number of records by sequence."""

    epoch: int
    expected: int
    sent: dict[int, int]


class Publisher(NamedTuple):
    strength: int
    lease_us: int
    heard_us: int


class ReferencePartition:
    """One partition of a topic."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        """Records that are not deleted."""
        self.first = 0
        self.end = 0
        self.producers: dict[int, Producer] = {}
        self.publishers: dict[int, Publisher] = {}
        self.tombstone_us: int | None = None
        """The least tombstone retention so far; None if compaction was never on."""

    # --- writing ---

    def check(self, producer: int, epoch: int, sequence: int, count: int) -> str:
        """The outcome of a batch with this sequence: new, stored already, or the error."""
        known = self.producers.get(producer)
        if known is None:
            return "UnknownProducer" if sequence else "new"
        if epoch != known.epoch:
            return "ProducerFenced" if epoch < known.epoch else "SequenceGap" if sequence else "new"
        if sequence == known.expected:
            return "new"
        return "stored" if known.sent.get(sequence) == count else "SequenceGap"

    def send(self, producer: int, epoch: int, sequence: int, count: int) -> None:
        known = self.producers.get(producer)
        sent = known.sent if known is not None and known.epoch == epoch else {}
        self.producers[producer] = Producer(epoch, sequence + count, {**sent, sequence: count})

    def append(self, records: list[Record]) -> None:
        assert records[0].offset >= self.end, "offsets rise"
        self.records += records
        self.end = records[-1].offset + 1

    # --- ownership ---

    def strongest(self) -> int:
        best = max(one.strength for one in self.publishers.values())
        return min(publisher for publisher, one in self.publishers.items() if one.strength == best)

    def heard(self, publisher: int, now_us: int) -> None:
        if publisher in self.publishers:
            self.publishers[publisher] = self.publishers[publisher]._replace(heard_us=now_us)

    def expire(self, now_us: int) -> None:
        alive = {name: one for name, one in self.publishers.items() if one.heard_us + one.lease_us > now_us}
        self.publishers = alive

    # --- reading ---

    def shown(self, offset: int) -> list[Record]:
        return [record for record in self.records if record.offset >= offset and record.delivered]

    def start(self, kind: str, value: int, depth: int) -> int:
        """The first record of a subscription, or the end."""
        match kind:
            case "latest":
                return self.end
            case "offset":
                return value
            case "last":
                last = self.shown(0)[-min(value, depth or value) :] if value else []
                return last[0].offset if last else self.end
            case "time":
                return next((record.offset for record in self.shown(0) if record.stamp_us >= value), self.end)
            case _:
                return self.first

    # --- retention ---

    def forget(self, present: list[Record], first: int, settings: TopicSettings, now_us: int) -> None:
        """`present` records are left, from `first` on: the loss of all others must be explained."""
        assert first >= self.first, "log start only rises"
        here = {record.offset for record in present}
        assert [record for record in self.records if record.offset in here] == present
        oldest_us = now_us - settings.retention_ms * 1000
        for record in self.records:
            if record.offset in here:
                continue
            if record.offset < first:
                assert settings.retention_bytes or (settings.retention_ms and record.stamp_us < oldest_us), record
            else:
                assert self._is_outdated(record, here, now_us), f"{record} is lost, of {sorted(here)}"
        self.records, self.first = present, first

    def _is_outdated(self, record: Record, here: set[int], now_us: int) -> bool:
        """Replaced by a later record of its key; or a tombstone with no record left that it hides."""
        if self.tombstone_us is None or record.key is None or not record.delivered:
            return False
        others = [other for other in self.records if other.key == record.key and other.delivered]
        if any(other.offset > record.offset for other in others):
            return True
        aged = record.value is None and record.stamp_us < now_us - self.tombstone_us
        return aged and not any(other.offset in here for other in others)


class ReferenceTopic:
    def __init__(self, topic: int, settings: TopicSettings) -> None:
        self.topic = topic
        self.partitions = [ReferencePartition() for _ in range(settings.partitions)]
        self.alter(settings)

    def alter(self, settings: TopicSettings) -> None:
        self.settings = settings
        for partition in self.partitions:
            if settings.compaction:
                known_us = partition.tombstone_us
                altered_us = settings.tombstone_ms * 1000
                partition.tombstone_us = altered_us if known_us is None else min(known_us, altered_us)


class ReferenceBroker:
    def __init__(self) -> None:
        self.topics: dict[str, ReferenceTopic] = {}
        self.positions: dict[tuple[int, int], int] = {}
        """Committed positions of the group, by topic id and partition."""

    def delete(self, name: str) -> int:
        gone = self.topics.pop(name).topic
        self.positions = {place: at for place, at in self.positions.items() if place[0] != gone}
        return gone
