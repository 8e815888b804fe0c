"""Producers that come from another node: what a partition's log remembers of them."""

from __future__ import annotations

from rostra.broker.moves import REMEMBERED, Move, Moves
from rostra.broker.producers import ProducerTable, Verdict
from rostra.client.core.seen import Seen


def test_a_move_counts_from_where_it_stands() -> None:
    moves = Moves()
    moves.apply(5, Move(7, 0, 30, 2))
    assert [moves.number_at(7, offset) for offset in (4, 5, 9)] == [0, 2, 2]
    assert moves.number(7) == 2 and moves.number(8) == 0


def test_what_is_cut_from_the_log_is_no_move() -> None:
    moves = Moves()
    moves.apply(5, Move(7, 0, 30, 2, after=9, after_offset=3))
    moves.truncate(5)
    assert moves.number(7) == 0 and not moves.waiting


def test_a_checkpoint_brings_moves_back_to_where_they_stood() -> None:
    moves, again = Moves(), Moves()
    for at in range(2):
        moves.apply(5 + at, Move(7, 0, 30 + at, 2 + at))
    for entry in moves.entries():
        again.apply(-1, entry)
    assert [again.number_at(7, offset) for offset in (4, 5, 6)] == [0, 2, 3]


def test_of_one_producer_only_so_many_moves_are_kept() -> None:
    moves = Moves()
    for number in range(REMEMBERED + 5):
        moves.apply(number, Move(7, 0, number, number + 1))
    assert len(moves.entries()) == REMEMBERED


def test_what_is_stored_elsewhere_is_known_here_and_what_follows_is_new() -> None:
    table = ProducerTable(4)
    table.adopt(10, 7, 0, 30)
    assert table.judge(7, 0, 30, 1) == (Verdict.NEW, 0, 0)
    stored = table.judge(7, 0, 29, 1)
    assert isinstance(stored, tuple) and stored[0] is Verdict.STORED


def test_what_is_told_late_does_not_take_back_what_is_known() -> None:
    table = ProducerTable(4)
    table.apply(11, 12, 7, 0, 30, 2)
    table.adopt(10, 7, 0, 30)
    assert table.judge(7, 0, 32, 1) == (Verdict.NEW, 0, 0)


def test_the_table_keeps_its_bound_whoever_comes() -> None:
    table = ProducerTable(4)
    for producer in range(1, 20):
        table.adopt(producer, producer, 0, 1)
    assert len(table) == 4
    table.truncate(0)
    assert len(table) == 0


def test_a_subscription_knows_what_it_was_given_in_whatever_order_it_comes() -> None:
    seen = Seen()
    assert [seen.has(1, 0, sequence, 5) for sequence in (10, 0, 5, 15)] == [False] * 4
    assert [seen.has(1, 0, sequence, 5) for sequence in (0, 5, 10, 15)] == [True] * 4
    assert not seen.has(1, 1, 0, 5) and not seen.has(2, 0, 0, 5)
