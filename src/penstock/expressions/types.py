"""Types as Spark's ANSI SQL sees them, over Arrow's: families, operands and common types."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as t

__all__ = [
    "LONG_DECIMAL",
    "adjusted_decimal",
    "common_type",
    "decimal_for",
    "is_binary",
    "is_decimal",
    "is_float",
    "is_integer",
    "is_numeric",
    "is_string",
    "is_temporal",
    "operand_type",
    "utc_type",
]

LONG_DECIMAL = pa.decimal128(20, 0)
MAX_PRECISION = 38
_INT_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_OPERANDS = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): LONG_DECIMAL,
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_UNITS = ("s", "ms", "us", "ns")


def is_integer(kind: pa.DataType) -> bool:
    """Whether it is a signed integer."""
    return kind in _INT_DIGITS


def is_float(kind: pa.DataType) -> bool:
    """Whether it is float or double."""
    return t.is_float32(kind) or t.is_float64(kind)


def is_decimal(kind: pa.DataType) -> bool:
    """Whether it is a decimal that Spark has too."""
    return t.is_decimal128(kind)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether one can calculate with it."""
    return is_integer(kind) or is_float(kind) or is_decimal(kind)


def is_string(kind: pa.DataType) -> bool:
    """Whether it is text."""
    return t.is_string(kind) or t.is_large_string(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Whether it is a string of bytes."""
    return t.is_binary(kind) or t.is_large_binary(kind)


def is_temporal(kind: pa.DataType) -> bool:
    """Whether it is a date or a timestamp."""
    return t.is_date32(kind) or t.is_timestamp(kind)


def operand_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column of ``kind`` has inside an expression.

    >>> operand_type(pa.dictionary(pa.int32(), pa.string())), operand_type(pa.uint16())
    (DataType(string), DataType(int32))
    """
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return operand_type(kind.value_type)
    if t.is_decimal32(kind) or t.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if t.is_fixed_size_binary(kind) and not t.is_decimal(kind):
        return pa.binary()
    return _OPERANDS.get(kind, kind)


def decimal_for(kind: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of an integer type."""
    return pa.decimal128(_INT_DIGITS[kind], 0) if is_integer(kind) else kind


def adjusted_decimal(precision: int, scale: int) -> pa.DataType:
    """Spark's result type: past 38 digits, fraction digits are given up, at most down to 6.

    >>> adjusted_decimal(59, 20)
    Decimal128Type(decimal128(38, 6))
    """
    if precision <= MAX_PRECISION:
        return pa.decimal128(precision, scale)
    whole = precision - scale
    return pa.decimal128(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, 6)))


def utc_type(kind: pa.DataType) -> pa.DataType:
    """The same timestamp type with its zone, if it has one, shown as UTC."""
    return pa.timestamp(kind.unit, "UTC" if kind.tz else None)


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that both can be seen as without an explicit cast, or None.

    >>> common_type(pa.int32(), pa.int64()), common_type(pa.int32(), pa.float32())
    (DataType(int64), DataType(double))
    >>> common_type(pa.int32(), pa.string()) is None
    True
    """
    if one == other or t.is_null(other):
        return one
    if t.is_null(one):
        return other
    if is_numeric(one) and is_numeric(other):
        return _common_number(one, other)
    if is_string(one) and is_string(other):
        return pa.large_string()
    if is_binary(one) and is_binary(other):
        return pa.large_binary()
    if is_temporal(one) and is_temporal(other):
        return _common_time(one, other)
    if t.is_duration(one) and t.is_duration(other):
        return pa.duration(max(one.unit, other.unit, key=_UNITS.index))
    return None


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if is_integer(one) and is_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    if is_float(one) or is_float(other):
        return pa.float64()
    first, second = decimal_for(one), decimal_for(other)
    scale = max(first.scale, second.scale)
    whole = max(first.precision - first.scale, second.precision - second.scale)
    return adjusted_decimal(whole + scale, scale)


def _common_time(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if t.is_date32(one):
        return utc_type(other)
    if t.is_date32(other):
        return utc_type(one)
    unit = max(one.unit, other.unit, key=_UNITS.index)
    return pa.timestamp(unit, "UTC" if one.tz or other.tz else None)
