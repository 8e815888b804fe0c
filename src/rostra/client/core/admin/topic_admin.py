"""Topic administration: create, alter, delete, list, describe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never

import msgspec

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, Result, TopicDescription
from rostra.client.core.options import check_topic_settings
from rostra.client.core.routing.pending_requests import Answer, PendingRequest, PendingRequests
from rostra.errors import PeerViolation, RostraError, TopicExists, UnknownTopic
from rostra.model.ids import check_topic_name
from rostra.wire.features import ALTERATION
from rostra.wire.frames import Violation
from rostra.wire.groups import CoordinatorLocation
from rostra.wire.messages import (
    Agreed,
    AlterTopic,
    ClientMessage,
    ClusterDescribed,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    Located,
    Topic,
    TopicAltered,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
    TopicSettings,
)

OnAnswer = Callable[[int, Answer], None]
OnError = Callable[[int, RostraError], None]


class TopicAdmin:
    def __init__(self, requests: PendingRequests, out: list[ClientEffect], timeout_us: int) -> None:
        self._requests = requests
        self._out = out
        self._timeout_us = timeout_us

    def create(self, now_us: int, call: CallNumber, name: str, settings: TopicSettings) -> None:
        check_topic_name(name)
        check_topic_settings(settings)

        def failed(now_us: int, error: RostraError) -> None:
            if isinstance(error, TopicExists) and pending.attempts > 1:
                # Perhaps our own request created it and the answer was lost; then the settings are as requested.
                self._describe(now_us, call, name, compare, self._failing(call))
            else:
                self._out.append(Fail(call, error))

        def compare(now_us: int, message: Answer) -> None:
            if isinstance(message, TopicDescribed) and _is_as_asked(message.topic.settings, settings):
                self._out.append(Done(call, message.topic))
            else:
                self._out.append(Fail(call, TopicExists(name)))

        build = partial(CreateTopic, name=name, settings=settings)
        pending = self._request(now_us, f"create {name}", build, self._answering(call), failed)

    def alter(self, now_us: int, call: CallNumber, name: str, changes: dict[str, int | str]) -> None:
        """Idempotent."""
        check_topic_name(name)
        build = partial(AlterTopic, name=name, changes=changes)
        pending = PendingRequest(
            f"alter {name}",
            build,
            self._answering(call),
            self._failing(call),
            now_us + self._timeout_us,
            ALTERATION,
        )
        self._requests.add(now_us, pending)

    def delete(self, now_us: int, call: CallNumber, name: str) -> None:
        def failed(now_us: int, error: RostraError) -> None:
            gone = isinstance(error, UnknownTopic) and pending.attempts > 1
            self._out.append(Done(call, None) if gone else Fail(call, error))

        build = partial(DeleteTopic, name=name)
        pending = self._request(now_us, f"delete {name}", build, self._answering(call), failed)

    def describe(self, now_us: int, call: CallNumber, name: str) -> None:
        self._describe(now_us, call, name, self._answering(call), self._failing(call))

    def _describe(self, now_us: int, call: CallNumber, name: str, answered: OnAnswer, failed: OnError) -> None:
        self._request(now_us, f"describe {name}", partial(DescribeTopic, name=name), answered, failed)

    def list(self, now_us: int, call: CallNumber, so_far: tuple[Topic, ...] = ()) -> None:
        """Request page after page."""

        def answered(now_us: int, message: Answer) -> None:
            if not isinstance(message, TopicPage):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to ListTopics")
            topics = so_far + message.topics
            if message.more and message.topics:
                self.list(now_us, call, topics)
            else:
                self._out.append(Done(call, topics))

        after = so_far[-1].name if so_far else ""
        self._request(now_us, "list topics", partial(ListTopics, after=after), answered, self._failing(call))

    def _request(
        self, now_us: int, what: str, build: Callable[[int], ClientMessage], answered: OnAnswer, failed: OnError
    ) -> PendingRequest:
        pending = PendingRequest(what, build, answered, failed, now_us + self._timeout_us)
        self._requests.add(now_us, pending)
        return pending

    def _answering(self, call: CallNumber) -> OnAnswer:
        def answered(now_us: int, message: Answer) -> None:
            self._out.append(Done(call, _result_of(message)))

        return answered

    def _failing(self, call: CallNumber) -> OnError:
        def failed(now_us: int, error: RostraError) -> None:
            self._out.append(Fail(call, error))

        return failed


def _is_as_asked(found: TopicSettings, asked: TopicSettings) -> bool:
    """Whether the settings match; `replicas` 0 left the number to the node."""
    return found == msgspec.structs.replace(asked, replicas=asked.replicas or found.replicas)


def _result_of(message: Answer) -> Result:
    match message:
        case TopicCreated() | TopicAltered():
            return message.topic
        case TopicDescribed():
            topic = message.topic
            return TopicDescription(topic.topic, topic.name, topic.settings, message.partitions)
        case TopicDropped():
            return None
        case Located() | TopicPage() | ClusterDescribed() | Agreed() | CoordinatorLocation():
            raise PeerViolation(Violation.OUT_OF_ORDER, type(message).__name__)
        case _:
            assert_never(message)
