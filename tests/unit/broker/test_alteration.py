"""Settings of a topic that exists can be changed; those that shape it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from rostra.broker.broker import RETENTION
from rostra.errors import InvalidSetting, UnknownTopic
from rostra.fabric.api import TimerFired, Trim
from rostra.wire.messages import AlterTopic, DescribeTopic, ListTopics, TopicAltered, TopicDescribed, TopicPage
from tests.unit.broker.desk import Desk, part


@pytest.fixture
def desk() -> Desk:
    desk = Desk().start()
    desk.connect(1)
    return desk


def alter(desk: Desk, _name: str = "t", **changes: Any) -> None:
    desk.say(1, AlterTopic(desk.request(), _name, changes))
    desk.settle()


def test_altered_settings_are_told_by_every_lookup_and_survive_a_start(desk: Desk) -> None:
    desk.make_topic(1, partitions=3, retention_ms=5)
    alter(desk, retention_ms=7, compaction=1, segment_bytes=8192)
    (altered,) = desk.heard(1, TopicAltered)
    settings = altered.topic.settings
    assert (settings.partitions, settings.retention_ms, settings.compaction, settings.segment_bytes) == (
        3,
        7,
        True,
        8192,
    )
    for again in (desk, desk.restarted()):
        again.connect(2)
        again.say(2, DescribeTopic(1, "t"))
        again.say(2, ListTopics(2))
        again.settle()
        (described,), (page,) = again.heard(2, TopicDescribed), again.heard(2, TopicPage)
        assert described.topic == altered.topic and page.topics == (altered.topic,)


@pytest.mark.requirement("CM-3:retention-size")
def test_a_shorter_retention_takes_effect_on_what_is_stored(desk: Desk) -> None:
    topic = desk.make_topic(1, segment_bytes=4096)
    for sequence in range(30):
        desk.publish(1, topic, bytes(500), sequence=sequence)
    desk.settle()
    desk.step(TimerFired(RETENTION))
    desk.settle()
    assert desk.of(Trim) == []
    alter(desk, retention_bytes=5000)
    desk.step(TimerFired(RETENTION))
    desk.settle()
    assert len(desk.of(Trim)) == 1


def test_new_segments_have_the_altered_size(desk: Desk) -> None:
    topic = desk.make_topic(1, segment_bytes=1 << 20)
    for round in range(2):
        for sequence in range(30):
            desk.publish(1, topic, bytes(500), sequence=sequence)
        desk.settle()
        assert (len(desk.logs[part(topic)].segments()) > 1) == bool(round)
        alter(desk, segment_bytes=4096)


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"partitions": 4}, "partitions"),
        ({"replicas": 2}, "replicas"),
        ({"colour": 4}, "colour"),
        ({"retention_ms": -1}, "retention_ms"),
        ({"segment_bytes": 1}, "segment_bytes"),
        ({"retention_bytes": "much"}, "retention_bytes"),
    ],
)
def test_what_cannot_be_altered_is_refused_by_name(desk: Desk, changes: dict[str, int | str], about: str) -> None:
    desk.make_topic(1)
    alter(desk, "t", **changes)
    error = desk.error(1)
    assert isinstance(error, InvalidSetting) and error.setting == about


def test_a_topic_that_is_not_there_cannot_be_altered(desk: Desk) -> None:
    alter(desk, "nowhere", retention_ms=1)
    assert isinstance(desk.error(1), UnknownTopic)
