"""What happened in a seed, in order: a digest of everything, and the last lines for people."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from xxhash import xxh3_64

from rostra.simulator.clock import Clock

LINES_KEPT = 50
GATHERED_MAX = 500

Entry = tuple[int, str, str, bytes]
"""When, who, what, and the bytes of it."""

_pack = msgspec.msgpack.Encoder().encode


class Trace:
    """Two runs of a seed are the same if their digests are: every event enters it with its time and its bytes."""

    def __init__(self, clock: Clock, show: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._digest = xxh3_64()
        self._gathered: list[Entry] = []
        """What the digest does not have yet: many at once cost a fraction of one by one."""
        self._said: list[object] = []
        """Beside them, what is for the eye."""
        self._before: list[tuple[Entry, object]] = []
        """The last of those that it has."""
        self._show = show

    def note(self, who: str, kind: str, content: bytes = b"", said: object = "") -> None:
        """`content` enters the digest; `said` is for the eye, and is put into words only when somebody looks."""
        gathered = self._gathered
        gathered.append((self._clock.now_us, who, kind, content))
        self._said.append(said)
        if len(gathered) >= GATHERED_MAX:
            self._digest_gathered()
        if self._show is not None:
            self._show(_line((self._clock.now_us, who, kind, content), said))

    def _digest_gathered(self) -> None:
        self._digest.update(_pack(self._gathered))
        self._before = self._latest()
        self._gathered.clear()
        self._said.clear()

    def digest(self) -> str:
        if self._gathered:
            self._digest_gathered()
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        return [_line(*noted) for noted in (self._before + self._latest())[-LINES_KEPT:]]

    def _latest(self) -> list[tuple[Entry, object]]:
        return list(zip(self._gathered[-LINES_KEPT:], self._said[-LINES_KEPT:], strict=True))


def _line(entry: Entry, said: object) -> str:
    now_us, who, kind, content = entry
    text = str(said) if said else f"{len(content)} bytes" if content else ""
    return f"{now_us / 1e6:11.6f}  {who:<10} {kind:<10} {text[:300]}"
