"""Which offsets a read takes: nothing twice, nothing left out, the same after a restart."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.errors import InvalidSetting, OffsetOutOfRange, RecordsExpired, TopicDeleted, TopicRecreated
from rostra.spark.source.bounds import EARLIEST, LATEST, AtOffsets, AtTimes, Extent, TopicPartition, resolve
from rostra.spark.source.plan import Span, TopicExtents, admit, advance, spans_between, split
from rostra.spark.source.positions import Positions, lags_of

sizes = st.dictionaries(st.integers(0, 20), st.integers(0, 10_000), min_size=1, max_size=8)


def available(**topics: tuple[int, list[tuple[int, int]]]) -> TopicExtents:
    """Of each topic the id, and by partition the first offset and the end."""
    extents = {
        (name, at): Extent(first, end) for name, (_, parts) in topics.items() for at, (first, end) in enumerate(parts)
    }
    return TopicExtents({name: number for name, (number, _) in topics.items()}, extents)


def never(place: TopicPartition, moment_us: int) -> int:
    raise AssertionError("no time was asked for")


# --- bounds ---


def test_a_bound_is_resolved_for_every_partition() -> None:
    extents = {("orders", 0): Extent(5, 20), ("orders", 1): Extent(0, 7)}
    assert resolve(EARLIEST, extents, never, "x") == {("orders", 0): 5, ("orders", 1): 0}
    assert resolve(LATEST, extents, never, "x") == {("orders", 0): 20, ("orders", 1): 7}
    chosen = AtOffsets({"orders": {0: -2, 1: -1}})
    assert resolve(chosen, extents, never, "x") == {("orders", 0): 5, ("orders", 1): 7}
    assert resolve(AtTimes({}, 9), extents, lambda place, us: place[1] + us, "x") == {
        ("orders", 0): 9,
        ("orders", 1): 10,
    }


def test_an_offset_behind_the_end_is_refused_and_so_is_a_partition_that_is_not_named() -> None:
    extents = {("orders", 0): Extent(5, 20)}
    with pytest.raises(OffsetOutOfRange):
        resolve(AtOffsets({"orders": {0: 21}}), extents, never, "startingOffsets")
    with pytest.raises(InvalidSetting, match="must name every partition"):
        resolve(AtOffsets({"orders": {1: 1}}), extents, never, "startingOffsets")


# --- admission ---


@given(sizes, st.integers(1, 20_000))
def test_a_batch_takes_as_much_as_it_may_and_never_more(backlog: dict[int, int], limit: int) -> None:
    starts = {("t", p): 100 * p for p in backlog}
    ends = {("t", p): 100 * p + size for p, size in backlog.items()}
    reached = admit(starts, ends, limit)
    assert all(starts[place] <= reached[place] <= ends[place] for place in ends)
    assert sum(reached[place] - starts[place] for place in ends) == min(limit, sum(backlog.values()))


@given(sizes, st.integers(1, 50))
def test_every_partition_gets_its_turn_however_large_the_others_are(backlog: dict[int, int], limit: int) -> None:
    starts = {("t", p): 0 for p in backlog}
    ends = {("t", p): size for p, size in backlog.items()}
    waiting = {place for place in ends if ends[place]}
    for _ in range(len(ends)):
        reached = admit(starts, ends, limit)
        waiting -= {place for place in ends if reached[place] > starts[place]}
        starts = reached
    assert waiting == set()


def test_without_a_limit_a_batch_takes_all() -> None:
    assert admit({("t", 0): 1}, {("t", 0): 1 << 40}, 0) == {("t", 0): 1 << 40}


# --- splitting ---


@given(sizes, st.integers(0, 40), st.integers(1, 5_000))
def test_tasks_cover_each_offset_once(by_partition: dict[int, int], tasks_min: int, most: int) -> None:
    spans = [Span("t", 1, p, p, p + size) for p, size in by_partition.items()]
    tasks = split(spans, tasks_min, most)
    assert all(0 < len(task) <= most for task in tasks)
    for span in spans:
        own = [task for task in tasks if task.partition == span.partition]
        assert sum(map(len, own)) == len(span)
        if own:
            assert (own[0].first, own[-1].end) == (span.first, span.end)
            assert all(before.end == after.first for before, after in pairwise(own))


def test_a_large_partition_is_split_to_have_the_tasks_that_are_wanted() -> None:
    tasks = split([Span("t", 1, 0, 0, 9_000), Span("t", 1, 1, 0, 1_000)], 10, 1_000_000)
    assert [(task.partition, len(task)) for task in tasks] == [(0, 1_000)] * 9 + [(1, 1_000)]


# --- streams ---


def test_a_stream_goes_from_where_it_stands_to_the_end() -> None:
    start = Positions({("orders", 0): 3, ("orders", 1): 7}, {"orders": 1})
    ahead = advance(start, available(orders=(1, [(0, 10), (2, 7)])))
    assert ahead.losses == ()
    assert ahead.starts == {("orders", 0): 3, ("orders", 1): 7}
    assert ahead.ends == {("orders", 0): 10, ("orders", 1): 7}


def test_an_end_that_a_new_owner_does_not_know_yet_is_no_step_back() -> None:
    start = Positions({("orders", 0): 9}, {"orders": 1})
    assert advance(start, available(orders=(1, [(0, 5)]))).ends == {("orders", 0): 9}


def test_what_a_stream_must_leave_behind_is_named() -> None:
    start = Positions({("a", 0): 3, ("b", 0): 3, ("c", 0): 3}, {"a": 1, "b": 2, "c": 3})
    losses = advance(start, available(a=(1, [(5, 9)]), b=(20, [(0, 9)]))).losses
    assert [type(loss) for loss in losses] == [TopicRecreated, TopicDeleted, RecordsExpired]
    assert losses[2].carried() == {"topic": "a", "partition": 0, "offset": 3, "first": 5}


def test_partitions_that_came_since_the_checkpoint_are_read_from_their_first_record() -> None:
    start = Positions({("orders", 0): 3}, {"orders": 1})
    ahead = advance(start, available(orders=(1, [(0, 10), (0, 4)]), more=(2, [(0, 2)])))
    assert ahead.losses == ()
    end = Positions(ahead.ends, {"orders": 1, "more": 2})
    assert spans_between(start, end) == [
        Span("more", 2, 0, 0, 2),
        Span("orders", 1, 0, 3, 10),
        Span("orders", 1, 1, 0, 4),
    ]


def test_of_partitions_that_came_and_lost_their_first_records_the_loss_is_told() -> None:
    start = Positions({("orders", 0): 3}, {"orders": 1})
    losses = advance(start, available(orders=(1, [(0, 10), (4, 9)]))).losses
    assert [loss.carried() for loss in losses] == [{"topic": "orders", "partition": 1, "offset": 0, "first": 4}]


def test_a_topic_made_again_is_read_from_its_beginning() -> None:
    start = Positions({("orders", 0): 30}, {"orders": 1})
    end = Positions({("orders", 0): 5}, {"orders": 2})
    assert spans_between(start, end) == [Span("orders", 2, 0, 0, 5)]


# --- positions ---


def test_positions_are_the_same_after_they_were_written_and_read() -> None:
    positions = Positions({("b", 10): 1, ("b", 9): 2, ("a", 0): 3}, {"a": 5, "b": 6}, started={("a", 0): 0})
    written = positions.to_json()
    assert written == {
        "v": 1,
        "topics": {"a": {"0": 3}, "b": {"9": 2, "10": 1}},
        "ids": {"a": "0000000000000005", "b": "0000000000000006"},
        "from": {"a": {"0": 0}},
    }
    assert list(written["topics"]["b"]) == ["9", "10"]
    assert Positions.from_json(written) == positions


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"v": 2, "topics": {}, "ids": {}},
        {"v": 1, "topics": {"a": {"0": "x"}}, "ids": {}},
        {"v": 1, "topics": {"a": {"x": 1}}, "ids": {}},
        {"v": 1, "topics": {}, "ids": {"a": "7"}},
        {"v": 1, "topics": {}, "ids": {}, "more": 1},
    ],
)
def test_positions_of_another_version_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting, match="checkpointLocation"):
        Positions.from_json(wrong)


def test_where_nothing_came_the_position_is_the_very_same() -> None:
    start = Positions({("a", 0): 3}, {"a": 1}, initial=True)
    assert Positions({("a", 0): 3}, {"a": 1}).reached_from(start).to_json() == start.to_json()


def test_a_first_batch_that_is_repeated_begins_where_it_began_though_the_latest_moved_on() -> None:
    first = Positions({("a", 0): 3}, {"a": 1}, initial=True)
    end = Positions({("a", 0): 8}, {"a": 1}).reached_from(first)
    later = Positions({("a", 0): 100}, {"a": 1}, initial=True)
    assert spans_between(first, end) == spans_between(later, end) == [Span("a", 1, 0, 3, 8)]
    assert spans_between(end, Positions({("a", 0): 9}, {"a": 1}).reached_from(end)) == [Span("a", 1, 0, 8, 9)]


def test_the_lag_is_what_lies_between_two_positions() -> None:
    here = Positions({("a", 0): 3, ("a", 1): 9}, {"a": 1}).to_json()
    there = Positions({("a", 0): 10, ("a", 1): 8, ("b", 0): 4}, {"a": 1, "b": 2}).to_json()
    assert sum(lags_of(here, there).values()) == 11
