"""Sinks on one broker without a fabric: a log in memory, and commits when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rostra.broker.api import BrokerEffect, Conn
from rostra.broker.partition.control_batch import DerivedEntry, control_batch
from rostra.broker.partition.log_derived_state import LogDerivedState
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.partition.tail_cache import TailCache
from rostra.broker.publish.producer_table import ProducerTable
from rostra.broker.sessions import Session
from rostra.broker.settings import BrokerSettings
from rostra.broker.sinks.sinks import REPEAT_US, Sinks
from rostra.broker.topics.topic_table import KnownTopic, TopicTable
from rostra.errors import LimitExceeded, RostraError, Unavailable
from rostra.fabric.api import Fabric, FabricInput, Now, Read
from rostra.fabric.raft.machine import Raft
from rostra.model.batch import BROKER_STATE, base_offset, read_header, stamp
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.safeguards import ALL_ON, Without
from rostra.wire.messages import Failed, NodeMessage, Topic, TopicSettings
from rostra.wire.sinks import CommitSink, StageBatch, StagedPart

CONN = 1
TOPIC = TopicId(7)
SINKS = TopicId(8)


class SinkHarness:
    """One broker that owns the partition t/0 and the partition of `_sinks`."""

    def __init__(self, settings: BrokerSettings | None = None, without: Without = ALL_ON) -> None:
        self.settings = settings or BrokerSettings()
        self.without = without
        self.source = Random(1)
        self.topic_table = TopicTable()
        self.now = Now(1_000_000, 1_000_000)
        self.out: list[BrokerEffect] = []
        self.fabric: Fabric = Raft(NodeId(1), "node:1", random=Random(1))
        self.proposer = self
        self.placement = self
        self.logs: dict[Partition, list[bytearray]] = {}
        self.replies: list[NodeMessage] = []
        self.parked: list[tuple[ServedPartition, int, NodeMessage]] = []
        self.session = Session(0)
        self.refuses_writes = False
        self._token = 0
        self.target = self._serve(TOPIC, "t")
        self.coordinating = self._serve(SINKS, "_sinks")
        self.restart()

    def _serve(self, topic: TopicId, name: str) -> ServedPartition:
        described = Topic(topic, name, TopicSettings())
        known = KnownTopic(described)
        derived = LogDerivedState(ProducerTable(10, self.without), self.without)
        served = ServedPartition(Partition(topic, PartitionIndex(0)), described, derived, TailCache(1 << 20))
        served.owner = served.has_log = True
        known.partitions.append(served)
        self.topic_table.add(known)
        self.logs[served.partition] = []
        return served

    def restart(self) -> None:
        """Another owner with the same logs: only what was in memory is gone."""
        self.sinks = Sinks(self)
        self.out.clear()
        for served in (self.target, self.coordinating):
            self.sinks.serving(served)

    # --- what a test does ---

    def stage(self, handle: int, *values: bytes, query: str = "q", batch: int = 0) -> StagedPart:
        encoded = encode(values, timestamp_us=1)
        message = StageBatch(handle, TOPIC, 0, query, batch, 0, 0, handle)
        self.sinks.answer(CONN, self.session, message, encoded)
        header = read_header(encoded)
        return StagedPart(TOPIC, 0, handle, header.count, header.body_crc)

    def commit(self, batch: int, *parts: StagedPart, query: str = "q") -> None:
        self.sinks.answer(CONN, self.session, CommitSink(99, query, batch, parts), None)

    def commit_log(self, served: ServedPartition) -> None:
        """Everything in the log of the partition is committed."""
        served.committed(served.end)
        due = [row for row in self.parked if row[0] is served and row[1] < served.commit]
        self.parked = [row for row in self.parked if row not in due]
        self.replies += [message for _, _, message in due]
        self.sinks.committed(served)

    def settle(self) -> None:
        """Commits and reads until nothing happens any more."""
        for _ in range(20):
            self.commit_log(self.target)
            self.commit_log(self.coordinating)
            self.read_all()

    def read_all(self) -> None:
        reads = [effect for effect in self.out if isinstance(effect, Read)]
        self.out = [effect for effect in self.out if not isinstance(effect, Read)]
        for read in reads:
            found = [batch for batch in self.logs[read.partition] if base_offset(batch) >= read.offset]
            self.sinks.staging.publications.read_done(read.token, b"".join(found[:1]))

    def pass_time(self, elapsed_ms: int) -> None:
        """In steps of the timer: one that fires late means that the node was stalled."""
        for _ in range(max(1, 1000 * elapsed_ms // REPEAT_US)):
            self.now = Now(self.now.mono_us + REPEAT_US, self.now.wall_us + REPEAT_US)
            self.sinks.timer()

    def visible(self) -> list[bytes | None]:
        batches = [Batch(batch) for batch in self.logs[self.target.partition]]
        return [value for batch in batches if not batch.is_control for value in batch.values()]

    @property
    def refusals(self) -> list[str]:
        return [reply.code for reply in self.replies if isinstance(reply, Failed)]

    # --- the port ---

    def write_error(self, served: ServedPartition) -> RostraError | None:
        return Unavailable(served.topic, 0, "the test says so") if self.refuses_writes else None

    def propose(self, served: ServedPartition, batch: bytearray, flags: int) -> tuple[int, int] | RostraError:
        base = served.end
        last = stamp(batch, partition=served.partition, base_offset=base, owner_epoch=1, owner_flags=flags)
        self.logs[served.partition].append(batch)
        served.appended(batch)
        return base, last

    def roll(self, served: ServedPartition) -> None:
        raise AssertionError("no segment is full here")

    def append_control(self, served: ServedPartition, entries: Sequence[DerivedEntry]) -> int | RostraError:
        error = self.write_error(served)
        if error is not None:
            return error
        placed = self.propose(served, control_batch(entries, self.now.wall_us), BROKER_STATE)
        assert not isinstance(placed, RostraError)
        return placed[1]

    def reply_when_committed(
        self, conn: Conn, session: Session, served: ServedPartition, last: int, message: NodeMessage, request: int = 0
    ) -> None:
        self.parked.append((served, last, message))

    def not_owner(self, served: ServedPartition) -> RostraError:
        return Unavailable(served.topic, 0, "moved")

    def next_token(self) -> int:
        self._token += 2
        return self._token

    def over_limit(self, session: Session) -> LimitExceeded | None:
        return None

    def request_done(self, conn: Conn) -> bool:
        return True

    def reply(self, conn: Conn, message: NodeMessage) -> None:
        self.replies.append(message)

    def refuse(self, conn: Conn, request: int, error: RostraError) -> None:
        self.replies.append(Failed(request, type(error).__name__, error.carried()))

    def step_fabric(self, given: FabricInput) -> None:
        raise AssertionError(f"one node needs no fabric: {given}")
