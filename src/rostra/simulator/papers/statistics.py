"""Means and percentiles of samples."""

from __future__ import annotations

from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(ascending: Sequence[float], share: float) -> float:
    """The value below which a share of the samples lies, between the two nearest ones."""
    if not ascending:
        return 0.0
    place = share * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (place - below)
