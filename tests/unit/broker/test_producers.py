"""The producer table follows its log."""

from __future__ import annotations

from rostra.broker.producers import ProducerTable, Verdict


def test_what_is_cut_is_taken_as_new_and_what_is_kept_is_known() -> None:
    table = ProducerTable(100)
    for number in range(10):
        table.apply(number, number, 9, 1, number, 1)
    table.commit(4)
    table.truncate(6)
    assert table.judge(9, 1, 6, 1) == (Verdict.NEW, 0, 0)
    assert table.judge(9, 1, 5, 1) == (Verdict.STORED, 5, 5)


def test_a_producer_all_of_whose_batches_are_cut_is_new_again() -> None:
    table = ProducerTable(100)
    table.apply(0, 0, 9, 1, 0, 1)
    table.truncate(0)
    assert table.judge(9, 1, 0, 1) == (Verdict.NEW, 0, 0) and len(table) == 0


def test_a_producer_forgotten_for_one_that_is_cut_is_known_again() -> None:
    table = ProducerTable(1)
    table.apply(0, 0, 9, 1, 0, 1)
    table.apply(1, 1, 8, 1, 0, 1)
    table.truncate(1)
    assert table.judge(9, 1, 0, 1) == (Verdict.STORED, 0, 0)
