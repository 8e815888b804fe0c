"""The producer table follows its log."""

from __future__ import annotations

from rostra.broker.publish.producer_table import ProducerTable
from rostra.errors import UnknownProducer


def test_truncated_batches_are_new_and_kept_ones_are_known() -> None:
    table = ProducerTable(100)
    for number in range(10):
        table.apply(number, number, 9, 1, number, 1)
    table.commit(4)
    table.truncate(6)
    assert table.check(9, 1, 6, 1) is None
    assert table.check(9, 1, 5, 1) == (5, 5)


def test_a_producer_whose_batches_are_all_truncated_is_new_again() -> None:
    table = ProducerTable(100)
    table.apply(0, 0, 9, 1, 0, 1)
    table.truncate(0)
    assert table.check(9, 1, 0, 1) is None and len(table) == 0


def test_a_producer_evicted_for_a_truncated_one_is_known_again() -> None:
    table = ProducerTable(1)
    table.apply(0, 0, 9, 1, 0, 1)
    table.apply(1, 1, 8, 1, 0, 1)
    table.truncate(1)
    assert table.check(9, 1, 0, 1) == (0, 0)


def test_a_repeated_first_batch_is_not_new_if_its_producer_may_have_been_evicted() -> None:
    table = ProducerTable(1)
    assert table.check(9, 1, 0, 1, again=True) is None, "no producer was ever evicted here"
    table.apply(0, 0, 9, 1, 0, 1)
    table.apply(1, 1, 8, 1, 0, 1)
    assert isinstance(table.check(9, 1, 0, 1, again=True), UnknownProducer)
    assert table.check(7, 1, 0, 1) is None, "a batch that was never sent before is new"
    assert table.check(8, 2, 0, 1, again=True) is None, "another epoch of one that is known is new"
    again = ProducerTable(1)
    again.restore(table.snapshot(), table.forgot)
    assert isinstance(again.check(9, 1, 0, 1, again=True), UnknownProducer)
