"""The trace of a seed: a digest of every event in order, and the last lines as text."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from xxhash import xxh3_64

from rostra.simulator.clock import Clock

LINES_KEPT = 50
PENDING_MAX = 500

TraceEntry = tuple[int, str, str, bytes]
"""Time, source, kind and content of an event."""

_pack = msgspec.msgpack.Encoder().encode


class Trace:
    """Records events. Two runs took the same course if their digests are equal."""

    def __init__(self, clock: Clock, show: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._digest = xxh3_64()
        self._pending: list[TraceEntry] = []
        """Entries not yet in the digest, which is updated in bulk because that is much cheaper."""
        self._details: list[object] = []
        """For each pending entry, what its line shows."""
        self._recent: list[tuple[TraceEntry, object]] = []
        """The latest entries that are in the digest already."""
        self._show = show

    def note(self, source: str, kind: str, content: bytes = b"", detail: object = "") -> None:
        """Records one event. `content` enters the digest; `detail` is formatted only if the line is printed."""
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
