"""Durations as PySpark writes them: ``"5 seconds"``, ``"1 minute 30 seconds"``, ``"100ms"``."""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite

from penstock.errors import SettingsError

__all__ = ["Duration", "duration_us"]

Duration = str | int | float | timedelta
"""A string with units, a number of seconds, or a timedelta."""

_UNITS_US = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")


def duration_us(value: Duration, what: str = "duration") -> int:
    """The duration in microseconds.

    >>> duration_us("1 minute 30 seconds"), duration_us(0.5), duration_us("100ms")
    (90000000, 500000, 100000)
    """
    if isinstance(value, timedelta):
        total = round(value.total_seconds() * 1_000_000)
    elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        total = round(value * 1_000_000)
    elif isinstance(value, str):
        total = _parse_us(value, what)
    else:
        raise SettingsError(f"{what}: expected a duration like '5 seconds', got {value!r}")
    if total < 0:
        raise SettingsError(f"{what}: a duration cannot be negative, got {value!r}")
    return total


def _parse_us(text: str, what: str) -> int:
    rest = text.strip().lower().removeprefix("interval ")
    total, position = 0.0, 0
    while position < len(rest):
        part = _PART.match(rest, position)
        unit = part and (part[2] if part[2] in _UNITS_US else part[2].removesuffix("s"))
        if not part or unit not in _UNITS_US:
            break
        total += float(part[1]) * _UNITS_US[unit]
        position = part.end()
    if not rest or position < len(rest):
        raise SettingsError(
            f"{what}: cannot read the duration {text!r}; write a number and a unit, such as "
            "'5 seconds' or '1 minute 30 seconds'"
        )
    return round(total)
