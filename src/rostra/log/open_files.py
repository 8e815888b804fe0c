"""The files the log has open: the most recently used ones, never more than a bound."""

from __future__ import annotations

from collections import OrderedDict

from rostra.log.files import File, Files


class OpenFiles:
    """Readers on other threads use this beside the owner, without a lock.

    Each operation on the ordered dictionary is one step of the interpreter, and a file leaves it by being forgotten,
    not by being closed: its descriptor goes with the last reference, so a reader that still holds it reads on. Two
    threads that open the same file at once only open it twice.
    """

    def __init__(self, files: Files, open_max: int) -> None:
        self._files = files
        self._open_max = open_max
        self._open: OrderedDict[str, File] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str) -> File:
        file = self._open.get(path)
        if file is None:
            return self._keep(path, self._files.open(path))
        # Another thread may just have forgotten it; the reference in hand is still good.
        try:  # noqa: SIM105 - on the way of every append, where a context manager would cost three calls
            self._open.move_to_end(path)
        except KeyError:
            pass
        return file

    def create(self, path: str) -> File:
        self._open.pop(path, None)
        return self._keep(path, self._files.open(path, create=True))

    def forget(self, path: str) -> None:
        self._open.pop(path, None)

    def forget_all(self) -> None:
        self._open.clear()

    def _keep(self, path: str, file: File) -> File:
        # Never in place of another: that one would be closed in the middle of the step, where another thread may go on,
        # and what it forgets meanwhile would stay in the order for ever.
        kept = self._open.setdefault(path, file)
        while len(self._open) > self._open_max:
            self._open.popitem(last=False)
        return kept
