"""Finds the coordinator of a consumer group or of a sink's query; creates the internal topic on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rostra.broker.api import Conn
from rostra.broker.sessions import Session
from rostra.broker.topics.internal_topics import coordinating_partition
from rostra.broker.topics.topic_table import KnownTopic
from rostra.errors import NodeStopping, RostraError, TopicExists, Unavailable
from rostra.fabric.api import Confirm, ProposeTopic, PublishPath, TopicSpec
from rostra.model.ids import TopicId, random_id
from rostra.wire.groups import CoordinatorLocation, FindCoordinator
from rostra.wire.messages import TopicSettings

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class CoordinatorLocator:
    """One for each internal topic. Requests that arrive before the topic exists wait here together."""

    def __init__(self, broker: Broker, topic: str, partitions: int, segment_bytes: int) -> None:
        self._broker = broker
        self._topic = topic
        self._partitions = partitions
        self._segment_bytes = segment_bytes
        self._waiting: list[tuple[Conn, FindCoordinator]] = []
        self._token = 0
        """Of the pending fabric request: first whether the topic exists, then its creation."""

    def waiting(self) -> bool:
        return bool(self._waiting)

    def find(self, conn: Conn, session: Session, message: FindCoordinator) -> None:
        broker = self._broker
        known = broker.topic_table.by_name(self._topic)
        if known is not None:
            self._answer(conn, message, known)
            return
        error = NodeStopping() if broker.stopping else broker.broken or broker.over_limit(session)
        if error is not None:
            broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        self._waiting.append((conn, message))
        if not self._token:
            self._confirm()

    def _answer(self, conn: Conn, message: FindCoordinator, known: KnownTopic) -> None:
        served = coordinating_partition(known, message.name)
        here = served.owner or self._broker.fabric.guarantees.publishes is PublishPath.HERE
        place = CoordinatorLocation(
            message.request,
            served.partition.topic,
            served.partition.index,
            "" if served.owner else served.address,
            served.epoch,
            here or bool(served.address),
        )
        self._broker.reply(conn, place)

    def _confirm(self) -> None:
        """Another node may have created the topic."""
        self._token = self._broker.next_token()
        self._broker.step_fabric(Confirm(self._token, self._topic))

    def confirmed(self, token: int) -> bool:
        """True if the token is this request's."""
        if not token or token != self._token:
            return False
        if not self._waiting:
            self._token = 0
        elif self._broker.topic_table.by_name(self._topic) is not None:
            self.opened(token)
        else:
            self._make()
        return True

    def _make(self) -> None:
        broker = self._broker
        settings = TopicSettings(
            partitions=self._partitions,
            replicas=broker.settings.replicas,
            # Each segment begins with a checkpoint of the whole state.
            retention_bytes=1,
            segment_bytes=self._segment_bytes,
        )
        topic = TopicId(random_id(broker.source))
        self._token = broker.next_token()
        spec = TopicSpec(topic, self._topic, settings.partitions, msgspec.msgpack.encode(settings))
        broker.step_fabric(ProposeTopic(self._token, spec, settings.segment_bytes, settings.replicas))

    def opened(self, token: int | None) -> None:
        """The topic exists, and its owners are known or did not become known in time."""
        if not token or token != self._token:
            return
        known = self._broker.topic_table.by_name(self._topic)
        if known is None:
            self.refused(token, Unavailable(self._topic, 0, "it was deleted right after its creation"))
            return
        self._token = 0
        waiting, self._waiting = self._waiting, []
        for conn, message in waiting:
            if self._broker.request_done(conn):
                self._answer(conn, message, known)

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token is this request's."""
        if not token or token != self._token:
            return False
        if isinstance(error, TopicExists):
            error = Unavailable(self._topic, 0, "another node has just created it")
        self.storage_failed(error)
        self._token = 0
        return True

    def storage_failed(self, error: RostraError) -> None:
        """Fails all waiting requests: the fabric may never answer."""
        waiting, self._waiting = self._waiting, []
        for conn, message in waiting:
            if self._broker.request_done(conn):
                self._broker.refuse(conn, message.request, error)
