"""A dictionary that follows the log: changes of truncated batches are undone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class UndoableRow(NamedTuple, Generic[V]):
    """`number` is the insertion order of the key, to restore its position when a removal is undone."""

    number: int
    value: V


class UndoableMap(Generic[K, V]):
    """The rows as of the end of the log. Copies with the same log have the same rows in the same order."""

    def __init__(self) -> None:
        self._rows: dict[K, UndoableRow[V]] = {}
        self._undo: deque[tuple[int, K, UndoableRow[V] | None]] = deque()
        self._numbered = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def get(self, key: K) -> V | None:
        row = self._rows.get(key)
        return None if row is None else row.value

    def items(self) -> Iterator[tuple[K, V]]:
        """In insertion order."""
        for key, row in self._rows.items():
            yield key, row.value

    def put(self, base: int, key: K, value: V | None) -> None:
        """Sets the key's value by the batch at `base`, at the log's end; None removes it."""
        before = self._rows.get(key)
        if value is None:
            if before is None:
                return
            del self._rows[key]
        else:
            self._numbered += before is None
            self._rows[key] = UndoableRow(self._numbered if before is None else before.number, value)
        self._undo.append((base, key, before))

    def commit(self, offset: int) -> None:
        """Changes below this offset need no undo any more."""
        undo = self._undo
        while undo and undo[0][0] < offset:
            undo.popleft()

    def truncate(self, offset: int) -> None:
        """Undoes the changes at or above `offset`, where the log ends now."""
        brought_back = False
        while self._undo and self._undo[-1][0] >= offset:
            _, key, before = self._undo.pop()
            if before is None:
                del self._rows[key]
            else:
                brought_back = brought_back or key not in self._rows
                self._rows[key] = before
        if brought_back:
            self._rows = dict(sorted(self._rows.items(), key=lambda item: item[1].number))

    def snapshot(self) -> list[tuple[K, V]]:
        return list(self.items())

    def restore(self, rows: list[tuple[K, V]]) -> None:
        """Replaces all rows; this cannot be undone."""
        self._rows = {key: UndoableRow(number, value) for number, (key, value) in enumerate(rows)}
        self._numbered = len(rows)
        self._undo.clear()
