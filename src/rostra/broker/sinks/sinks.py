"""Exactly-once sinks at one node: connects the coordinator of queries, the staging of partitions, and other brokers.

docs/decisions/0009-exactly-once-sink.md explains the protocol. A fabric offers it if its guarantees say
so (`exactly_once_sink`).
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from rostra.broker.api import Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.broker.sinks.node_messages import (
    HandlesAnswer,
    HandlesRequest,
    SinkMessage,
    decode_message,
    encode_message,
)
from rostra.broker.sinks.port import SinkPort
from rostra.broker.sinks.sink_coordinator import SinkCoordinator
from rostra.broker.sinks.staging import Staging
from rostra.broker.topics.internal_topics import SINKS_TOPIC
from rostra.errors import RostraError, UnsupportedByFabric
from rostra.fabric.api import LogLine, SendToBroker, SetTimer
from rostra.wire.sinks import AbortSink, CommitSink, StageBatch

SINKS_TIMER = "broker/sinks"
REPEAT_US = 250_000
"""How often requests to other owners are repeated, and leases checked, while there is something to do."""

FEATURE = "exactly-once sinks"


class Sinks:
    def __init__(self, broker: SinkPort) -> None:
        self._broker = broker
        self.staging = Staging(broker, self._answer)
        self._coordinator = SinkCoordinator(broker, self._request)
        self._timer_us: int | None = None

    @property
    def is_committing(self) -> bool:
        return self._coordinator.is_committing

    # --- clients ---

    def answer(
        self,
        conn: Conn,
        session: Session,
        message: StageBatch | CommitSink | AbortSink,
        payload: bytearray | None,
    ) -> None:
        error = self.offer_error()
        if error is not None:
            self._broker.refuse(conn, message.request, error)
            return
        match message:
            case StageBatch():
                assert payload is not None, "the dialect lets no StageBatch through without one"
                self.staging.stage(conn, session, message, payload)
            case CommitSink():
                self._coordinator.commit(conn, session, message)
            case AbortSink():
                self._coordinator.abort(conn, message)
            case _:
                assert_never(message)
        self._set_timer()

    def offer_error(self) -> RostraError | None:
        """Why the fabric offers no exactly-once sinks, if so."""
        guarantees = self._broker.fabric.guarantees
        return None if guarantees.exactly_once_sink else UnsupportedByFabric(guarantees.fabric, FEATURE)

    # --- other brokers ---

    def _request(self, message: HandlesRequest) -> None:
        served = self._broker.topic_table.served.get(message.partition)
        if served is not None and served.owner:
            self.staging.receive(message)
        elif served is not None:
            self._send(served, message)

    def _answer(self, message: HandlesAnswer) -> None:
        served = self._broker.topic_table.served.get(message.coordinator)
        if served is not None and served.owner:
            self._coordinator.answer(message)
        elif served is not None:
            self._send(served, message)

    def _send(self, served: ServedPartition, message: SinkMessage) -> None:
        if served.address:
            self._broker.step_fabric(SendToBroker(served.address, encode_message(message)))

    def received(self, body: bytes) -> None:
        """A message of another broker."""
        try:
            message = decode_message(body)
        except msgspec.DecodeError as error:
            # A newer version's: that broker repeats it in vain until this node is upgraded.
            about: dict[str, int | str] = {"error": str(error)}
            self._broker.out.append(LogLine("warning", "message of another broker not understood", about))
            return
        if isinstance(message, HandlesAnswer):
            self._coordinator.answer(message)
        else:
            self.staging.receive(message)
        self._set_timer()

    # --- events ---

    def confirmed(self, token: int) -> bool:
        """True if the token is of a commit."""
        return self._coordinator.confirmed(token)

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token is of a commit."""
        return self._coordinator.refused(token)

    def stop(self) -> None:
        self._coordinator.stop()

    def serving(self, served: ServedPartition) -> None:
        """The fabric announced the owner of a partition."""
        self.staging.serving(served)
        if served.topic == SINKS_TOPIC:
            self._coordinator.serving(served)
        self._set_timer()

    def state_rewound(self, served: ServedPartition) -> None:
        """The log was truncated or inspected again."""
        self.staging.serving(served)
        if served.topic == SINKS_TOPIC:
            self._coordinator.state_rewound(served)

    def committed(self, served: ServedPartition) -> None:
        self.staging.committed(served)
        if served.topic == SINKS_TOPIC:
            self._coordinator.committed(served)
            self._set_timer()

    def retention_check(self) -> None:
        self._coordinator.forget_idle()

    def timer(self) -> None:
        now_us = self._broker.now.mono_us
        late_us = now_us - (self._timer_us or now_us)
        self._timer_us = None
        self._coordinator.advance_all()
        self.staging.expire(late_us)
        self._set_timer()

    def _set_timer(self) -> None:
        """A node without sinks has no timer."""
        if self._timer_us is None and (self._coordinator.is_committing or self.staging.is_holding):
            self._timer_us = self._broker.now.mono_us + REPEAT_US
            self._broker.out.append(SetTimer(SINKS_TIMER, self._timer_us))
