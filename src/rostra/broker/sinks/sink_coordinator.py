"""The coordinator of the queries of exactly-once sinks: decides each of their batches once, and sees it published.

A query's state lives in one partition of the internal topic `_sinks`, chosen by the hash of its name; the owner of that
partition is its coordinator. A commit goes through the phases of `sink_table.py`. In each, the coordinator sends a
request to the owner of every partition that the batch writes to, and repeats it until all have answered:

1. *pinning*: the owners pin the staged handles, so that these do not expire. If one is missing, the commit is refused.
2. The decision is one entry in the log of `_sinks`. Before it is committed nothing is published; from then on the batch
   is published, whoever fails.
3. *publishing*, or *dropping* after a refusal. Then the writer is answered.

Nothing is acted on before it is committed here, so that no later owner knows less. A new owner continues every commit
in the phase that it finds in the log. Only answers and waiting writers are in memory; a writer asks the new owner
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, assert_never

from rostra.broker.api import Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.broker.sinks.node_messages import DropHandles, HandlesAnswer, HandlesRequest, PinHandles, PublishHandles
from rostra.broker.sinks.port import SinkPort
from rostra.broker.sinks.sink_table import (
    UNDECIDED,
    CommitBegun,
    CommitDecided,
    CommitDone,
    CommitRefused,
    Phase,
    SinkEntry,
    SinkForgotten,
    SinkQuery,
    row_bytes,
)
from rostra.broker.topics.internal_topics import SINKS_TOPIC, coordinating_partition
from rostra.errors import (
    LimitExceeded,
    NodeStopping,
    RostraError,
    SinkBusy,
    SinkInUse,
    SinkOutOfOrder,
    StagingLost,
    Unavailable,
    UnknownTopic,
)
from rostra.fabric.api import Confirm
from rostra.model.ids import Partition, PartitionIndex, TopicId, random_id, text
from rostra.safeguards import Safeguard
from rostra.wire.messages import Agreed
from rostra.wire.sinks import AbortSink, CommitSink, SinkCommitted, StagedPart

ONCE_SHARE = 168
"""A query of a single batch is forgotten after this share of the time that others are kept."""

SendRequest = Callable[[HandlesRequest], None]


class WaitingWriter(NamedTuple):
    conn: Conn
    request: int
    batch: int
    repeated: bool


class Answers(NamedTuple):
    """The partitions whose owners have answered in this phase of this commit."""

    phase: Phase
    commit: int
    partitions: set[Partition]


class SinkCoordinator:
    """One per broker, for all partitions of `_sinks` that it owns."""

    def __init__(self, broker: SinkPort, send: SendRequest) -> None:
        self._broker = broker
        self._send = send
        self._compares = Safeguard.SINK_COMPARE_AND_SET not in broker.without
        self._first_stands = Safeguard.FIRST_DECISION not in broker.without
        self._taken_over_at: dict[Partition, int] = {}
        """Partitions of `_sinks` that this node owns, and where their log ended when it became the owner: what is below
        must be committed before anything is decided."""
        self._in_progress: dict[str, Partition] = {}
        """Queries with a commit in progress."""
        self._logged: dict[str, int] = {}
        """The offset of a query's last entry, until it is committed."""
        self._answers: dict[str, Answers] = {}
        self._writers: dict[str, list[WaitingWriter]] = {}
        self._confirm_token = 0
        self._deleted: set[TopicId] = set()
        """Topics that commits in progress write to and that do not exist any more, as the fabric has confirmed."""

    @property
    def is_committing(self) -> bool:
        return bool(self._in_progress)

    # --- requests of writers ---

    def partition_of(self, query: str) -> ServedPartition | RostraError:
        """The partition of `_sinks` that the query belongs to, if this node is its coordinator."""
        known = self._broker.topic_table.by_name(SINKS_TOPIC)
        if known is None:
            return Unavailable(SINKS_TOPIC, 0, "this node does not know it yet")
        served = coordinating_partition(known, query)
        error = self._broker.proposer.write_error(served)
        if error is None and not self._is_ready(served):
            return Unavailable(SINKS_TOPIC, served.partition.index, "its log is not committed up to its owner's start")
        return error or served

    def _is_ready(self, served: ServedPartition) -> bool:
        taken_over_at = self._taken_over_at.get(served.partition)
        return served.owner and taken_over_at is not None and served.commit >= taken_over_at

    def commit(self, conn: Conn, session: Session, message: CommitSink) -> None:
        broker = self._broker
        served = broker.over_limit(session) or self.partition_of(message.query)
        if isinstance(served, RostraError):
            broker.refuse(conn, message.request, served)
            return
        row = served.derived.sinks.get(message.query) or SinkQuery(message.query)
        known = self._known_outcome(row, message)
        if isinstance(known, SinkCommitted):
            broker.reply(conn, known)
            return
        error = known if isinstance(known, RostraError) else None
        repeated = row.phase != "idle"
        if error is None and not repeated:
            error = self._begin(served, row, message)
        if error is not None:
            broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        writer = WaitingWriter(conn, message.request, message.batch, repeated)
        self._writers.setdefault(message.query, []).append(writer)

    def _known_outcome(self, row: SinkQuery, message: CommitSink) -> SinkCommitted | RostraError | None:
        """What the log says about the batch: it is published, or cannot be decided now; None if neither."""
        query, batch = message.query, message.batch
        if row.phase != "idle" and row.batch == batch:
            # The first request decides. The same writer has lost its connection, or there are two.
            return SinkBusy(query, batch) if row.phase == "dropping" else None
        if row.decided != UNDECIDED:
            if message.writer != row.writer and batch != row.decided + 1:
                return SinkInUse(query, batch, row.decided)
            if batch <= row.decided and self._first_stands:
                return SinkCommitted(message.request, row.decided, True)
            if batch > row.decided + 1 and self._compares:
                return SinkOutOfOrder(query, batch, row.decided)
        return SinkBusy(query, row.batch) if row.phase != "idle" else None

    def _begin(self, served: ServedPartition, row: SinkQuery, message: CommitSink) -> RostraError | None:
        broker, table = self._broker, served.derived.sinks
        settings = broker.settings
        if row.decided == UNDECIDED and len(table) >= settings.sinks_max:
            return LimitExceeded("sinks_max", settings.sinks_max)
        begun = CommitBegun(
            message.query,
            message.writer,
            message.batch,
            random_id(broker.source),
            message.parts,
            message.once,
            broker.now.wall_us,
        )
        grown = row_bytes(SinkQuery(message.query, message.writer, parts=message.parts, by=message.writer))
        if table.bytes + grown > settings.sinks_bytes_max:
            return LimitExceeded("sinks_bytes_max", settings.sinks_bytes_max)
        return self._log(served, begun)

    def abort(self, conn: Conn, message: AbortSink) -> None:
        """Drops what was staged, unless the batch is decided or being committed: that is never undone."""
        broker = self._broker
        served = self.partition_of(message.query)
        if isinstance(served, RostraError):
            broker.refuse(conn, message.request, served)
            return
        row = served.derived.sinks.get(message.query)
        if row is None or (message.batch > row.decided and row.batch != message.batch):
            for partition, parts in by_partition(message.parts).items():
                self._send(DropHandles(served.partition, message.query, message.batch, 0, partition, parts))
        broker.reply(conn, Agreed(message.request))

    # --- phases ---

    def _log(self, served: ServedPartition, entry: SinkEntry) -> RostraError | None:
        last = self._broker.proposer.append_control(served, [entry])
        if isinstance(last, RostraError):
            return last
        self._logged[entry.query] = last
        self._in_progress[entry.query] = served.partition
        if last < served.commit:
            self._advance(entry.query)
        return None

    def committed(self, served: ServedPartition) -> None:
        if served.partition in self._taken_over_at and self._in_progress:
            for query, partition in list(self._in_progress.items()):
                if partition == served.partition and self._logged.get(query, -1) < served.commit:
                    self._advance(query)

    def advance_all(self) -> None:
        """Repeats the requests that are not answered."""
        for query in list(self._in_progress):
            self._advance(query)

    def _advance(self, query: str) -> None:
        served = self._broker.topic_table.served.get(self._in_progress[query])
        row = served.derived.sinks.get(query) if served is not None else None
        if served is None or not self._is_ready(served) or self._logged.get(query, -1) >= served.commit:
            return
        self._logged.pop(query, None)
        if row is None or row.phase == "idle":
            self._finish(query, row)
            return
        if row.phase == "dropping":
            self._fail_writers(query, self._staging_lost(row))
        missing = self._ask(served, row)
        row = served.derived.sinks.get(query)
        if row is None or query in self._logged:
            # An owner here has answered at once, and the commit is in its next phase.
            return
        if missing:
            self._log(served, CommitRefused(query))
        elif len(self._answers_to(row)) == len(by_partition(row.parts)):
            self._enter_next_phase(served, row)

    def _ask(self, served: ServedPartition, row: SinkQuery) -> bool:
        """Sends this phase's request to every owner that has not answered it. True if a topic is gone while pinning."""
        query, answered = row.query, self._answers_to(row)
        for partition, parts in by_partition(row.parts).items():
            if partition in answered or query in self._logged:
                continue
            if self._is_gone(partition):
                if row.phase == "pinning":
                    return True
                answered.add(partition)
                continue
            request = _REQUESTS[row.phase]
            self._send(request(served.partition, query, row.batch, row.commit, partition, parts))
        return False

    def _answers_to(self, row: SinkQuery) -> set[Partition]:
        found = self._answers.get(row.query)
        if found is None or (found.phase, found.commit) != (row.phase, row.commit):
            found = self._answers[row.query] = Answers(row.phase, row.commit, set())
        return found.partitions

    def _is_gone(self, partition: Partition) -> bool:
        """Whether the topic was deleted: then there is nothing to pin, and nothing left to publish or drop."""
        found = self._broker.topic_table.find(partition.topic, partition.index)
        if not isinstance(found, UnknownTopic):
            return isinstance(found, RostraError)
        if partition.topic not in self._deleted and not self._confirm_token:
            # This node may be behind: it learns of all topics first.
            self._confirm_token = self._broker.next_token()
            self._broker.step_fabric(Confirm(self._confirm_token, ""))
        return partition.topic in self._deleted

    def confirmed(self, token: int) -> bool:
        """True if the token is of this request: all topics that exist are known now."""
        if not token or token != self._confirm_token:
            return False
        self._confirm_token = 0
        table = self._broker.topic_table
        for query, partition in list(self._in_progress.items()):
            served = table.served.get(partition)
            row = served.derived.sinks.get(query) if served is not None else None
            for part in row.parts if row is not None else ():
                if isinstance(table.find(part.topic, part.partition), UnknownTopic):
                    self._deleted.add(TopicId(part.topic))
        self.advance_all()
        return True

    def refused(self, token: int) -> bool:
        """True if the token is of this request: the next repetition asks again."""
        if not token or token != self._confirm_token:
            return False
        self._confirm_token = 0
        return True

    def answer(self, message: HandlesAnswer) -> None:
        """The owner of a partition has done what it was asked for."""
        query = message.query
        served = self._broker.topic_table.served.get(message.coordinator)
        row = served.derived.sinks.get(query) if served is not None else None
        if (
            served is None
            or row is None
            or row.commit != message.commit
            or query not in self._in_progress
            or query in self._logged
            or not self._is_ready(served)
            or _PHASES[message.outcome] != row.phase
        ):
            return
        if message.outcome == "missing":
            self._log(served, CommitRefused(query))
            return
        answered = self._answers_to(row)
        answered.add(message.partition)
        if len(answered) == len(by_partition(row.parts)):
            self._enter_next_phase(served, row)

    def _enter_next_phase(self, served: ServedPartition, row: SinkQuery) -> None:
        match row.phase:
            case "pinning":
                self._log(served, CommitDecided(row.query))
            case "publishing":
                if self._log(served, CommitDone(row.query, self._broker.now.wall_us)) is None:
                    self._answer_writers(row)
            case "dropping":
                self._log(served, CommitDone(row.query, self._broker.now.wall_us))
            case "idle":
                pass
            case _:
                assert_never(row.phase)

    def _finish(self, query: str, row: SinkQuery | None) -> None:
        self._in_progress.pop(query, None)
        self._answers.pop(query, None)
        if not self._in_progress:
            self._deleted.clear()
        if row is None:
            self._fail_writers(query, StagingLost(query, 0, SINKS_TOPIC, 0))
        else:
            self._answer_writers(row)

    # --- waiting writers ---

    def _answer_writers(self, row: SinkQuery) -> None:
        for writer in self._writers.pop(row.query, ()):
            if not self._broker.request_done(writer.conn):
                continue
            if writer.batch <= row.decided:
                self._broker.reply(writer.conn, SinkCommitted(writer.request, row.decided, writer.repeated))
            else:
                self._broker.refuse(writer.conn, writer.request, SinkBusy(row.query, writer.batch))

    def _fail_writers(self, query: str, error: RostraError) -> None:
        for writer in self._writers.pop(query, ()):
            if self._broker.request_done(writer.conn):
                self._broker.refuse(writer.conn, writer.request, error)

    def _staging_lost(self, row: SinkQuery) -> StagingLost:
        """Names the first part that was not pinned, as far as this node knows."""
        part = row.parts[0] if row.parts else StagedPart(0, 0, 0, 0, 0)
        known = self._broker.topic_table.by_id(TopicId(part.topic))
        name = known.topic.name if known is not None else text(part.topic)
        return StagingLost(row.query, row.batch, name, part.partition)

    def stop(self) -> None:
        """The node stops: writers ask the next coordinator."""
        for query in list(self._writers):
            self._fail_writers(query, NodeStopping())

    # --- owners and time ---

    def serving(self, served: ServedPartition) -> None:
        """The fabric announced the owner of a partition of `_sinks`."""
        partition = served.partition
        if not served.owner:
            if self._taken_over_at.pop(partition, None) is not None:
                self._forget_progress(partition, self._broker.placement.not_owner(served))
        elif partition not in self._taken_over_at:
            self._taken_over_at[partition] = served.end
            self._adopt(served)

    def state_rewound(self, served: ServedPartition) -> None:
        """The log was truncated or inspected again: writers ask again, commits continue from the log."""
        if served.partition in self._taken_over_at:
            error = Unavailable(served.topic, served.partition.index, "its log was truncated")
            self._forget_progress(served.partition, error)
            self._taken_over_at[served.partition] = served.end
            self._adopt(served)

    def _adopt(self, served: ServedPartition) -> None:
        for row in served.derived.sinks.rows():
            if row.phase != "idle":
                self._in_progress[row.query] = served.partition

    def _forget_progress(self, partition: Partition, error: RostraError) -> None:
        for query in [query for query, of in self._in_progress.items() if of == partition]:
            del self._in_progress[query]
            self._answers.pop(query, None)
            self._logged.pop(query, None)
            self._fail_writers(query, error)

    def forget_idle(self) -> None:
        """Forgets queries that have not committed for long."""
        wall_us, kept_us = self._broker.now.wall_us, self._broker.settings.sink_retention_ms * 1000
        for partition in list(self._taken_over_at):
            served = self._broker.topic_table.served.get(partition)
            for row in served.derived.sinks.rows() if served is not None and self._is_ready(served) else ():
                until_us = row.at_us + (kept_us // ONCE_SHARE if row.once else kept_us)
                if row.phase == "idle" and until_us < wall_us and served is not None:
                    self._broker.proposer.append_control(served, [SinkForgotten(row.query)])


_REQUESTS: dict[str, type[PinHandles]] = {
    "pinning": PinHandles,
    "publishing": PublishHandles,
    "dropping": DropHandles,
}
_PHASES = {"pinned": "pinning", "missing": "pinning", "published": "publishing", "dropped": "dropping"}


def by_partition(parts: tuple[StagedPart, ...]) -> dict[Partition, tuple[StagedPart, ...]]:
    found: dict[Partition, tuple[StagedPart, ...]] = {}
    for part in parts:
        partition = Partition(TopicId(part.topic), PartitionIndex(part.partition))
        found[partition] = (*found.get(partition, ()), part)
    return found
