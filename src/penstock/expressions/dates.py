"""More functions of dates and timestamps: calendar arithmetic, parts, formats, time zones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.errors import DataError
from penstock.expressions import times
from penstock.expressions.arrays import values_of, with_nulls
from penstock.expressions.call import Call
from penstock.expressions.coerce import strict
from penstock.expressions.lists import arrays_of
from penstock.expressions.nodes import Literal, Node
from penstock.expressions.types import is_string

__all__ = [
    "FUNCTIONS", "MONTHS", "MONTH_NAMES", "WEEKDAYS", "month_index", "named_by",
    "timestamp_argument", "weekday_of",
]  # fmt: skip

Build = Callable[[Call], Node]
_DATE, _TIMESTAMP, _NAIVE = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
_DAY_US = 86_400_000_000
_UNITS_US = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000, "DAY": _DAY_US, "WEEK": 7 * _DAY_US,
}  # fmt: skip
_UNITS_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def _date(call: Call, index: int) -> Node:
    """An argument as a date; a text is read as one."""
    node = call.args[index]
    if not (t.is_date32(node.type) or t.is_timestamp(node.type)) and not is_string(node.type):
        call.refuse(f"argument {index + 1} must be a date, but it is {node.type}", index)
    return call.builder.cast(node, _DATE, call.trees[index])


def timestamp_argument(call: Call, index: int) -> Node:
    """An argument as a timestamp in UTC, in microseconds."""
    node = call.args[index]
    if not (t.is_date32(node.type) or t.is_timestamp(node.type)) and not is_string(node.type):
        call.refuse(f"argument {index + 1} must be a timestamp, but it is {node.type}", index)
    return call.builder.cast(node, _TIMESTAMP, call.trees[index])


def _days(values: Any) -> Any:
    return values_of(values.cast(pa.int32())).astype(np.int64)


def _month_of(days: Any) -> tuple[Any, Any]:
    """The months since 1970 of days since 1970, and the day in the month from 0."""
    months = days.astype("datetime64[D]").astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    return months.astype(np.int64), days - first


def _first_day(months: Any) -> Any:
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _moved(days: Any, months: Any) -> Any:
    """Days moved by months; past the end of a month, its last day."""
    old, inside = _month_of(days)
    new = old + months
    first = _first_day(new)
    return first + np.minimum(inside, _first_day(new + 1) - first - 1)


def _dates(days: Any, *like: Any) -> pa.Array:
    return with_nulls(days.astype(np.int32), pa.int32(), *like).cast(_DATE)


def _add_months(call: Call) -> Node:
    call.arity(2)
    return strict(_months_added, [_date(call, 0), call.integer(1)], _DATE)


def _months_added(values: Any, months: Any) -> pa.Array:
    values, months = arrays_of(values, months)
    return _dates(_moved(_days(values), values_of(months)), values, months)


def _last_day(call: Call) -> Node:
    call.arity(1)
    return strict(_month_end, [_date(call, 0)], _DATE)


def _month_end(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    months, _ = _month_of(_days(values))
    return _dates(_first_day(months + 1) - 1, values)


_WEEK = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
WEEKDAYS = ["MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY"]
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
MONTH_NAMES = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
]  # fmt: skip


def _next_day(call: Call) -> Node:
    call.arity(2)
    name = call.constant_string(1).upper()
    known = {word: i for i, day in enumerate(WEEKDAYS) for word in (day, day[:3], day[:2])}
    if name not in known:
        call.refuse(f"{name!r} is no day of the week; write it as Mon or Monday", 1)
    return strict(_following, [_date(call, 0)], _DATE, weekday=known[name])


def _following(values: Any, weekday: int) -> pa.Array:
    (values,) = arrays_of(values)
    days = _days(values)
    # Day 0, 1970-01-01, was a Thursday.
    return _dates(days + (weekday - 3 - days - 1) % 7 + 1, values)


def _name_of(names: list[str], place: Callable[[Any], Any]) -> Build:
    def build(call: Call) -> Node:
        call.arity(1)
        return strict(named_by, [_date(call, 0)], pa.string(), names=tuple(names), place=place)

    return build


def named_by(values: Any, names: tuple[str, ...], place: Callable[[Any], Any]) -> pa.Array:
    (values,) = arrays_of(values)
    index = with_nulls(place(_days(values)), pa.int64(), values)
    return pa.array(names).take(index)


def weekday_of(days: Any) -> Any:
    return (days + 3) % 7


def month_index(days: Any) -> Any:
    return _month_of(days)[0] % 12


def _weekday(call: Call) -> Node:
    call.arity(1)
    return strict(_weekdays, [_date(call, 0)], pa.int32())


def _weekdays(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    return with_nulls(weekday_of(_days(values)).astype(np.int32), pa.int32(), values)


def _months_between(call: Call) -> Node:
    call.arity(2, 3)
    rounded = bool(call.constant(2, True))
    nodes = [timestamp_argument(call, 0), timestamp_argument(call, 1)]
    return strict(_between, nodes, pa.float64(), rounded=rounded)


def _between(one: Any, other: Any, rounded: bool) -> pa.Array:
    """Whole months on the same day or between ends of months; else with a 31st per day."""
    one, other = arrays_of(one, other)
    sides = []
    for side in (one, other):
        micros = values_of(side.cast(pa.int64()))
        days = micros // _DAY_US
        months, inside = _month_of(days)
        last = _first_day(months + 1) - 1 == days
        sides.append((months, inside, last, (micros - days * _DAY_US) // 1_000_000))
    (m1, d1, e1, s1), (m2, d2, e2, s2) = sides
    whole = (m1 - m2).astype(np.float64)
    seconds = (d1 - d2) * 86_400 + s1 - s2
    part = whole + seconds / (31 * 86_400.0)
    if rounded:
        part = np.floor(np.abs(part) * 1e8 + 0.5) / 1e8 * np.sign(part)
    return with_nulls(np.where((d1 == d2) | (e1 & e2), whole, part), pa.float64(), one, other)


def _trunc(call: Call) -> Node:
    call.arity(2)
    unit = call.constant_string(1).upper()
    known = {
        **dict.fromkeys(["YEAR", "YYYY", "YY"], "year"),
        "QUARTER": "quarter",
        **dict.fromkeys(["MONTH", "MM", "MON"], "month"),
        "WEEK": "week",
    }
    if unit not in known:
        call.refuse("the unit is year, quarter, month or week", 1)
    return strict(_floor, [_date(call, 0)], _DATE, unit=known[unit])


def _floor(values: Any, unit: str) -> Any:
    return pc.floor_temporal(values, unit=unit)


def _make_date(call: Call) -> Node:
    call.arity(3)
    nodes = [call.integer(i) for i in range(3)]
    return strict(_date_of, nodes, _DATE, fallible=True)


def _checked_days(year: Any, month: Any, day: Any) -> tuple[Any, Any]:
    good = (month >= 1) & (month <= 12) & (day >= 1) & (np.abs(year) <= 9999)
    months = np.where(good, (year - 1970) * 12 + month - 1, 0)
    first = _first_day(months)
    return first + day - 1, good & (first + day - 1 < _first_day(months + 1))


def _date_of(*values: Any) -> pa.Array:
    arrays = arrays_of(*values)
    days, good = _checked_days(*(values_of(one) for one in arrays))
    known = np.logical_and.reduce([np.asarray(one.is_valid()) for one in arrays])
    if (known & ~good).any():
        row = int(np.flatnonzero(known & ~good)[0])
        raise DataError(f"there is no date of {[one[row].as_py() for one in arrays]}")
    return _dates(np.where(known, days, 0), *arrays)


def _make_timestamp(kind: pa.DataType, *, attempt: bool = False) -> Build:
    """From year, month, day, hour, minute, seconds."""

    def build(call: Call) -> Node:
        call.arity(6, 6)
        whole = [call.integer(i) for i in range(5)]
        seconds = call.builder.cast(call.number(5), pa.decimal128(16, 6), call.tree)
        options = {"target": kind, "attempt": attempt}
        return strict(_timestamp_of, [*whole, seconds], kind, fallible=not attempt, **options)

    return build


def _timestamp_of(*values: Any, target: pa.DataType, attempt: bool) -> pa.Array:
    arrays = arrays_of(*values)
    micros = pc.cast(
        pc.multiply(arrays[5], pa.scalar(1_000_000).cast(pa.decimal128(19, 0))).cast(
            pa.decimal256(40, 6)
        ),
        pa.decimal256(40, 0),
    ).cast(pa.int64(), safe=False)
    year, month, day, hour, minute = (values_of(one) for one in arrays[:5])
    days, good = _checked_days(year, month, day)
    second = values_of(micros)
    inside = (hour >= 0) & (hour < 24) & (minute >= 0) & (minute < 60) & (second >= 0)
    good = good & inside & (second <= 60_000_000)
    made = days * _DAY_US + (hour * 60 + minute) * 60_000_000 + second
    known = np.logical_and.reduce([np.asarray(one.is_valid()) for one in arrays])
    if not attempt and (known & ~good).any():
        row = int(np.flatnonzero(known & ~good)[0])
        raise DataError(f"there is no time of {[str(one[row].as_py()) for one in arrays]}")
    return pa.array(made, pa.int64(), mask=~(known & good)).cast(target)


def _make_interval(call: Call) -> Node:
    """Days, hours, minutes and seconds."""
    call.arity(0, 4)
    nodes = [call.integer(i) for i in range(min(len(call.args), 3))]
    if len(call.args) == 4:
        nodes.append(call.builder.cast(call.number(3), pa.decimal128(18, 6), call.tree))
    if not nodes:
        return Literal(pa.scalar(0, pa.duration("us")))
    return strict(_interval_of, nodes, pa.duration("us"), fallible=True)


def _interval_of(*values: Any) -> pa.Array:
    arrays = arrays_of(*values)
    total: Any = pa.array(np.zeros(len(arrays[0]), np.int64))
    for one, factor in zip(arrays, (_DAY_US, 3_600_000_000, 60_000_000), strict=False):
        total = pc.add_checked(total, pc.multiply_checked(one, factor))
    if len(arrays) == 4:
        million = pa.scalar(1_000_000).cast(pa.decimal128(19, 0))
        micros = pc.multiply(arrays[3], million).cast(pa.decimal256(40, 6))
        total = pc.add_checked(total, micros.cast(pa.decimal256(40, 0)).cast(pa.int64()))
    return total.cast(pa.duration("us"))


def _unit(call: Call, index: int) -> str:
    unit = call.constant_string(index).upper().removesuffix("S")
    if unit not in _UNITS_US and unit not in _UNITS_MONTHS:
        call.refuse(f"the unit is one of {', '.join([*_UNITS_US, *_UNITS_MONTHS]).lower()}", index)
    return unit


def _timestamp_add(call: Call) -> Node:
    call.arity(3)
    unit = _unit(call, 0)
    return strict(
        _added, [timestamp_argument(call, 2), call.integer(1)], _TIMESTAMP, fallible=True, unit=unit
    )


def _added(values: Any, count: Any, unit: str) -> pa.Array:
    values, count = arrays_of(values, count)
    if unit in _UNITS_US:
        moved = pc.multiply_checked(count, pa.scalar(_UNITS_US[unit], pa.int64()))
        return pc.add_checked(values, moved.cast(pa.duration("us")))
    micros = values_of(values.cast(pa.int64()))
    days = micros // _DAY_US
    made = _moved(days, values_of(count) * _UNITS_MONTHS[unit]) * _DAY_US + micros % _DAY_US
    return with_nulls(made, pa.int64(), values, count).cast(_TIMESTAMP)


def _timestamp_diff(call: Call) -> Node:
    call.arity(3)
    unit = _unit(call, 0)
    nodes = [timestamp_argument(call, 1), timestamp_argument(call, 2)]
    return strict(_difference, nodes, pa.int64(), unit=unit)


def _difference(start: Any, end: Any, unit: str) -> pa.Array:
    """Whole units from one to the other, rounded towards zero."""
    start, end = arrays_of(start, end)
    a, b = (values_of(one.cast(pa.int64())) for one in (start, end))
    if unit in _UNITS_US:
        step = _UNITS_US[unit]
        made = np.abs(b - a) // step * np.sign(b - a)
    else:
        (m1, d1), (m2, d2) = (_month_of(one // _DAY_US) for one in (a, b))
        first, second = (d * _DAY_US + one % _DAY_US for d, one in ((d1, a), (d2, b)))
        months = m2 - m1
        months = months - ((months > 0) & (second < first)) + ((months < 0) & (second > first))
        made = np.abs(months) // _UNITS_MONTHS[unit] * np.sign(months)
    return with_nulls(made, pa.int64(), start, end)


def _part(call: Call) -> Node:
    """extract(field, source)."""
    from penstock.expressions.functions import build_call

    call.arity(2)
    field = call.constant_string(0).lower().removesuffix("s")
    field = _FIELDS.get(field, field)
    if f"extract {field}" not in FUNCTIONS and f"extract {field}" not in times.FUNCTIONS:
        call.refuse(f"there is no field {field!r}", 0)
    return build_call(call.builder, f"extract {field}", call.trees[1:], call.tree)


_FIELDS = {
    "y": "year", "yr": "year", "mon": "month", "d": "day", "h": "hour", "hr": "hour",
    "min": "minute", "m": "minute", "sec": "second", "qtr": "quarter", "w": "week",
    "dayofweek": "dow", "dayofyear": "doy",
}  # fmt: skip


def _iso_weekday(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    return with_nulls((weekday_of(_days(values)) + 1).astype(np.int32), pa.int32(), values)


def _iso_year(values: Any) -> pa.Array:
    return pc.iso_year(values).cast(pa.int32())


def _on_date(kernel: Callable[..., Any], kind: pa.DataType) -> Build:
    def build(call: Call) -> Node:
        call.arity(1)
        return strict(kernel, [_date(call, 0)], kind)

    return build


def _from_days(call: Call) -> Node:
    call.arity(1)
    return strict(_as_date, [call.int32(0)], _DATE)


def _as_date(values: Any) -> Any:
    return pc.cast(values, _DATE)


FUNCTIONS: dict[str, Build] = {
    "add_months": _add_months,
    "last_day": _last_day,
    "next_day": _next_day,
    "months_between": _months_between,
    "trunc": _trunc,
    "dayname": _name_of([name.capitalize()[:3] for name in WEEKDAYS], weekday_of),
    "monthname": _name_of(MONTHS, month_index),
    "weekday": _weekday,
    "make_date": _make_date,
    "make_timestamp": _make_timestamp(_TIMESTAMP),
    "make_timestamp_ltz": _make_timestamp(_TIMESTAMP),
    "make_timestamp_ntz": _make_timestamp(_NAIVE),
    "try_make_timestamp": _make_timestamp(_TIMESTAMP, attempt=True),
    "try_make_timestamp_ltz": _make_timestamp(_TIMESTAMP, attempt=True),
    "try_make_timestamp_ntz": _make_timestamp(_NAIVE, attempt=True),
    "make_dt_interval": _make_interval,
    "timestamp_add": _timestamp_add,
    "timestamp_diff": _timestamp_diff,
    "date_part": _part,
    "datepart": _part,
    "extract": _part,
    "dateadd": times.FUNCTIONS["date_add"],
    "date_from_unix_date": _from_days,
    "extract yearofweek": _on_date(_iso_year, pa.int32()),
    "extract dayofweek_iso": _on_date(_iso_weekday, pa.int32()),
    "extract dow_iso": _on_date(_iso_weekday, pa.int32()),
}
