"""What happened in a seed, in order: a digest of everything, and the last lines for people."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from xxhash import xxh3_64

from rostra.simulator.clock import Clock

LINES_KEPT = 50
GATHERED_MAX = 500

Entry = tuple[int, str, str, bytes, object]

_pack = msgspec.msgpack.Encoder().encode


class Trace:
    """Two runs of a seed are the same if their digests are: every event enters it with its time and its bytes."""

    def __init__(self, clock: Clock, show: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._digest = xxh3_64()
        self._gathered: list[Entry] = []
        """What the digest does not have yet: many at once cost a fraction of one by one."""
        self._before: list[Entry] = []
        """The last of those that it has."""
        self._show = show

    def note(self, who: str, kind: str, content: bytes = b"", said: object = "") -> None:
        """`content` enters the digest; `said` is for the eye, and is put into words only when somebody looks."""
        gathered = self._gathered
        gathered.append((self._clock.now_us, who, kind, content, said))
        if len(gathered) >= GATHERED_MAX:
            self._digest_gathered()
        if self._show is not None:
            self._show(_line((self._clock.now_us, who, kind, content, said)))

    def _digest_gathered(self) -> None:
        self._digest.update(_pack([entry[:4] for entry in self._gathered]))
        self._before = self._gathered[-LINES_KEPT:]
        self._gathered.clear()

    def digest(self) -> str:
        if self._gathered:
            self._digest_gathered()
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        return [_line(entry) for entry in (self._before + self._gathered)[-LINES_KEPT:]]


def _line(entry: Entry) -> str:
    now_us, who, kind, content, said = entry
    text = str(said) if said else f"{len(content)} bytes" if content else ""
    return f"{now_us / 1e6:11.6f}  {who:<10} {kind:<10} {text[:300]}"
