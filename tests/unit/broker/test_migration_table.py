"""Producers that move from another node, as recorded in a partition's log."""

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


def test_a_move_counts_from_its_offset() -> None:
    moves = MigrationTable()
    moves.apply(5, ProducerMove(7, 0, 30, 2))
    assert [moves.move_at(7, offset) for offset in (4, 5, 9)] == [0, 2, 2]
    assert moves.latest_move(7) == 2 and moves.latest_move(8) == 0


def test_a_truncated_move_is_undone() -> None:
    moves = MigrationTable()
    moves.apply(5, ProducerMove(7, 0, 30, 2, after=9, after_offset=3))
    moves.truncate(5)
    assert moves.latest_move(7) == 0 and not moves.waiting


def test_a_checkpoint_restores_moves_with_their_offsets() -> None:
    moves, again = MigrationTable(), MigrationTable()
    for at in range(2):
        moves.apply(5 + at, ProducerMove(7, 0, 30 + at, 2 + at))
    for entry in moves.to_entries():
        again.apply(-1, entry)
    assert [again.move_at(7, offset) for offset in (4, 5, 6)] == [0, 2, 3]


def test_the_moves_of_one_producer_are_limited() -> None:
    moves = MigrationTable()
    for number in range(MOVES_PER_PRODUCER + 5):
        moves.apply(number, ProducerMove(7, 0, number, number + 1))
    assert len(moves.to_entries()) == MOVES_PER_PRODUCER


def test_batches_stored_elsewhere_are_known_and_the_next_is_new() -> None:
    table = ProducerTable(4)
    table.adopt(10, 7, 0, 30)
    assert table.check(7, 0, 30, 1) is None
    assert isinstance(table.check(7, 0, 29, 1), tuple)


def test_a_late_move_does_not_lower_the_expected_sequence() -> None:
    table = ProducerTable(4)
    table.apply(11, 12, 7, 0, 30, 2)
    table.adopt(10, 7, 0, 30)
    assert table.check(7, 0, 32, 1) is None


def test_moves_keep_the_producer_table_within_its_limit() -> None:
    table = ProducerTable(4)
    for producer in range(1, 20):
        table.adopt(producer, producer, 0, 1)
    assert len(table) == 4
    table.truncate(0)
    assert len(table) == 0


def test_seen_records_are_known_in_any_order() -> None:
    seen = SeenRecords()
    assert [seen.has(1, 0, sequence, 5) for sequence in (10, 0, 5, 15)] == [False] * 4
    assert [seen.has(1, 0, sequence, 5) for sequence in (0, 5, 10, 15)] == [True] * 4
    assert not seen.has(1, 1, 0, 5) and not seen.has(2, 0, 0, 5)


def test_tables_are_rebuilt_in_log_order_so_that_evictions_are_the_same() -> None:
    """An entry may insert a producer; applied last, it would evict producers that came after it."""
    place = Partition(TopicId(1), PartitionIndex(0))
    state = LogDerivedState(ProducerTable(2))
    served = ServedPartition(place, Topic(1, "t", TopicSettings()), state, TailCache(1 << 20))
    stamps = tuple(ProducerStamp(offset, offset, producer, 0, 0, 1) for offset, producer in ((1, 7), (2, 8), (3, 9)))
    entry = bytes(control_batch([ProducerMove(7, 0, 0, 1)], 0))
    found = RecoveredLog(Recovered(place, 0, 4, ()), None, stamps, 0, 0, ((0, entry),))
    served.recovered(found)
    assert [producer for producer in (7, 8, 9) if state.producers.entry(producer) is not None] == [8, 9]


def hidden(moves: list[ProducerMove], number: int, *sequences: int, epoch: int = 0) -> list[bool]:
    return [is_superseded(moves, number, epoch, sequence) for sequence in sequences]


def test_records_resent_after_a_move_are_superseded_in_the_earlier_partition() -> None:
    moves = [ProducerMove(7, 0, 30, 1)]
    assert hidden(moves, 0, 29, 30, 31) == [False, True, True]
    assert hidden(moves, 1, 29, 30, 31) == [False, False, False]
    assert hidden(moves, 0, 30, epoch=1) == [False], "another life of the producer, with sequences of its own"


def test_a_move_that_a_later_one_did_not_know_of_does_not_count() -> None:
    """No batch of the second move was acknowledged; the third continued from the first."""
    moves = [ProducerMove(7, 0, 20, 1), ProducerMove(7, 0, 23, 2, known=1), ProducerMove(7, 0, 25, 3, known=1)]
    assert hidden(moves, 1, 22, 23, 24, 25) == [False, False, False, True]
    assert hidden(moves, 2, 23, 24, 25) == [True, True, True]
    assert hidden(moves, 3, 25, 26) == [False, False]


def test_a_move_that_the_later_one_knew_of_counts() -> None:
    moves = [ProducerMove(7, 0, 23, 2, known=0), ProducerMove(7, 0, 25, 3, known=2)]
    assert hidden(moves, 0, 22, 23, 24) == [False, True, True]
    assert hidden(moves, 2, 23, 24, 25) == [False, False, True]


def test_moves_of_another_epoch_do_not_count() -> None:
    moves = [ProducerMove(7, 4, 20, 1), ProducerMove(7, 4, 23, 2, known=1), ProducerMove(7, 5, 0, 3, known=1)]
    assert hidden(moves, 1, 22, 23, 24, epoch=4) == [False, True, True]
    assert hidden(moves, 2, 23, 24, epoch=4) == [False, False]
