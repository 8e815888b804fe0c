"""Creates, deletes and looks up the same few topics concurrently with others, through different nodes."""

from __future__ import annotations

from functools import partial
from random import Random

from rostra.client.core.effects import Result, TopicDescription
from rostra.errors import RostraError, TopicExists, UnknownTopic
from rostra.simulator.clients.applications import Application
from rostra.simulator.clients.simulated_client import SimulatedClient
from rostra.simulator.clock import MS_US, SECOND_US
from rostra.simulator.history import TopicNameRequest
from rostra.wire.messages import Topic, TopicSettings

SETTINGS = TopicSettings(partitions=1, segment_bytes=4096)
PACE_US = (50 * MS_US, 3 * SECOND_US)


class ConcurrentTopicAdmin(Application):
    """Sends one request at a time and records requests and replies for the linearizability checker."""

    def __init__(self, client: SimulatedClient, random: Random, names: list[str], ends_us: int) -> None:
        super().__init__(client, random, names, ends_us)
        self._began_us = 0
        self._sent = 0

    def begin(self) -> None:
        self.history.delete_asked.update(self.topics)
        self._send_request()

    def _send_request(self) -> None:
        if self.over:
            return
        self._began_us, self._sent = self.clock.now_us, self.client.changes_sent
        self.history.operations += 1
        core, now_us = self.client.core, self.clock.now_us
        name = self.random.choice(self.topics)
        what = self.random.choice(("create", "create", "delete", "describe", "describe", "list"))
        call = self.client.call(f"{what} {name}", partial(self._answered, what, name))
        match what:
            case "create":
                core.create_topic(now_us, call, name, SETTINGS)
            case "delete":
                core.delete_topic(now_us, call, name)
            case "describe":
                core.describe_topic(now_us, call, name)
            case _:
                core.list_topics(now_us, call)
        self.client.run_effects()

    def _answered(self, what: str, name: str, result: Result | RostraError) -> None:
        if what == "list":
            if isinstance(result, tuple):
                found = {topic.name: topic.topic for topic in result}
                for one in self.topics:
                    self._record("list", one, found.get(one, 0))
        else:
            self._record(what, name, _outcome(what, result))
        self.later(*PACE_US, self._send_request)

    def _record(self, what: str, name: str, outcome: int | None) -> None:
        sent_once = self.client.changes_sent <= self._sent + 1
        request = TopicNameRequest(self.client.name, what, name, self._began_us, self.clock.now_us, outcome, sent_once)
        self.history.name_requests.append(request)


def _outcome(what: str, result: Result | RostraError) -> int | None:
    match result:
        case Topic():
            return result.topic
        case TopicDescription():
            return result.topic
        case TopicExists():
            return -1
        case UnknownTopic():
            return 0
        case None if what == "delete":
            return -1
        case _:
            return None
