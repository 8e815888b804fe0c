"""What happened in a seed, in order: a digest of everything, and the last lines for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
from xxhash import xxh3_64

from rostra.simulator.clock import Clock

LINES_KEPT = 50
GATHERED_MAX = 500

_pack = msgspec.msgpack.Encoder().encode


class Trace:
    """Two runs of a seed are the same if their digests are: every event enters it with its time and its bytes."""

    def __init__(self, clock: Clock, show: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._digest = xxh3_64()
        self._gathered: list[tuple[int, str, str, bytes]] = []
        """What the digest does not have yet: many at once cost a fraction of one by one."""
        self._recent: deque[tuple[int, str, str, object]] = deque(maxlen=LINES_KEPT)
        self._show = show

    def note(self, who: str, kind: str, content: bytes = b"", said: object = "") -> None:
        """`content` enters the digest; `said` is for the eye, and is put into words only when somebody looks."""
        now_us = self._clock.now_us
        gathered = self._gathered
        gathered.append((now_us, who, kind, content))
        if len(gathered) >= GATHERED_MAX:
            self._digest.update(_pack(gathered))
            gathered.clear()
        self._recent.append((now_us, who, kind, said or content))
        if self._show is not None:
            self._show(_line(self._recent[-1]))

    def digest(self) -> str:
        if self._gathered:
            self._digest.update(_pack(self._gathered))
            self._gathered.clear()
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        return [_line(entry) for entry in self._recent]


def _line(entry: tuple[int, str, str, object]) -> str:
    now_us, who, kind, said = entry
    text = f"{len(said)} bytes" if isinstance(said, bytes) and said else str(said or "")
    return f"{now_us / 1e6:11.6f}  {who:<10} {kind:<10} {text[:300]}"
