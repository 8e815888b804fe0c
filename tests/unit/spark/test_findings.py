"""Figures of an audit, without Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rostra.spark.pipelines.findings import (
    NodeLoad,
    TopicFindings,
    bucket_of,
    imbalance_of,
    latency_of,
    share_of,
    total_of,
)


@given(st.integers(-5, 1 << 50))
def test_a_bucket_is_less_than_a_hundredth_below_what_is_in_it(latency_us: int) -> None:
    lower = bucket_of(latency_us)
    assert lower <= max(latency_us, 0) <= lower + max(latency_us, 0) // 64
    assert bucket_of(lower) == lower


@given(st.dictionaries(st.integers(0, 1000), st.integers(1, 50), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_share_is_the_least_value_that_so_many_do_not_exceed(histogram: dict[int, int], share: float) -> None:
    every = sorted(value for value, count in histogram.items() for _ in range(count))
    found = share_of(histogram, share)
    assert sum(value <= found for value in every) >= share * len(every) - 1e-9
    assert sum(value < found for value in every) < share * len(every)


def test_a_latency_counts_records() -> None:
    latency = latency_of("t", {10: 3, 20: 1}, 50, 21)
    assert (latency.records, latency.mean_us, latency.max_us) == (4, 12.5, 21)
    assert latency.shares_us == {"p50": 10, "p90": 20, "p99": 20, "p99.9": 20}


def test_all_topics_together_are_their_sums() -> None:
    one = TopicFindings("a", 1, 2, 10, 20, 19, 1, 0, 3, 0)
    total = total_of([one, TopicFindings("b", 0, 1, 5, 5, 5, 0, 2, 0, 1)])
    assert total == TopicFindings("*", 1, 3, 15, 25, 24, 1, 2, 3, 1)
    assert (one.percent, one.sound, total_of([]).percent) == (95.0, False, 100.0)


def test_imbalance_is_the_most_in_relation_to_the_mean() -> None:
    assert imbalance_of([NodeLoad("a", 30, 0, 0, 0), NodeLoad("b", 10, 0, 0, 0)]) == 1.5
    assert imbalance_of([]) == 1.0
