"""The owner's part of exactly-once sinks: staged batches of its partitions are stored, pinned, published or dropped.

`stage` answers a sink's task; the other requests come from coordinators (`node_messages.py`) and are answered when what
they did is committed. All of them may be repeated. Handles that no commit has pinned expire with their lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from rostra.broker.api import Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.broker.sinks.node_messages import (
    DropHandles,
    HandlesAnswer,
    HandlesRequest,
    Outcome,
    PinHandles,
    PublishHandles,
)
from rostra.broker.sinks.port import SinkPort
from rostra.broker.sinks.publication import Publication, Publications
from rostra.broker.sinks.staged_table import BatchStaged, HandlesDropped, HandlesPinned, StagedHandle
from rostra.broker.topics.internal_topics import RESERVED_NAME
from rostra.errors import (
    BatchRejected,
    InvalidSetting,
    InvalidTopicName,
    LimitExceeded,
    RostraError,
    Unavailable,
    UnknownTopic,
)
from rostra.fabric.api import LogLine
from rostra.model.check import check_produced
from rostra.model.ids import Partition
from rostra.safeguards import Safeguard
from rostra.wire.messages import Agreed
from rostra.wire.sinks import StageBatch, StagedPart

LATE_US = 1_000_000
"""A timer that fires this late means that this node was stalled: leases are extended by the delay."""


class Staging:
    """One per broker, for all partitions that it owns."""

    def __init__(self, broker: SinkPort, answer: Callable[[HandlesAnswer], None]) -> None:
        self._broker = broker
        self._answer = answer
        self._limits = broker.settings.batch_limits()
        self._pins = Safeguard.PINNED_STAGING not in broker.without
        self._holding: dict[Partition, dict[int, int]] = {}
        """Partitions owned here in which something is staged: when each handle was last staged to, or came here."""
        self._parked: dict[Partition, list[tuple[int, HandlesAnswer]]] = {}
        """Answers by the offset that must be committed before they are sent, rising."""
        self.publications = Publications(broker, self._published)

    @property
    def is_holding(self) -> bool:
        return bool(self._holding)

    def staged_bytes(self, query: str | None = None) -> int:
        """Bytes staged in partitions owned here, by one query or by all."""
        return sum(
            row.bytes
            for partition in self._holding
            for row in self._rows(partition)
            if query is None or row.query == query
        )

    def _rows(self, partition: Partition) -> list[StagedHandle]:
        served = self._broker.topic_table.served.get(partition)
        return [] if served is None else served.derived.staged.rows()

    # --- staging ---

    def stage(self, conn: Conn, session: Session, message: StageBatch, batch: bytearray) -> None:
        broker = self._broker
        served = broker.over_limit(session) or self._target(message)
        if isinstance(served, RostraError):
            broker.refuse(conn, message.request, served)
            return
        row = served.derived.staged.get(message.handle)
        if row is not None:
            self._reply(conn, session, served, row.offset, message)
            return
        if message.batch <= served.derived.staged.last_published(message.query):
            # A driver that did not hear of the decision writes its batch again. Nothing will publish it.
            self._reply(conn, session, served, served.end - 1, message)
            return
        error = self._stage_error(served, message, batch)
        last = error or self._append(served, message, batch)
        if isinstance(last, RostraError):
            broker.refuse(conn, message.request, last)
        else:
            self._reply(conn, session, served, last, message)

    def _reply(self, conn: Conn, session: Session, served: ServedPartition, last: int, message: StageBatch) -> None:
        reply = Agreed(message.request)
        self._broker.proposer.reply_when_committed(conn, session, served, last, reply, message.request)

    def _target(self, message: StageBatch) -> ServedPartition | RostraError:
        served = self._broker.topic_table.find(message.topic, message.partition)
        if isinstance(served, UnknownTopic):
            # The client has found the topic somewhere; this node may be behind.
            return Unavailable(served.topic, message.partition, "this node does not know the topic yet")
        if isinstance(served, RostraError):
            return served
        if served.internal:
            return InvalidTopicName(served.topic, RESERVED_NAME)
        if served.exclusive:
            return InvalidSetting("ownership", f"{served.topic} is exclusive; a sink writes to shared topics only")
        return self._broker.proposer.write_error(served) or served

    def _stage_error(self, served: ServedPartition, message: StageBatch, batch: bytearray) -> RostraError | None:
        settings, size = self._broker.settings, len(batch)
        if self.staged_bytes(message.query) + size > settings.sink_query_bytes_max:
            return LimitExceeded("sink_query_bytes_max", settings.sink_query_bytes_max)
        if self.staged_bytes() + size > settings.sink_bytes_max:
            return LimitExceeded("sink_bytes_max", settings.sink_bytes_max)
        return None

    def _append(self, served: ServedPartition, message: StageBatch, batch: bytearray) -> int | RostraError:
        broker = self._broker
        try:
            _, _, _, records = check_produced(batch, limits=self._limits, now_us=broker.now.wall_us)
        except BatchRejected as rejected:
            return rejected
        entry = BatchStaged(
            message.query,
            message.batch,
            message.task,
            message.attempt,
            message.handle,
            records,
            memoryview(batch),
        )
        last = broker.proposer.append_control(served, [entry])
        if not isinstance(last, RostraError):
            self._holding.setdefault(served.partition, {})[message.handle] = broker.now.mono_us
        return last

    # --- requests of coordinators ---

    def receive(self, message: HandlesRequest) -> None:
        """A request that cannot be carried out now is ignored: the coordinator repeats it, or asks another node."""
        served = self._broker.topic_table.served.get(message.partition)
        if served is None or self._broker.proposer.write_error(served) is not None:
            return
        match message:
            case PublishHandles():
                self._publish(served, message)
            case DropHandles():
                self._drop(served, message)
            case PinHandles():
                self._pin(served, message)
            case _:
                assert_never(message)

    def _pin(self, served: ServedPartition, message: PinHandles) -> None:
        staged = served.derived.staged
        if message.batch <= staged.last_published(message.query):
            return
        rows = [staged.get(part.handle) for part in message.parts]
        if not all(_is_as_staged(row, part, message.commit) for row, part in zip(rows, message.parts, strict=True)):
            self._answer_when_committed(served, served.end - 1, message, "missing")
            return
        last: int | RostraError = served.end - 1
        if self._pins and any(row is not None and not row.commit for row in rows):
            pinned = HandlesPinned(message.commit, tuple(part.handle for part in message.parts))
            last = self._broker.proposer.append_control(served, [pinned])
        if not isinstance(last, RostraError):
            self._answer_when_committed(served, last, message, "pinned")

    def _drop(self, served: ServedPartition, message: DropHandles) -> None:
        staged = served.derived.staged
        rows = [row for part in message.parts if (row := staged.get(part.handle)) is not None]
        dropped = tuple(row.handle for row in rows if row.commit in (0, message.commit))
        last = self._drop_handles(served, dropped) if dropped else served.end - 1
        if message.commit and not isinstance(last, RostraError):
            self._answer_when_committed(served, last, message, "dropped")

    def _publish(self, served: ServedPartition, message: PublishHandles) -> None:
        staged = served.derived.staged
        handles = [part.handle for part in message.parts if self._is_due(staged.get(part.handle), message)]
        if handles:
            self.publications.begin(Publication(served, message, handles))
        else:
            # Pinned handles disappear only when they are published.
            self._answer_when_committed(served, served.end - 1, message, "published")

    def _is_due(self, row: StagedHandle | None, message: PublishHandles) -> bool:
        return row is not None and (row.commit == message.commit or not self._pins)

    def _published(self, served: ServedPartition, message: PublishHandles, last: int) -> None:
        self._answer_when_committed(served, last, message, "published")

    def _drop_handles(self, served: ServedPartition, handles: tuple[int, ...]) -> int | RostraError:
        return self._broker.proposer.append_control(served, [HandlesDropped(handles)])

    # --- answers ---

    def _answer_when_committed(
        self, served: ServedPartition, last: int, message: HandlesRequest, outcome: Outcome
    ) -> None:
        answer = HandlesAnswer(message.coordinator, message.query, message.commit, message.partition, outcome)
        if last < served.commit:
            self._answer(answer)
        else:
            self._parked.setdefault(served.partition, []).append((last, answer))

    def committed(self, served: ServedPartition) -> None:
        parked = self._parked.pop(served.partition, None)
        if parked is not None:
            later = [row for row in parked if row[0] >= served.commit]
            if later:
                self._parked[served.partition] = later
            for last, answer in parked:
                if last < served.commit:
                    self._answer(answer)
        self.publications.committed(served)

    # --- owners and time ---

    def serving(self, served: ServedPartition) -> None:
        """The fabric announced the owner of the partition, or its log was truncated."""
        self._parked.pop(served.partition, None)
        self.publications.lost(served.partition)
        if served.owner and served.derived.staged:
            self._holding.setdefault(served.partition, {})
        else:
            self._holding.pop(served.partition, None)

    def expire(self, late_us: int) -> None:
        """Drops handles that nobody has staged to or committed in time."""
        broker = self._broker
        now_us = broker.now.mono_us
        lease_us = broker.settings.sink_lease_ms * 1000 + (late_us if late_us > LATE_US else 0)
        for partition in list(self._holding):
            served = broker.topic_table.served.get(partition)
            if served is None or not served.owner or not served.derived.staged:
                del self._holding[partition]
                continue
            rows, used_us = served.derived.staged.rows(), self._holding[partition]
            used_us = self._holding[partition] = {row.handle: used_us.get(row.handle, now_us) for row in rows}
            expired = tuple(row.handle for row in rows if not row.commit and now_us - used_us[row.handle] >= lease_us)
            if expired and not isinstance(self._drop_handles(served, expired), RostraError):
                about: dict[str, int | str] = {"partition": str(partition), "handles": len(expired)}
                broker.out.append(LogLine("info", "staged batches of a sink expired", about))


def _is_as_staged(row: StagedHandle | None, part: StagedPart, commit: int) -> bool:
    """Whether the handle holds what its task has written, and no other commit has pinned it."""
    return (
        row is not None and (row.records, row.checksum) == (part.records, part.checksum) and row.commit in (0, commit)
    )
