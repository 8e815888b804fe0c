"""What is said of a running query."""

from __future__ import annotations

import json

from rostra.spark.pipelines.progress import cause_of, metrics_of, progress_of

END = {"v": 1, "topics": {"a": {"0": 10}}, "ids": {"a": "0000000000000001"}}
LATEST = {"v": 1, "topics": {"a": {"0": 1_510}}, "ids": {"a": "0000000000000001"}}


def test_a_batch_is_told_with_its_rate_and_its_lag() -> None:
    progress = progress_of(
        {
            "batchId": 3,
            "numInputRows": 2_000,
            "processedRowsPerSecond": 1234.5,
            "sources": [{"endOffset": END, "latestOffset": json.dumps(LATEST)}],
            "stateOperators": [{"numRowsDroppedByWatermark": 2}],
        }
    )
    assert progress.line() == "batch 3: 2,000 records, 1,234/s, 1,500 behind, 2 late"


def test_what_is_not_known_is_not_told() -> None:
    progress = progress_of({"batchId": 0, "numInputRows": 0, "sources": [{"endOffset": None}]})
    assert (progress.lag, progress.line()) == (None, "batch 0: 0 records, 0/s")


def test_the_cause_of_a_failure_is_our_error_if_there_is_one() -> None:
    told = """[STREAM_FAILED] Query terminated
Traceback (most recent call last):
  File "x.py", line 1
rostra.errors.TopicDeleted: topic 'a' was deleted; subscribe again if it is created anew
SQLSTATE: XXKST"""
    assert cause_of(told) == "topic 'a' was deleted; subscribe again if it is created anew"
    assert cause_of("Job aborted\njava.io.IOException: No space left\n at x") == "IOException: No space left"
    assert cause_of("all is lost") == "all is lost"


def test_the_lag_of_all_partitions_is_known_by_the_names_of_the_kafka_source() -> None:
    ids = {"a": "0000000000000001"}
    end = {"v": 1, "topics": {"a": {"0": 10, "1": 4}}, "ids": ids}
    latest = {"v": 1, "topics": {"a": {"0": 15, "1": 5, "2": 3}}, "ids": ids}
    sources = [{"endOffset": "7", "latestOffset": None}, {"endOffset": end, "latestOffset": latest}]
    assert metrics_of({"batchId": 1, "numInputRows": 5, "processedRowsPerSecond": 2.5, "sources": sources}) == {
        "records": 5,
        "recordsPerSecond": 2.5,
        "offsetsBehindLatest": 9,
        "minOffsetsBehindLatest": 1,
        "maxOffsetsBehindLatest": 5,
        "avgOffsetsBehindLatest": 3.0,
    }
    assert metrics_of({"batchId": 1}) == {"records": 0, "recordsPerSecond": 0.0}
