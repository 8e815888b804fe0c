"""The producer table follows its log, also where the log is cut below the checkpoint that the table came from."""

from __future__ import annotations

from rostra.broker.producers import ProducerTable, Verdict
from rostra.errors import UnknownProducer


def restored(batches: int, remembered: int) -> ProducerTable:
    """As a start finds it: producer 9 wrote batches of one record at offsets 0, 1, 2, …, all before a checkpoint."""
    table = ProducerTable(100)
    for number in range(batches):
        table.apply(number, number, 9, 1, number, 1)
    ((producer, entry),) = table.snapshot()
    again = ProducerTable(100)
    again.restore([(producer, type(entry)(entry.epoch, entry.expected, entry.latest[-remembered:]))])
    return again


def test_what_was_cut_below_a_checkpoint_is_taken_as_new_and_what_was_kept_is_known() -> None:
    table = restored(10, remembered=10)
    table.truncate(6)
    assert table.judge(9, 1, 6, 1) == (Verdict.NEW, 0, 0)
    assert table.judge(9, 1, 5, 1) == (Verdict.STORED, 5, 5)


def test_a_producer_all_of_whose_batches_were_cut_begins_anew() -> None:
    table = restored(4, remembered=4)
    table.truncate(0)
    assert table.judge(9, 1, 0, 1) == (Verdict.NEW, 0, 0)


def test_where_it_is_not_known_how_much_was_cut_the_producer_hears_so() -> None:
    table = restored(10, remembered=3)
    table.truncate(4)
    assert isinstance(table.judge(9, 1, 4, 1), UnknownProducer)


def test_a_cut_above_all_that_is_known_changes_nothing() -> None:
    table = restored(10, remembered=3)
    table.truncate(10)
    assert table.judge(9, 1, 10, 1) == (Verdict.NEW, 0, 0)
    assert table.judge(9, 1, 9, 1) == (Verdict.STORED, 9, 9)
