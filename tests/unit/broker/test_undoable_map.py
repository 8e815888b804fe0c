"""An undoable map is what replaying its log would make it, whatever was truncated meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rostra.broker.partition.undoable_map import UndoableMap

KEYS = st.sampled_from("abc")
PUT = st.tuples(st.just("put"), KEYS, st.one_of(st.none(), st.integers(0, 9)))
CUT = st.tuples(st.just("cut"), st.just(""), st.integers(0, 12))
COMMIT = st.tuples(st.just("commit"), st.just(""), st.integers(0, 12))


def replayed(log: list[tuple[str, int | None]]) -> list[tuple[str, int]]:
    rows: dict[str, int] = {}
    for key, value in log:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    return list(rows.items())


@given(st.lists(st.one_of(PUT, PUT, CUT, COMMIT), max_size=40))
def test_it_holds_the_rows_of_its_log_in_insertion_order(steps: list[tuple[str, str, int | None]]) -> None:
    ledger: UndoableMap[str, int] = UndoableMap()
    log: list[tuple[str, int | None]] = []
    committed = 0
    for what, key, number in steps:
        if what == "put":
            ledger.put(len(log), key, number)
            log.append((key, number))
        elif what == "cut":
            offset = max(committed, min(number or 0, len(log)))
            ledger.truncate(offset)
            del log[offset:]
        else:
            committed = max(committed, min(number or 0, len(log)))
            ledger.commit(committed)
        assert ledger.snapshot() == replayed(log)
    again: UndoableMap[str, int] = UndoableMap()
    again.restore(ledger.snapshot())
    assert again.snapshot() == ledger.snapshot()
