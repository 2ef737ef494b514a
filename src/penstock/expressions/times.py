"""Functions of dates and timestamps; the session's time zone is always UTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.expressions import texts
from penstock.expressions.arrays import values_of, with_nulls
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, strict
from penstock.expressions.nodes import Node
from penstock.expressions.types import is_string, utc_type

__all__ = ["FUNCTIONS", "read_time"]

Build = Callable[[Call], Node]
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TIMESTAMP = pa.timestamp("us", "UTC")
_TRUNCATIONS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month",
    "mon": "month", "mm": "month", "week": "week", "day": "day", "dd": "day", "hour": "hour",
    "minute": "minute", "second": "second", "millisecond": "millisecond",
    "microsecond": "microsecond",
}  # fmt: skip
_FIXED_US = {
    "day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000,
    "millisecond": 1_000, "microsecond": 1,
}  # fmt: skip
_PATTERNS = {
    "yyyy": r"(?P<y>[0-9]{4})",
    "MM": r"(?P<m>[0-9]{2})",
    "dd": r"(?P<d>[0-9]{2})",
    "HH": r"(?P<H>[0-9]{2})",
    "mm": r"(?P<M>[0-9]{2})",
    "ss": r"(?P<S>[0-9]{2})",
    "SSSSSS": r"(?P<f>[0-9]{6})",
    "SSS": r"(?P<f>[0-9]{3})",
    "XXX": r"(?P<z>Z|[+-][0-9]{2}:[0-9]{2})",
}


def _time(call: Call, index: int) -> Node:
    """An argument that must be a date or a timestamp; a constant string is read as one."""
    node = call.args[index]
    if is_string(node.type) or t.is_null(node.type):
        node = call.builder.cast(node, _TIMESTAMP, call.trees[index])
    if t.is_timestamp(node.type):
        return coerced(node, utc_type(node.type))
    if not t.is_date32(node.type):
        call.refuse(
            f"argument {index + 1} must be a date or a timestamp, but it is {node.type}", index
        )
    return node


def _field(kernel: Callable[..., Any], *, clock: bool = False, **options: Any) -> Build:
    """A part of a date or time as int; ``clock``: a date has midnight there."""

    def build(call: Call) -> Node:
        call.arity(1)
        node = _time(call, 0)
        if clock and t.is_date32(node.type):
            node = coerced(node, pa.timestamp("us"))
        return coerced_down(strict(kernel, [node], pa.int64(), **options))

    return build


def coerced_down(node: Node) -> Node:
    """A small bigint as int, as Spark's date parts are."""
    return coerced(node, pa.int32())


def _second_fraction(call: Call) -> Node:
    """EXTRACT(SECOND ...): with the fraction, as decimal(8, 6)."""
    call.arity(1)
    node = _time(call, 0)
    node = coerced(node, pa.timestamp("us", "UTC"))
    return strict(_seconds, [node], pa.decimal128(8, 6))


def _seconds(values: Any) -> Any:
    ticks = pc.cast(values, pa.int64())
    micros = with_nulls(values_of(ticks) % 60_000_000, pa.int64(), ticks)
    wide = pc.cast(micros, pa.decimal256(30, 6))
    million = pc.cast(pa.scalar(1_000_000), pa.decimal256(19, 0))
    return pc.cast(pc.round(pc.divide(wide, million), ndigits=6), pa.decimal128(8, 6))


def _date_trunc(call: Call) -> Node:
    call.arity(2)
    unit = _TRUNCATIONS.get(call.constant_string(0).lower())
    if unit is None:
        call.refuse(f"the unit must be one of {', '.join(dict.fromkeys(_TRUNCATIONS.values()))}", 0)
    node = _time(call, 1)
    kind = call.args[1].type if t.is_timestamp(call.args[1].type) else _TIMESTAMP
    if t.is_date32(node.type):
        node = coerced(node, _TIMESTAMP)
    return coerced(strict(_floor, [node], node.type, unit=unit), kind)


def _floor(values: Any, unit: str) -> Any:
    """The start of the unit; units of a fixed length by integer arithmetic."""
    if unit not in _FIXED_US:
        return pc.floor_temporal(values, unit=unit)
    kind = values.type
    step = _FIXED_US[unit] * _PER_SECOND[kind.unit] // 1_000_000
    if step <= 1:
        return values
    ticks = values.cast(pa.int64())
    numbers = values_of(ticks)
    return with_nulls(numbers - numbers % step, pa.int64(), ticks).cast(kind)


def _unix(unit: str, *, truncate: bool = False) -> Build:
    """The number of seconds, milliseconds or microseconds since 1970, rounded down.

    ``truncate``: towards 1970 instead, as Spark's unix_timestamp does.
    """

    def build(call: Call) -> Node:
        call.arity(1)
        node = _time(call, 0)
        if t.is_date32(node.type):
            node = coerced(node, _TIMESTAMP)
        return strict(_ticks, [node], pa.int64(), fallible=True, unit=unit, truncate=truncate)

    return build


def _ticks(values: Any, unit: str, truncate: bool) -> Any:
    have, want = _PER_SECOND[values.type.unit], _PER_SECOND[unit]
    ticks = values.cast(pa.int64())
    if have == want:
        return ticks
    if have < want:
        return pc.multiply_checked(ticks, pa.scalar(want // have, pa.int64()))
    if truncate:
        return pc.divide(ticks, pa.scalar(have // want, pa.int64()))
    return with_nulls(values_of(ticks) // (have // want), pa.int64(), ticks)


def _from_ticks(unit: str) -> Build:
    """timestamp_seconds, timestamp_millis, timestamp_micros."""

    def build(call: Call) -> Node:
        call.arity(1)
        factor = 1_000_000 // _PER_SECOND[unit]
        return strict(_timestamp, [call.integer(0)], _TIMESTAMP, fallible=factor > 1, factor=factor)

    return build


def _timestamp(values: Any, factor: int) -> Any:
    if factor > 1:
        values = pc.multiply_checked(values, pa.scalar(factor, pa.int64()))
    return values.cast(_TIMESTAMP)


def read_time(call: Call, target: pa.DataType, *, attempt: bool = False) -> Node:
    """A text read by a pattern, the call's second argument."""
    return strict(
        texts.to_time,
        [call.string(0)],
        target,
        fallible=not attempt,
        target=target,
        attempt=attempt,
        pattern=_pattern(call, call.constant_string(1)),
    )


def _pattern(call: Call, text: str) -> str:
    """The regular expression of a Spark datetime pattern."""
    regex, i, used = "", 0, ""
    while i < len(text):
        token = next((word for word in _PATTERNS if text.startswith(word, i)), None)
        if token is not None and _PATTERNS[token][4] not in used:
            regex += _PATTERNS[token]
            used += _PATTERNS[token][4]
            i += len(token)
        elif text[i] == "'" and text.find("'", i + 1) > 0:
            end = text.find("'", i + 1)
            regex += "".join(f"[{c}]" if c != "^" else r"\^" for c in text[i + 1 : end])
            i = end + 1
        elif not text[i].isalpha() and text[i] not in "[]'\\^":
            regex += f"[{text[i]}]"
            i += 1
        else:
            call.refuse(
                f"the pattern {text!r} is not supported; use yyyy MM dd HH mm ss SSS SSSSSS XXX",
                1,
            )
    if "y" not in used:
        call.refuse(f"the pattern {text!r} has no year (yyyy)", 1)
    return f"^{regex}$"


def _date(call: Call, index: int) -> Node:
    node = _time(call, index)
    return node if t.is_date32(node.type) else call.builder.cast(node, pa.date32(), call.tree)


def _date_add(sign: str) -> Build:
    def build(call: Call) -> Node:
        call.arity(2)
        days = call.builder.cast(call.integer(1), pa.int32(), call.tree)
        return call.builder.calculated(sign, _date(call, 0), days, call.tree)

    return build


def _date_diff(call: Call) -> Node:
    call.arity(2)
    days = [coerced(_date(call, i), pa.int32()) for i in (0, 1)]
    return strict(pc.subtract_checked, days, pa.int32(), fallible=True)


def _week_day(values: Any) -> Any:
    """1 for Sunday to 7 for Saturday."""
    return pc.day_of_week(values, count_from_zero=False, week_start=7)


def _epoch_day(call: Call) -> Node:
    call.arity(1)
    return coerced(_date(call, 0), pa.int32())


FUNCTIONS: dict[str, Build] = {
    "year": _field(pc.year),
    "quarter": _field(pc.quarter),
    "month": _field(pc.month),
    "day": _field(pc.day),
    "dayofmonth": _field(pc.day),
    "dayofweek": _field(_week_day),
    "dayofyear": _field(pc.day_of_year),
    "weekofyear": _field(pc.iso_week),
    "hour": _field(pc.hour, clock=True),
    "minute": _field(pc.minute, clock=True),
    "second": _field(pc.second, clock=True),
    "date_trunc": _date_trunc,
    "unix_seconds": _unix("s"),
    "unix_millis": _unix("ms"),
    "unix_micros": _unix("us"),
    "timestamp_seconds": _from_ticks("s"),
    "timestamp_millis": _from_ticks("ms"),
    "timestamp_micros": _from_ticks("us"),
    "date_add": _date_add("+"),
    "date_sub": _date_add("-"),
    "datediff": _date_diff,
    "date_diff": _date_diff,
    "unix_date": _epoch_day,
    "extract second": _second_fraction,
}
for _name in ("year", "quarter", "month", "day", "hour", "minute"):
    FUNCTIONS[f"extract {_name}"] = FUNCTIONS[_name]
FUNCTIONS["extract week"] = FUNCTIONS["weekofyear"]
FUNCTIONS["extract doy"] = FUNCTIONS["dayofyear"]
FUNCTIONS["extract dow"] = FUNCTIONS["extract dayofweek"] = FUNCTIONS["dayofweek"]

truncated_seconds = _unix("s", truncate=True)
"""unix_timestamp of a date or a timestamp."""
