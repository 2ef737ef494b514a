"""Windows and aggregates as operators take them: by the names of columns that are there.

Users write columns (:mod:`penstock.api.functions`); :mod:`penstock.api.grouped` takes them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock.durations import Duration, duration_us
from penstock.errors import SettingsError
from penstock.expressions import Compiled

__all__ = [
    "Aggregate",
    "Computed",
    "Window",
    "avg",
    "count",
    "max",
    "mean",
    "min",
    "session_window",
    "sum",
    "window",
]


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of columns; ``column`` is ``"*"`` for a plain count of rows."""

    function: str
    column: str
    name: str
    others: tuple[str, ...] = ()
    options: tuple[Any, ...] = ()
    """Constants, such as the percentage of a percentile."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns it needs."""
        return () if self.column == "*" else (self.column, *self.others)

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, (self.column, *self.others, *self.options)))})"

    def alias(self, name: str) -> Aggregate:
        """The same aggregate under another name."""
        return replace(self, name=name)


@dataclass(frozen=True)
class Computed:
    """A value computed from aggregates, such as ``sum(a) / count(*)``."""

    name: str
    parts: tuple[Aggregate, ...]
    value: Compiled
    """Over the results of the parts, in their order."""

    def __str__(self) -> str:
        return self.value.text


@dataclass(frozen=True)
class Window:
    """Event-time windows: tumbling (slide = size), sliding, or sessions (``gap_us`` is set)."""

    column: str
    size_us: int
    slide_us: int
    start_us: int = 0
    gap_us: int | None = None
    name: str = "window"

    def alias(self, name: str) -> Window:
        """The same window under another column name."""
        return replace(self, name=name)


def count(col: str = "*") -> Aggregate:
    """Rows, or with a column the rows in which it is not null."""
    return Aggregate("count", col, "count" if col == "*" else f"count({col})")


def sum(col: str) -> Aggregate:
    """The sum; null when there is no value."""
    return Aggregate("sum", col, f"sum({col})")


def min(col: str) -> Aggregate:
    """The least value."""
    return Aggregate("min", col, f"min({col})")


def max(col: str) -> Aggregate:
    """The greatest value."""
    return Aggregate("max", col, f"max({col})")


def avg(col: str) -> Aggregate:
    """The mean."""
    return Aggregate("avg", col, f"avg({col})")


mean = avg


def window(
    timeColumn: str,
    windowDuration: Duration,
    slideDuration: Duration | None = None,
    startTime: Duration = 0,
) -> Window:
    """Tumbling windows, or sliding ones when ``slideDuration`` is given."""
    size = duration_us(windowDuration, "windowDuration")
    slide = size if slideDuration is None else duration_us(slideDuration, "slideDuration")
    if size <= 0 or slide <= 0 or slide > size:
        raise SettingsError(
            f"window: windowDuration ({windowDuration!r}) must be positive and slideDuration "
            f"({slideDuration!r}) positive and not longer than it"
        )
    return Window(timeColumn, size, slide, duration_us(startTime, "startTime") % slide)


def session_window(timeColumn: str, gapDuration: Duration) -> Window:
    """Sessions: a window per key ends when nothing came for ``gapDuration``."""
    gap = duration_us(gapDuration, "gapDuration")
    if gap <= 0:
        raise SettingsError(f"session_window: gapDuration must be positive, got {gapDuration!r}")
    return Window(timeColumn, gap, gap, gap_us=gap, name="session_window")
