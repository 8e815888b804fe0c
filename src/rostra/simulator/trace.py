"""What happened in a seed, in order: a digest of everything, and the last lines for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from xxhash import xxh3_64

from rostra.simulator.clock import Clock

LINES_KEPT = 50


class Trace:
    """Two runs of a seed are the same if their digests are: every event enters it with its time and its bytes."""

    def __init__(self, clock: Clock, show: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._digest = xxh3_64()
        self._recent: deque[tuple[int, str, str, object]] = deque(maxlen=LINES_KEPT)
        self._show = show
        self._heads: dict[tuple[str, str], bytes] = {}

    def note(self, who: str, kind: str, content: bytes = b"", said: object = "") -> None:
        """`content` enters the digest; `said` is for the eye, and is put into words only when somebody looks."""
        now_us = self._clock.now_us
        head = self._heads.get((who, kind))
        if head is None:
            head = self._heads[who, kind] = f"{who} {kind} ".encode()
        self._digest.update(b"%d %b%b" % (now_us, head, content))
        entry = (now_us, who, kind, said or content)
        self._recent.append(entry)
        if self._show is not None:
            self._show(_line(entry))

    def digest(self) -> str:
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        return [_line(entry) for entry in self._recent]


def _line(entry: tuple[int, str, str, object]) -> str:
    now_us, who, kind, said = entry
    text = f"{len(said)} bytes" if isinstance(said, bytes) and said else str(said or "")
    return f"{now_us / 1e6:11.6f}  {who:<10} {kind:<10} {text[:300]}"
