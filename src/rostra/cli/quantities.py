"""Parses and formats sizes, durations and times such as 64MiB, 7d, 500ms."""

from __future__ import annotations

import re
from datetime import datetime

_BYTES = {
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 1 << 10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 1 << 20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 1 << 30,
    "t": 10**12,
    "tb": 10**12,
    "tib": 1 << 40,
}
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_bytes(written: str) -> int:
    """A number of bytes, written with a unit such as B, kB, MiB or GiB; only zero needs none."""
    return _parse(written, _BYTES, "a size such as 500B, 64MiB or 2GB")


def parse_duration_ms(written: str) -> int:
    """A duration in milliseconds, written with a unit; only zero needs none."""
    return _parse(written, _MILLISECONDS, "a duration such as 500ms, 30s, 12h or 7d")


def parse_moment_us(written: str, now_us: int) -> int:
    """A point in time in microseconds since 1970, given as ISO 8601 or relative to now, as -10m."""
    if written.startswith("-"):
        return now_us - 1000 * _parse(written[1:], _MILLISECONDS, "a duration such as -10m or -2h")
    try:
        return round(datetime.fromisoformat(written).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise ValueError(f"{written!r} is not a time such as 2026-11-16T10:00:00Z or -10m") from None


def show_bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def show_duration(duration_ms: int) -> str:
    for unit, size in reversed(_MILLISECONDS.items()):
        if duration_ms and duration_ms % size == 0:
            return f"{duration_ms // size}{unit}"
    return f"{duration_ms}ms"


def _parse(written: str, units: dict[str, int], expected: str) -> int:
    if written.strip().isdecimal():
        if int(written) == 0:
            return 0
        raise ValueError(f"{written!r} has no unit: write {expected}")
    found = _AMOUNT.fullmatch(written.strip())
    if found is None or found[2].lower() not in units:
        raise ValueError(f"{written!r} is not {expected}")
    number, unit = found[1], units[found[2].lower()]
    return round(float(number) * unit) if "." in number else int(number) * unit
