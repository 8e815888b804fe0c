"""Altering the settings of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from rostra.broker.broker import RETENTION
from rostra.errors import InvalidSetting, UnknownTopic
from rostra.fabric.api import TimerFired, Trim
from rostra.wire.messages import AlterTopic, DescribeTopic, ListTopics, TopicAltered, TopicDescribed, TopicPage
from tests.unit.broker.broker_driver import BrokerDriver, partition_id


@pytest.fixture
def driver() -> BrokerDriver:
    driver = BrokerDriver().start()
    driver.connect(1)
    return driver


def alter(driver: BrokerDriver, _name: str = "t", **changes: Any) -> None:
    driver.send(1, AlterTopic(driver.request(), _name, changes))
    driver.settle()


def test_altered_settings_are_in_every_lookup_and_survive_a_start(driver: BrokerDriver) -> None:
    driver.make_topic(1, partitions=3, retention_ms=5)
    alter(driver, retention_ms=7, compaction=1, segment_bytes=8192)
    (altered,) = driver.received(1, TopicAltered)
    settings = altered.topic.settings
    assert (settings.partitions, settings.retention_ms, settings.compaction, settings.segment_bytes) == (
        3,
        7,
        True,
        8192,
    )
    for again in (driver, driver.restarted()):
        again.connect(2)
        again.send(2, DescribeTopic(1, "t"))
        again.send(2, ListTopics(2))
        again.settle()
        (described,), (page,) = again.received(2, TopicDescribed), again.received(2, TopicPage)
        assert described.topic == altered.topic and page.topics == (altered.topic,)


@pytest.mark.requirement("CM-3:retention-size")
def test_a_shorter_retention_applies_to_stored_records(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1, segment_bytes=4096)
    for sequence in range(30):
        driver.publish(1, topic, bytes(500), sequence=sequence)
    driver.settle()
    driver.step(TimerFired(RETENTION))
    driver.settle()
    assert driver.of(Trim) == []
    alter(driver, retention_bytes=5000)
    driver.step(TimerFired(RETENTION))
    driver.settle()
    assert len(driver.of(Trim)) == 1


def test_new_segments_have_the_altered_size(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1, segment_bytes=1 << 20)
    for round in range(2):
        for sequence in range(30):
            driver.publish(1, topic, bytes(500), sequence=sequence)
        driver.settle()
        assert (len(driver.logs[partition_id(topic)].segments()) > 1) == bool(round)
        alter(driver, segment_bytes=4096)


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
def test_settings_that_cannot_be_altered_are_refused_by_name(
    driver: BrokerDriver, changes: dict[str, int | str], about: str
) -> None:
    driver.make_topic(1)
    alter(driver, "t", **changes)
    error = driver.error(1)
    assert isinstance(error, InvalidSetting) and error.setting == about


def test_an_unknown_topic_cannot_be_altered(driver: BrokerDriver) -> None:
    alter(driver, "nowhere", retention_ms=1)
    assert isinstance(driver.error(1), UnknownTopic)
