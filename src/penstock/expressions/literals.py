"""Constants: numbers with Spark's types, strings, intervals."""

from __future__ import annotations

import re
from decimal import Decimal
from math import isinf
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.expressions.nodes import Literal, Node

if TYPE_CHECKING:
    from penstock.expressions.build import ExpressionBuilder

__all__ = ["interval", "literal"]

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*([+-]?\s*[0-9]+(?:\.[0-9]+)?)\s+([a-zA-Z]+)")
_CLOCK = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<day>\d+) )?(?P<hour>\d+):(?P<minute>\d+)"
    r"(?::(?P<second>\d+(?:\.\d+)?))?\Z"
)


def literal(builder: ExpressionBuilder, tree: Any, negative: bool = False) -> Node:
    """A string, or a number: int, else bigint, else decimal; with an exponent double."""
    text = str(tree.this)
    if tree.is_string:
        return Literal(pa.scalar(text))
    sign = "-" if negative else ""
    if "e" in text.lower():
        double = float(sign + text)
        if isinf(double):
            builder.refuse(f"{text} is too large for a double", tree)
        return Literal(pa.scalar(double))
    if text.isdigit():
        value = int(sign + text)
        for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if -(2**bits) <= value < 2**bits:
                return Literal(pa.scalar(value, kind))
    try:
        number = Decimal(sign + text)
    except ArithmeticError:
        builder.refuse(f"cannot read the number {text}", tree)
    digits = len(number.as_tuple().digits)
    scale = max(0, -int(number.as_tuple().exponent))
    if max(digits, scale) > 38:
        builder.refuse(f"{text} has more than 38 digits; write it as a double (1e0)", tree)
    return Literal(pa.scalar(number, pa.decimal128(max(digits, scale, 1), scale)))


def interval(builder: ExpressionBuilder, tree: Any) -> Node:
    """``INTERVAL '5' MINUTE``, ``INTERVAL 5 MINUTES``, ``INTERVAL '1 day 2 hours'``."""
    from sqlglot import exp

    value, unit, sign = tree.this, tree.args.get("unit"), 1
    if isinstance(value, exp.Neg):
        value, sign = value.this, -1
    if not isinstance(value, exp.Literal):
        builder.refuse("an interval is written with a number, such as INTERVAL 5 MINUTES", tree)
    text = str(value.this).strip()
    micros = _span(text, unit) if isinstance(unit, exp.IntervalSpan) else None
    if micros is None and not isinstance(unit, exp.IntervalSpan):
        words = text if unit is None else f"{text} {unit.name}"
        micros = _micros(words)
    if micros is None:
        builder.refuse(
            f"cannot read the interval {text!r}{'' if unit is None else ' ' + str(unit)}; write a "
            "number of weeks, days, hours, minutes, seconds, milliseconds or microseconds (months "
            "and years have no fixed length)",
            tree,
        )
    return Literal(pa.scalar(sign * micros, pa.duration("us")))


def _micros(words: str) -> int | None:
    total, position = Decimal(0), 0
    while position < len(words):
        part = _PART.match(words, position)
        unit = part and part[2].lower().removesuffix("s")
        if part is None or unit not in _UNITS_US:
            return None
        total += Decimal(part[1].replace(" ", "")) * _UNITS_US[unit]
        position = part.end()
    return int(total) if words.strip() else None


def _span(text: str, span: Any) -> int | None:
    """``INTERVAL '1 02:03:04' DAY TO SECOND`` and shorter ones."""
    clock = _CLOCK.match(text)
    units = (span.this.name.lower(), span.expression.name.lower())
    if clock is None or units not in (
        ("day", "second"),
        ("day", "minute"),
        ("hour", "minute"),
        ("hour", "second"),
    ):
        return None
    total = sum(
        Decimal(clock[unit] or 0) * _UNITS_US[unit] for unit in ("day", "hour", "minute", "second")
    )
    return int(total) * (-1 if clock["sign"] == "-" else 1)
