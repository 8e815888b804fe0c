"""A bounded cache of the files that the log has open, most recently used first."""

from __future__ import annotations

from collections import OrderedDict

from rostra.log.files import File, Files


class OpenFiles:
    """Used by readers on other threads and by the owner at the same time, without a lock.

    Each operation on the ordered dictionary is atomic in the interpreter. A file that leaves the cache is not closed:
    its descriptor is closed with the last reference, so a reader that holds one can go on. If two threads open the same
    file at the same time it is merely opened twice.
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
        # Another thread may just have evicted it; this reference stays valid.
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
        # setdefault, never replace: replacing closes the other file inside the operation, where another thread may run,
        # and a path that it evicts meanwhile would stay in the order for ever.
        kept = self._open.setdefault(path, file)
        while len(self._open) > self._open_max:
            self._open.popitem(last=False)
        return kept
