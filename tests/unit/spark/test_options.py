"""What a read can be told, and what it answers to nonsense."""

from __future__ import annotations

import pytest

from rostra.errors import InvalidPattern, InvalidSetting, InvalidTopicName, RostraError
from rostra.model.patterns import Pattern
from rostra.spark.source.bounds import EARLIEST, LATEST, AtOffsets, AtTimes
from rostra.spark.source.options import (
    COLUMNS,
    AssignedPartitions,
    TopicNames,
    TopicPattern,
    offsets_json,
    parse_options,
)


def test_the_usual_read_needs_only_a_topic() -> None:
    batch = parse_options({"subscribe": "orders"}, streaming=False)
    assert (batch.nodes, batch.chosen) == (("127.0.0.1:7400",), TopicNames(("orders",)))
    assert (batch.starting, batch.ending, batch.columns, batch.fail_on_loss) == (EARLIEST, LATEST, COLUMNS, True)
    assert parse_options({"subscribe": "orders"}, streaming=True).starting == LATEST


def test_topics_are_chosen_by_name_by_pattern_and_by_partition() -> None:
    assert parse_options({"subscribe": "a, b,a"}, streaming=True).chosen == TopicNames(("a", "b"))
    assert parse_options({"subscribePattern": "x/+"}, streaming=True).chosen == TopicPattern(Pattern.parse("x/+"))
    assert parse_options({"assign": '{"b":[1,0]}'}, streaming=True).chosen == AssignedPartitions({"b": (0, 1)})


def test_bounds_are_words_offsets_or_times() -> None:
    def starting(**options: str) -> object:
        return parse_options({"subscribe": "a", **options}, streaming=False).starting

    assert starting(startingOffsets="EARLIEST") == EARLIEST
    assert starting(startingOffsets='{"a":{"0":23,"1":-2}}') == AtOffsets({"a": {0: 23, 1: -2}})
    assert starting(startingTimestamp="1500") == AtTimes({}, 1_500_000)
    assert starting(startingTimestamp="1970-01-01T00:00:01.5Z") == AtTimes({}, 1_500_000)
    assert starting(startingTimestamp="1970-01-01T00:00:01.5") == AtTimes({}, 1_500_000)
    assert starting(startingOffsetsByTimestamp='{"a":{"0":2}}') == AtTimes({"a": {0: 2000}})
    written = offsets_json({"a": {1: 5, 0: 4}})
    assert starting(startingOffsets=written) == AtOffsets({"a": {0: 4, 1: 5}})


def test_names_of_options_may_be_written_in_any_case() -> None:
    options = parse_options(
        {"SUBSCRIBE": "a", "maxoffsetspertrigger": "5", "MinPartitions": "7", "failondataloss": "False"},
        streaming=True,
    )
    assert (options.offsets_per_trigger_max, options.tasks_min, options.fail_on_loss) == (5, 7, False)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "exactly one of"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "b:1"}, "kafka.bootstrap.servers is wrong: there is no such"),
        ({"subscribe": "a", "nodes": "a:b:c:d"}, "nodes"),
        ({"subscribe": "a", "nodes": ","}, "at least one address"),
        ({"assign": "{}"}, "assign"),
        ({"assign": '{"a":[0,0]}'}, "assign"),
        ({"assign": '{"a":"0"}'}, "it looks like"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "reads nothing"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "reads nothing"),
        ({"subscribe": "a", "startingOffsets": "newest"}, "it looks like earliest"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "not negative"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"x":3}}'}, "startingOffsets"),
        ({"subscribe": "a", "startingTimestamp": "soon"}, "neither milliseconds"),
        ({"subscribe": "a", "startingTimestamp": "1", "startingOffsets": "earliest"}, "contradicts"),
        ({"subscribe": "a", "columns": "value,colour"}, "columns"),
        ({"subscribe": "a", "columns": "value,value"}, "each once"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions"),
        ({"subscribe": "a", "minPartitions": "many"}, "no whole number"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "neither true nor false"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "5"}, "a batch read has no triggers"),
    ],
)
def test_a_wrong_option_is_refused_by_name_with_what_would_be_right(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named):
        parse_options(options, streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidSetting, match="endingOffsets is wrong: a stream has no end"):
        parse_options({"subscribe": "a", "endingOffsets": "latest"}, streaming=True)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"subscribe": "a b"}, InvalidTopicName), ({"subscribePattern": "a#"}, InvalidPattern)],
)
def test_a_name_that_no_topic_can_have_is_refused(options: dict[str, str], error: type[RostraError]) -> None:
    with pytest.raises(error):
        parse_options(options, streaming=False)


def test_headers_are_a_column_unless_they_are_not_wanted() -> None:
    def columns(**options: str) -> tuple[str, ...]:
        return parse_options({"subscribe": "a", **options}, streaming=False).columns

    assert columns(includeHeaders="true") == COLUMNS
    assert columns(includeHeaders="false") == COLUMNS[:-1]
    with pytest.raises(InvalidSetting, match="contradicts columns"):
        columns(includeHeaders="false", columns="value,headers")


def test_a_batch_may_wait_for_a_number_of_offsets_and_a_time() -> None:
    def stream(**options: str) -> tuple[int, int]:
        parsed = parse_options({"subscribe": "a", **options}, streaming=True)
        return parsed.offsets_per_trigger_min, parsed.trigger_delay_max_ms

    assert stream() == (0, 900_000)
    assert stream(minOffsetsPerTrigger="7", maxTriggerDelay="30s") == (7, 30_000)
    with pytest.raises(InvalidSetting, match="no time such as"):
        stream(maxTriggerDelay="soon")
    with pytest.raises(InvalidSetting, match="more than maxOffsetsPerTrigger"):
        stream(minOffsetsPerTrigger="7", maxOffsetsPerTrigger="6")
