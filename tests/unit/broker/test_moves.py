"""Producers that come from another node: what a partition's log remembers of them."""

from __future__ import annotations

from rostra.broker.api import ProducerStamp, RecoveredLog
from rostra.broker.partition.control_batch import control_batch
from rostra.broker.partition.log_derived_state import LogDerivedState
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.partition.tail_cache import TailCache
from rostra.broker.publish.migration_table import MOVES_PER_PRODUCER, MigrationTable, is_superseded
from rostra.broker.publish.producer_table import ProducerTable
from rostra.client.core.subscription.seen_records import SeenRecords
from rostra.fabric.api import Recovered
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.model.producer_move import ProducerMove
from rostra.wire.messages import Topic, TopicSettings


def test_a_move_counts_from_where_it_stands() -> None:
    moves = MigrationTable()
    moves.apply(5, ProducerMove(7, 0, 30, 2))
    assert [moves.move_at(7, offset) for offset in (4, 5, 9)] == [0, 2, 2]
    assert moves.latest_move(7) == 2 and moves.latest_move(8) == 0


def test_what_is_cut_from_the_log_is_no_move() -> None:
    moves = MigrationTable()
    moves.apply(5, ProducerMove(7, 0, 30, 2, after=9, after_offset=3))
    moves.truncate(5)
    assert moves.latest_move(7) == 0 and not moves.waiting


def test_a_checkpoint_brings_moves_back_to_where_they_stood() -> None:
    moves, again = MigrationTable(), MigrationTable()
    for at in range(2):
        moves.apply(5 + at, ProducerMove(7, 0, 30 + at, 2 + at))
    for entry in moves.entries():
        again.apply(-1, entry)
    assert [again.move_at(7, offset) for offset in (4, 5, 6)] == [0, 2, 3]


def test_of_one_producer_only_so_many_moves_are_kept() -> None:
    moves = MigrationTable()
    for number in range(MOVES_PER_PRODUCER + 5):
        moves.apply(number, ProducerMove(7, 0, number, number + 1))
    assert len(moves.entries()) == MOVES_PER_PRODUCER


def test_what_is_stored_elsewhere_is_known_here_and_what_follows_is_new() -> None:
    table = ProducerTable(4)
    table.adopt(10, 7, 0, 30)
    assert table.check(7, 0, 30, 1) is None
    assert isinstance(table.check(7, 0, 29, 1), tuple)


def test_what_is_told_late_does_not_take_back_what_is_known() -> None:
    table = ProducerTable(4)
    table.apply(11, 12, 7, 0, 30, 2)
    table.adopt(10, 7, 0, 30)
    assert table.check(7, 0, 32, 1) is None


def test_the_table_keeps_its_bound_whoever_comes() -> None:
    table = ProducerTable(4)
    for producer in range(1, 20):
        table.adopt(producer, producer, 0, 1)
    assert len(table) == 4
    table.truncate(0)
    assert len(table) == 0


def test_a_subscription_knows_what_it_was_given_in_whatever_order_it_comes() -> None:
    seen = SeenRecords()
    assert [seen.has(1, 0, sequence, 5) for sequence in (10, 0, 5, 15)] == [False] * 4
    assert [seen.has(1, 0, sequence, 5) for sequence in (0, 5, 10, 15)] == [True] * 4
    assert not seen.has(1, 1, 0, 5) and not seen.has(2, 0, 0, 5)


def test_tables_are_rebuilt_in_the_order_of_the_log_so_that_whoever_was_put_out_of_them_is_the_same() -> None:
    """An entry may put a producer in; were entries applied last, it would put out whoever came after it."""
    place = Partition(TopicId(1), PartitionIndex(0))
    books = LogDerivedState(ProducerTable(2))
    served = ServedPartition(place, Topic(1, "t", TopicSettings()), books, TailCache(1 << 20))
    stamps = tuple(ProducerStamp(offset, offset, producer, 0, 0, 1) for offset, producer in ((1, 7), (2, 8), (3, 9)))
    entry = bytes(control_batch([ProducerMove(7, 0, 0, 1)], 0))
    found = RecoveredLog(Recovered(place, 0, 4, ()), None, stamps, 0, 0, ((0, entry),))
    served.recovered(found)
    assert [producer for producer in (7, 8, 9) if books.producers.entry(producer) is not None] == [8, 9]


def hidden(moves: list[ProducerMove], number: int, *sequences: int, epoch: int = 0) -> list[bool]:
    return [is_superseded(moves, number, epoch, sequence) for sequence in sequences]


def test_what_a_later_place_began_with_is_hidden_at_the_earlier_one() -> None:
    moves = [ProducerMove(7, 0, 30, 1)]
    assert hidden(moves, 0, 29, 30, 31) == [False, True, True]
    assert hidden(moves, 1, 29, 30, 31) == [False, False, False]
    assert hidden(moves, 0, 30, epoch=1) == [False], "another life of the producer, with sequences of its own"


def test_a_place_that_a_later_one_did_not_know_of_neither_shows_nor_hides_anything() -> None:
    """The second place stored nothing that anybody was told of; the third went by what the first has."""
    moves = [ProducerMove(7, 0, 20, 1), ProducerMove(7, 0, 23, 2, known=1), ProducerMove(7, 0, 25, 3, known=1)]
    assert hidden(moves, 1, 22, 23, 24, 25) == [False, False, False, True]
    assert hidden(moves, 2, 23, 24, 25) == [True, True, True]
    assert hidden(moves, 3, 25, 26) == [False, False]


def test_a_place_that_the_later_one_knew_of_counts() -> None:
    moves = [ProducerMove(7, 0, 23, 2, known=0), ProducerMove(7, 0, 25, 3, known=2)]
    assert hidden(moves, 0, 22, 23, 24) == [False, True, True]
    assert hidden(moves, 2, 23, 24, 25) == [False, False, True]


def test_another_epoch_that_did_not_know_of_a_place_changes_nothing_about_this_one() -> None:
    moves = [ProducerMove(7, 4, 20, 1), ProducerMove(7, 4, 23, 2, known=1), ProducerMove(7, 5, 0, 3, known=1)]
    assert hidden(moves, 1, 22, 23, 24, epoch=4) == [False, True, True]
    assert hidden(moves, 2, 23, 24, epoch=4) == [False, False]
