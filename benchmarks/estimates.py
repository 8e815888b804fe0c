"""Medians with confidence intervals."""

import random
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

RESAMPLES = 2000


class Estimate(msgspec.Struct, frozen=True):
    """A median with the interval that 95 % of resampled medians fall into."""

    median: float
    low: float
    high: float
    count: int


def median_estimate(values: Sequence[float]) -> Estimate:
    generator = random.Random(0)
    return _estimate(median(values), len(values), lambda: median(_resample(generator, values)))


def ratio_estimate(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The ratio of two medians, both resampled."""
    generator = random.Random(0)

    def resampled() -> float:
        return median(_resample(generator, ours)) / median(_resample(generator, theirs))

    count = min(len(ours), len(theirs))
    return _estimate(median(ours) / median(theirs), count, resampled)


def percentile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def _estimate(center: float, count: int, resampled: Callable[[], float]) -> Estimate:
    draws = sorted(resampled() for _ in range(RESAMPLES))
    low, high = draws[int(RESAMPLES * 0.025)], draws[int(RESAMPLES * 0.975)]
    return Estimate(median=center, low=low, high=high, count=count)


def _resample(generator: random.Random, values: Sequence[float]) -> list[float]:
    return generator.choices(values, k=len(values))
