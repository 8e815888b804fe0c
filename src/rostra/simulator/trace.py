"""What happened in a seed, in order: a digest of everything, and the last lines for people."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from xxhash import xxh3_64

from rostra.simulator.clock import Clock

LINES_KEPT = 50
PENDING_MAX = 500

TraceEntry = tuple[int, str, str, bytes]
"""When, who, what, and the bytes of it."""

_pack = msgspec.msgpack.Encoder().encode


class Trace:
    """Two runs of a seed are the same if their digests are: every event enters it with its time and its bytes."""

    def __init__(self, clock: Clock, show: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._digest = xxh3_64()
        self._pending: list[TraceEntry] = []
        """What the digest does not have yet: many at once cost a fraction of one by one."""
        self._details: list[object] = []
        """Beside them, what is for the eye."""
        self._recent: list[tuple[TraceEntry, object]] = []
        """The last of those that it has."""
        self._show = show

    def note(self, source: str, kind: str, content: bytes = b"", detail: object = "") -> None:
        """`content` enters the digest; `said` is for the eye, and is put into words only when somebody looks."""
        pending = self._pending
        pending.append((self._clock.now_us, source, kind, content))
        self._details.append(detail)
        if len(pending) >= PENDING_MAX:
            self._digest_pending()
        if self._show is not None:
            self._show(_line((self._clock.now_us, source, kind, content), detail))

    def _digest_pending(self) -> None:
        self._digest.update(_pack(self._pending))
        self._recent = self._latest()
        self._pending.clear()
        self._details.clear()

    def digest(self) -> str:
        if self._pending:
            self._digest_pending()
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        return [_line(*noted) for noted in (self._recent + self._latest())[-LINES_KEPT:]]

    def _latest(self) -> list[tuple[TraceEntry, object]]:
        return list(zip(self._pending[-LINES_KEPT:], self._details[-LINES_KEPT:], strict=True))


def _line(entry: TraceEntry, detail: object) -> str:
    now_us, source, kind, content = entry
    text = str(detail) if detail else f"{len(content)} bytes" if content else ""
    return f"{now_us / 1e6:11.6f}  {source:<10} {kind:<10} {text[:300]}"
