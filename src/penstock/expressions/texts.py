"""Text to values and back, as Spark writes and reads them.

Reading tries Arrow's parser on the whole column first; only a column with other spellings (blanks
around numbers, ``2024-1-5``, zones) goes through regular expressions.  Neither looks at single
rows in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.arrays import values_of, with_nulls

__all__ = [
    "from_float",
    "from_timestamp",
    "to_boolean",
    "to_float",
    "to_integer",
    "to_time",
    "to_wide_decimal",
]

_INTEGER = r"^[+-]?[0-9]{1,38}$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
_FLOAT = r"(?i)^[+-]?((([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?[fd]?)|nan|inf(inity)?)$"
_TRUE = pa.array(["t", "true", "y", "yes", "1"])
_FALSE = pa.array(["f", "false", "n", "no", "0"])
_WIDE = pa.decimal256(76, 38)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
TIME = (
    r"^(?P<y>[+-]?[0-9]{4,6})(?:-(?P<m>[0-9]{1,2})(?:-(?P<d>[0-9]{1,2})"
    r"(?:[T ](?P<H>[0-9]{1,2}):(?P<M>[0-9]{1,2})(?::(?P<S>[0-9]{1,2})(?:\.(?P<f>[0-9]{1,9}))?)?"
    r" ?(?P<z>Z|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2})?)?)?)?)?$"
)
"""The spellings of times that CAST reads; a zone may follow a time of day."""


def to_integer(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """Decimal digits with an optional sign, blanks around them ignored."""
    # Arrow reads hexadecimal numbers too, SQL does not.
    if not any(pc.any(pc.match_substring(values, sign)).as_py() for sign in ("0x", "0X")):
        try:
            return pc.cast(values, target)
        except pa.ArrowInvalid:
            pass
    trimmed = pc.utf8_trim_whitespace(values)
    trimmed = _kept(trimmed, pc.match_substring_regex(trimmed, _INTEGER), attempt, values, target)
    wide = pc.cast(pc.utf8_ltrim(trimmed, "+"), pa.decimal128(38, 0))
    info = np.iinfo(target.to_pandas_dtype())
    low, high = (pc.cast(pa.scalar(int(v)), wide.type) for v in (info.min, info.max))
    inside = pc.and_(pc.greater_equal(wide, low), pc.less_equal(wide, high))
    return pc.cast(_kept(wide, inside, attempt, values, target), target)


def to_float(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """Numbers with or without exponent, NaN and Infinity."""
    try:
        return pc.cast(values, target)
    except pa.ArrowInvalid:
        pass
    trimmed = pc.utf8_trim_whitespace(values)
    trimmed = _kept(trimmed, pc.match_substring_regex(trimmed, _FLOAT), attempt, values, target)
    return pc.cast(pc.replace_substring_regex(trimmed, r"([0-9.])[dDfF]$", r"\1"), target)


def to_wide_decimal(values: Any, attempt: bool) -> Any:
    """Numbers as decimals with 38 digits before and after the point."""
    try:
        return pc.cast(values, _WIDE)
    except pa.ArrowInvalid:
        pass
    trimmed = pc.utf8_trim_whitespace(values)
    good = pc.match_substring_regex(trimmed, _NUMBER)
    return pc.cast(_kept(trimmed, good, attempt, values, "decimal"), _WIDE)


def to_boolean(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """The words that Spark takes for true and false."""
    words = pc.cast(pc.utf8_lower(pc.utf8_trim_whitespace(values)), pa.string())
    true, false = pc.is_in(words, _TRUE), pc.is_in(words, _FALSE)
    good = pc.or_(pc.or_(true, false), pc.is_null(values))
    true = pc.if_else(pc.is_valid(values), true, pa.scalar(None, pa.bool_()))
    return _kept(true, good, attempt, values, target)


def to_time(
    values: Any,
    target: pa.DataType,
    attempt: bool = False,
    pattern: str | None = None,
) -> Any:
    """Dates and timestamps; without a zone in the text the time is UTC."""
    if pattern is None:
        naive = pa.timestamp(target.unit) if pa.types.is_timestamp(target) else target
        try:
            return pc.cast(pc.cast(values, naive), target)
        except pa.ArrowInvalid:
            pass
    parts = pc.extract_regex(pc.cast(pc.utf8_trim_whitespace(values), pa.string()), pattern or TIME)
    valid = parts.is_valid()
    names = [parts.type.field(i).name for i in range(parts.type.num_fields)]
    field = {name: pc.struct_field(parts, name) for name in names if len(name) == 1}
    days, good = _days(field)
    if pa.types.is_date32(target):
        ticks, kind = days, pa.int32()
    else:
        inside_day, good_time = _ticks_in_day(field, _PER_SECOND[target.unit])
        ticks, kind = days * 86_400 * _PER_SECOND[target.unit] + inside_day, pa.int64()
        good = good & good_time
    right = pc.and_(valid, pa.array(good))
    right = pc.or_(right, pc.is_null(values))
    made = with_nulls(ticks, kind, values)
    return pc.cast(_kept(made, right, attempt, values, target), target)


def _number(field: dict[str, Any], name: str, default: int) -> Any:
    """The numbers of a group; the default where it is empty and in rows that did not match."""
    if name not in field:
        return default
    text = pc.coalesce(field[name], pa.scalar("", pa.string()))
    text = pc.if_else(pc.equal(text, ""), pa.scalar(str(default)), text)
    return pc.cast(pc.utf8_ltrim(text, "+"), pa.int64()).to_numpy(zero_copy_only=False)


def _days(field: dict[str, Any]) -> tuple[Any, Any]:
    """Days since 1970 of year, month and day, and which of them exist."""
    size = len(field["y"])
    year, month, day = (
        np.broadcast_to(_number(field, name, default), size)
        for name, default in (("y", 1970), ("m", 1), ("d", 1))
    )
    good = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (abs(year) < 200_000)
    months = np.where(good, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[D]").astype(np.int64) - first
    return first + day - 1, good & (day <= length)


def _ticks_in_day(field: dict[str, Any], per_second: int) -> tuple[Any, Any]:
    size = len(field["y"])
    hour, minute, second = (
        np.broadcast_to(_number(field, name, 0), size) for name in ("H", "M", "S")
    )
    good = (hour < 24) & (minute < 60) & (second < 60)
    ticks = ((hour * 60 + minute) * 60 + second) * per_second
    if "f" in field:
        nanos = pc.utf8_rpad(pc.coalesce(field["f"], pa.scalar("")), width=9, padding="0")
        nanos = pc.cast(nanos, pa.int64()).to_numpy(zero_copy_only=False)
        ticks = ticks + nanos // (1_000_000_000 // per_second)
    if "z" in field:
        zone = pc.extract_regex(
            pc.coalesce(field["z"], pa.scalar("")),
            r"^(?:(?P<s>[+-])(?P<h>[0-9]{1,2}):?(?P<m>[0-9]{2})?)?",
        )
        sign = pc.struct_field(zone, "s")
        parts = {"h": pc.struct_field(zone, "h"), "m": pc.struct_field(zone, "m")}
        offset = _number(parts, "h", 0) * 60 + _number(parts, "m", 0)
        negative = pc.fill_null(pc.equal(sign, "-"), False).to_numpy(zero_copy_only=False)
        good = good & (offset <= 18 * 60)
        ticks = ticks - np.where(negative, -offset, offset) * 60 * per_second
    return ticks, good


def from_timestamp(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """``2024-01-01 10:00:00.5``: UTC, without zeros at the end of the fraction."""
    utc = pc.cast(values, pa.timestamp(values.type.unit, "UTC")) if values.type.tz else values
    text = pc.cast(pc.cast(utc, pa.timestamp(values.type.unit)), pa.string())
    if values.type.unit != "s":
        text = pc.replace_substring_regex(text, r"\.?0+$", "", max_replacements=1)
    return pc.cast(text, target)


def from_float(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """As Java writes floats: ``1.0``, ``1.0E10``, ``NaN``."""
    text = pc.cast(values, pa.string())
    plain = pc.replace_substring_regex(text, r"^(-?[0-9]+)$", r"\1.0")
    size = np.abs(values_of(pc.cast(values, pa.float64())))
    usual = ((size >= 1e-3) & (size < 1e7)) | (size == 0)
    if not usual.all():
        odd = pa.array(~usual)
        plain = pc.replace_with_mask(plain, odd, _scientific(text.filter(odd)))
    return pc.cast(plain, target)


def _scientific(text: Any) -> Any:
    """Digits and exponent of texts such as ``123456789.5``, ``0.0001`` and ``1.5e+22``."""
    groups = pc.extract_regex(
        text, r"^(?P<s>-?)(?P<i>[0-9]*)\.?(?P<f>[0-9]*)(?:e(?P<e>[+-]?[0-9]+))?$"
    )
    whole, fraction, power = (
        pc.coalesce(pc.struct_field(groups, name), pa.scalar("")) for name in ("i", "f", "e")
    )
    digits = pc.binary_join_element_wise(whole, fraction, "")
    stripped = pc.utf8_ltrim(digits, "0")
    zeros = pc.subtract(pc.utf8_length(digits), pc.utf8_length(stripped))
    power = pc.cast(pc.utf8_ltrim(pc.if_else(pc.equal(power, ""), "0", power), "+"), pa.int32())
    exponent = pc.add(pc.subtract(pc.subtract(pc.utf8_length(whole), 1), zeros), power)
    rest = pc.utf8_rtrim(pc.utf8_slice_codeunits(stripped, 1), "0")
    made = pc.binary_join_element_wise(
        pc.coalesce(pc.struct_field(groups, "s"), pa.scalar("")),
        pc.utf8_slice_codeunits(stripped, 0, 1),
        pa.scalar("."),
        pc.if_else(pc.equal(rest, ""), "0", rest),
        pa.scalar("E"),
        pc.cast(exponent, pa.string()),
        "",
    )
    for ours, javas in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        made = pc.if_else(pc.equal(text, ours), javas, made)
    return made


def _kept(made: Any, good: Any, attempt: bool, values: Any, target: Any) -> Any:
    """What was made where it is good; elsewhere null, or an error that shows the first text."""
    if pc.all(good, min_count=0).as_py() is not False:
        return made
    if attempt:
        return pc.if_else(pc.fill_null(good, False), made, pa.scalar(None, made.type))
    bad = values.filter(pc.invert(good.fill_null(True)))[0].as_py()
    raise DataError(
        f"the value {bad!r} cannot be cast to {target}; TRY_CAST gives NULL instead", value=bad
    )
