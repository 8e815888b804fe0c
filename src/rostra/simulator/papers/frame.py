"""What every paper has: rows of published and own figures, plots, a verdict, and statistics of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

Progress = Callable[[float, str], None]
"""The share that is done, and what is being done."""


def silent(_share: float, _what: str) -> None:
    """Progress that nobody watches."""


class Row(msgspec.Struct, frozen=True):
    """One figure. Without bounds it is shown and not judged."""

    case: str
    quantity: str
    published: float | None
    ours: float
    lower: float | None = None
    upper: float | None = None

    @property
    def judged(self) -> bool:
        return self.lower is not None or self.upper is not None

    @property
    def passed(self) -> bool:
        above = self.lower is None or self.ours >= self.lower
        return above and (self.upper is None or self.ours <= self.upper)


def near(case: str, quantity: str, published: float, ours: float, share: float, least: float = 0.0) -> Row:
    """Passes within a share of the published figure; `least` is the width where that would be nothing."""
    width = max(abs(published) * share, least)
    return Row(case, quantity, published, ours, published - width, published + width)


def at_most(case: str, quantity: str, bound: float, ours: float, published: float | None = None) -> Row:
    return Row(case, quantity, bound if published is None else published, ours, None, bound)


def shown(case: str, quantity: str, ours: float, published: float | None = None) -> Row:
    return Row(case, quantity, published, ours)


class Plot(msgspec.Struct, frozen=True):
    name: str
    """Of the file, without its suffix."""
    title: str
    svg: str


class Result(msgspec.Struct, frozen=True):
    rows: tuple[Row, ...]
    plots: tuple[Plot, ...] = ()

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)


class Paper(msgspec.Struct, frozen=True):
    """A published result that can be measured again."""

    name: str
    title: str
    source: str
    published: str
    """What was measured and published, in a few sentences."""
    differences: str
    """How our experiment differs, and why figures may."""
    run: Callable[[int, Progress], Result]
    """Measures at full scale with so many processes."""


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
