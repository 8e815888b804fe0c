"""What sinks need of their broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rostra.broker.api import BrokerEffect, Conn
from rostra.broker.partition.control_batch import DerivedEntry
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.broker.settings import BrokerSettings
from rostra.broker.topics.topic_table import TopicTable
from rostra.errors import LimitExceeded, RostraError
from rostra.fabric.api import Fabric, FabricInput, Now
from rostra.model.ids import RandomSource
from rostra.safeguards import Without
from rostra.wire.messages import NodeMessage


class Proposer(Protocol):
    """Appends batches to the partitions that this node owns: see `broker/publish/batch_proposer.py`."""

    def write_error(self, served: ServedPartition) -> RostraError | None: ...
    def propose(self, served: ServedPartition, batch: bytearray, flags: int) -> tuple[int, int] | RostraError: ...
    def roll(self, served: ServedPartition) -> None: ...
    def append_control(self, served: ServedPartition, entries: Sequence[DerivedEntry]) -> int | RostraError: ...
    def reply_when_committed(
        self, conn: Conn, session: Session, served: ServedPartition, last: int, message: NodeMessage, request: int = 0
    ) -> None: ...


class Placement(Protocol):
    def not_owner(self, served: ServedPartition) -> RostraError: ...


class SinkPort(Protocol):
    settings: BrokerSettings
    source: RandomSource
    without: Without
    topic_table: TopicTable
    now: Now
    out: list[BrokerEffect]

    @property
    def fabric(self) -> Fabric: ...
    @property
    def proposer(self) -> Proposer: ...
    @property
    def placement(self) -> Placement: ...

    def next_token(self) -> int: ...
    def over_limit(self, session: Session) -> LimitExceeded | None: ...
    def request_done(self, conn: Conn) -> bool: ...
    def reply(self, conn: Conn, message: NodeMessage) -> None: ...
    def refuse(self, conn: Conn, request: int, error: RostraError) -> None: ...
    def step_fabric(self, given: FabricInput) -> None: ...
