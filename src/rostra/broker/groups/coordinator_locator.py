"""Where the coordinator of a named subscription is; and making the topic that names are kept in, when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import xxhash

from rostra.broker.api import Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.broker.topics.topic_table import KnownTopic
from rostra.errors import NodeStopping, RostraError, TopicExists, Unavailable
from rostra.fabric.api import Confirm, ProposeTopic, TopicSpec
from rostra.model.ids import TopicId, random_id
from rostra.wire.groups import FindGroup, GroupPlace
from rostra.wire.messages import TopicSettings

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

GROUPS_TOPIC = "_groups"


def place_of(known: KnownTopic, name: str) -> ServedPartition:
    """The partition that a name belongs to, by the hash that records are spread by."""
    return known.partitions[xxhash.xxh3_64_intdigest(name.encode()) % len(known.partitions)]


class CoordinatorLocator:
    """Those who ask while there is no such topic wait here together until there is."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: list[tuple[Conn, FindGroup]] = []
        self._token = 0
        """Of the question that the fabric is to answer: is there one? Then: make one."""

    def waiting(self) -> bool:
        return bool(self._waiting)

    def find(self, conn: Conn, session: Session, message: FindGroup) -> None:
        broker = self._broker
        known = broker.catalogue.named(GROUPS_TOPIC)
        if known is not None:
            self._answer(conn, message, known)
            return
        error = NodeStopping() if broker.stopping else broker.broken or broker.too_many(session)
        if error is not None:
            broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        self._waiting.append((conn, message))
        if not self._token:
            self._confirm()

    def _answer(self, conn: Conn, message: FindGroup, known: KnownTopic) -> None:
        served = place_of(known, message.name)
        here = served.owner or self._broker.fabric.guarantees.passes_on
        place = GroupPlace(
            message.request,
            served.partition.topic,
            served.partition.index,
            "" if served.owner else served.address,
            served.epoch,
            here or bool(served.address),
        )
        self._broker.reply(conn, place)

    def _confirm(self) -> None:
        """Another node may have made it."""
        self._token = self._broker.next_token()
        self._broker.ask_fabric(Confirm(self._token, GROUPS_TOPIC))

    def confirmed(self, token: int) -> bool:
        """True if the token was the one of this question."""
        if not token or token != self._token:
            return False
        if not self._waiting:
            self._token = 0
        elif self._broker.catalogue.named(GROUPS_TOPIC) is not None:
            self.opened(token)
        else:
            self._make()
        return True

    def _make(self) -> None:
        broker = self._broker
        settings = TopicSettings(
            # Where each node keeps names of its own, there is nobody to share them with.
            partitions=broker.settings.group_partitions if broker.fabric.guarantees.groups_span_nodes else 1,
            replicas=broker.settings.replicas,
            # Each segment begins with all that the ones before it came to.
            retention_bytes=1,
            segment_bytes=broker.settings.group_segment_bytes,
        )
        topic = TopicId(random_id(broker.source))
        self._token = broker.next_token()
        spec = TopicSpec(topic, GROUPS_TOPIC, settings.partitions, msgspec.msgpack.encode(settings))
        broker.ask_fabric(ProposeTopic(self._token, spec, settings.segment_bytes, settings.replicas))

    def opened(self, token: int | None) -> None:
        """The topic is there, and has owners or none is known in time."""
        if not token or token != self._token:
            return
        known = self._broker.catalogue.named(GROUPS_TOPIC)
        if known is None:
            self.refused(token, Unavailable(GROUPS_TOPIC, 0, "it was deleted as soon as it was made"))
            return
        self._token = 0
        waiting, self._waiting = self._waiting, []
        for conn, message in waiting:
            if self._broker.answered(conn):
                self._answer(conn, message, known)

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token was the one of this question."""
        if not token or token != self._token:
            return False
        if isinstance(error, TopicExists):
            error = Unavailable(GROUPS_TOPIC, 0, "another node has only just made it")
        self.broke(error)
        self._token = 0
        return True

    def broke(self, error: RostraError) -> None:
        """Nobody may ever answer what was asked: those who wait are told so, and a late answer finds nobody."""
        waiting, self._waiting = self._waiting, []
        for conn, message in waiting:
            if self._broker.answered(conn):
                self._broker.refuse(conn, message.request, error)
