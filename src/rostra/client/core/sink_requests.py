"""Requests of exactly-once sinks: stage a batch at the owner of its partition; commit or abort at the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

import msgspec

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, SinkDecision
from rostra.client.core.routing.coordinator_request import CoordinatorLookup, CoordinatorRequest, Reply
from rostra.client.core.routing.metadata_cache import MetadataCache
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.errors import InvalidSetting, InvalidTopicName, LimitExceeded, PeerViolation, RostraError, UnknownPartition
from rostra.model.batch import Buffer, read_header
from rostra.model.ids import check_topic_name, random_id
from rostra.wire.features import SINKS
from rostra.wire.frames import Violation
from rostra.wire.messages import Agreed, Topic
from rostra.wire.sinks import STAGED_PARTS_MAX, AbortSink, CommitSink, SinkCommitted, StageBatch, StagedPart


class SinkTask(msgspec.Struct, frozen=True):
    """Who stages: an attempt of a task, in a batch of a query."""

    query: str
    batch: int
    task: int = 0
    attempt: int = 0


class SinkRequests:
    def __init__(
        self,
        coordinators: CoordinatorLookup,
        metadata: MetadataCache,
        random: Random,
        timeout_us: int,
        out: list[ClientEffect],
    ) -> None:
        self._coordinators = coordinators
        self._metadata = metadata
        self._random = random
        self._timeout_us = timeout_us
        self._out = out

    def stage(self, now_us: int, call: CallNumber, topic: str, partition: int, batch: Buffer, task: SinkTask) -> None:
        """Done with a `StagedPart` when the batch is stored with acks `all`. It is not visible before the commit."""
        _check_query(task.query)
        header = read_header(batch)
        handle = random_id(self._random)

        def found(now_us: int, topic_found: Topic, routes: list[PartitionRoute]) -> None:
            if not 0 <= partition < len(routes):
                self._out.append(Fail(call, UnknownPartition(topic, partition)))
                return
            route = routes[partition]
            part = StagedPart(route.topic, route.index, handle, header.count, header.body_crc)

            def answered(now_us: int, message: Reply) -> None:
                self._out.append(Done(call, part))

            build = partial(
                StageBatch,
                topic=route.topic,
                partition=route.index,
                query=task.query,
                batch=task.batch,
                task=task.task,
                attempt=task.attempt,
                handle=handle,
            )
            request = CoordinatorRequest(
                f"stage a batch in {topic}[{partition}]",
                build,
                answered,
                failed,
                now_us + self._timeout_us,
                payload=batch,
                feature=SINKS,
            )
            self._coordinators.follow(now_us, request, route)

        def failed(now_us: int, error: RostraError) -> None:
            self._out.append(Fail(call, error))

        self._metadata.find(now_us, topic, found, failed)

    def commit(
        self,
        now_us: int,
        call: CallNumber,
        query: str,
        batch: int,
        parts: Sequence[StagedPart],
        writer: str = "",
        once: bool = False,
    ) -> None:
        """Done with a `SinkDecision` when the batch is published. Idempotent."""
        build = partial(CommitSink, query=query, batch=batch, parts=_checked(parts), writer=writer, once=once)

        def answered(now_us: int, message: Reply) -> None:
            if not isinstance(message, SinkCommitted):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to CommitSink")
            self._out.append(Done(call, SinkDecision(message.decided, message.repeated)))

        def failed(now_us: int, error: RostraError) -> None:
            self._out.append(Fail(call, error))

        _check_query(query)
        what = f"commit batch {batch} of {query}"
        self._coordinators.send(now_us, query, what, build, answered, failed, role="sink")

    def abort(self, now_us: int, call: CallNumber, query: str, batch: int, parts: Sequence[StagedPart]) -> None:
        """Done when the parts are being dropped, unless a commit of them has begun."""
        build = partial(AbortSink, query=query, batch=batch, parts=_checked(parts))

        def answered(now_us: int, message: Reply) -> None:
            if not isinstance(message, Agreed):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to AbortSink")
            self._out.append(Done(call, None))

        def failed(now_us: int, error: RostraError) -> None:
            self._out.append(Fail(call, error))

        _check_query(query)
        what = f"abort batch {batch} of {query}"
        self._coordinators.send(now_us, query, what, build, answered, failed, role="sink")


def _check_query(query: str) -> None:
    """Check that the name of a query is spelled like a topic name."""
    try:
        check_topic_name(query)
    except InvalidTopicName as error:
        raise InvalidSetting("query", f"{query!r} is not a name: {error.reason}") from None


def _checked(parts: Sequence[StagedPart]) -> tuple[StagedPart, ...]:
    if len(parts) > STAGED_PARTS_MAX:
        raise LimitExceeded("STAGED_PARTS_MAX", STAGED_PARTS_MAX)
    return tuple(parts)
