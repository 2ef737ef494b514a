"""CAST and TRY_CAST with Spark's ANSI rules: what has no result raises, or is null for TRY_CAST.

Kernels have the form ``kernel(array, target=..., attempt=...)``; ``attempt`` asks for nulls
instead of an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.errors import DataError
from penstock.expressions import texts
from penstock.expressions.arrays import values_of, with_nulls
from penstock.expressions.types import (
    decimal_for,
    is_binary,
    is_decimal,
    is_float,
    is_integer,
    is_numeric,
    is_string,
    utc_type,
)

__all__ = ["cast_kernel"]

Cast = tuple[Callable[..., Any], bool, dict[str, Any]]
"""The kernel, whether values can make it fail, and its options."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def cast_kernel(source: pa.DataType, target: pa.DataType, *, attempt: bool = False) -> Cast | None:
    """How to cast, or None if SQL has no such cast."""
    found = _find(source, target)
    if found is None:
        return None
    kernel, fallible = found
    return kernel, fallible and not attempt, {"target": target, "attempt": attempt}


def _find(source: pa.DataType, target: pa.DataType) -> tuple[Callable[..., Any], bool] | None:
    if t.is_null(source):
        return _direct, False
    if is_string(source):
        return _from_string(target)
    if is_string(target):
        return _to_string(source)
    if t.is_boolean(target) and is_numeric(source):
        return _nonzero, False
    if t.is_boolean(source) and is_numeric(target):
        return _from_boolean, False
    if is_numeric(source) and is_numeric(target):
        return _number_to_number(source, target)
    if t.is_timestamp(target):
        return _to_timestamp(source, target)
    if t.is_timestamp(source):
        return _from_timestamp(target)
    if is_binary(source) and is_binary(target):
        return _direct, False
    return None


def _from_string(target: pa.DataType) -> tuple[Callable[..., Any], bool] | None:
    if is_string(target) or is_binary(target):
        return _direct, False
    if is_integer(target):
        return texts.to_integer, True
    if is_float(target):
        return texts.to_float, True
    if is_decimal(target):
        return _string_to_decimal, True
    if t.is_boolean(target):
        return texts.to_boolean, True
    if t.is_date32(target) or t.is_timestamp(target):
        return texts.to_time, True
    return None


def _to_string(source: pa.DataType) -> tuple[Callable[..., Any], bool] | None:
    if is_float(source):
        return texts.from_float, False
    if t.is_timestamp(source):
        return texts.from_timestamp, False
    if is_binary(source):
        return _direct, True
    if is_integer(source) or is_decimal(source) or t.is_boolean(source) or t.is_date32(source):
        return _direct, False
    return None


def _number_to_number(
    source: pa.DataType, target: pa.DataType
) -> tuple[Callable[..., Any], bool] | None:
    if is_float(target):
        return _to_float, False
    if is_decimal(target):
        return (_float_to_decimal if is_float(source) else _rescale), True
    if is_integer(source):
        return _narrow, target.bit_width < source.bit_width
    return _truncate, True


def _to_timestamp(
    source: pa.DataType, target: pa.DataType
) -> tuple[Callable[..., Any], bool] | None:
    if t.is_timestamp(source):
        return _time_unit, True
    if t.is_date32(source):
        return _direct, False
    if is_integer(source):
        return _seconds_to_timestamp, True
    if is_float(source):
        return _float_seconds_to_timestamp, True
    return None


def _from_timestamp(target: pa.DataType) -> tuple[Callable[..., Any], bool] | None:
    if t.is_date32(target):
        return _timestamp_to_date, False
    if is_integer(target):
        return _timestamp_to_seconds, target.bit_width < 64
    if is_float(target):
        return _timestamp_to_float_seconds, False
    return None


def _direct(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    if attempt and is_binary(values.type) and is_string(target):
        raise DataError("TRY_CAST of binary to string is not supported; use CAST")
    return pc.cast(values, target)


def _to_float(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    return pc.cast(values, target, safe=False)


def _nonzero(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    return pc.not_equal(values, pa.scalar(0, values.type))


def _from_boolean(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    whole = pc.cast(values, pa.int64())
    return _rescale(whole, target, attempt) if is_decimal(target) else pc.cast(whole, target)


def _narrow(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """An integer that may be too large for its new type."""
    if attempt:
        info = np.iinfo(target.to_pandas_dtype())
        values = _kept_between(values, int(info.min), int(info.max))
    return pc.cast(values, target)


def _truncate(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """A float or decimal without its fraction."""
    whole = pc.trunc(values)
    if attempt:
        info = np.iinfo(target.to_pandas_dtype())
        low, high = int(info.min), int(info.max)
        if is_float(values.type):
            # 2**63 is a float, 2**63 - 1 is not: compare with what lies just outside.
            good = pc.and_(pc.greater_equal(whole, float(low)), pc.less(whole, float(high + 1)))
            whole = pc.if_else(good, whole, pa.scalar(None, whole.type))
        else:
            whole = _kept_between(pc.cast(whole, pa.decimal128(38, 0)), low, high)
    return pc.cast(whole, target)


def _kept_between(values: Any, low: int, high: int) -> Any:
    kind = values.type
    if is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        low, high = max(low, int(info.min)), min(high, int(info.max))
    low_scalar, high_scalar = (pc.cast(pa.scalar(v), kind) for v in (low, high))
    good = pc.and_(pc.greater_equal(values, low_scalar), pc.less_equal(values, high_scalar))
    return pc.if_else(good, values, pa.scalar(None, kind))


def _rescale(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """To a decimal, half rounded away from zero."""
    if is_integer(values.type):
        values = pc.cast(values, decimal_for(values.type))
    if values.type.scale > target.scale:
        # Rounding may carry into a new digit, which the type must have room for.
        wide = pa.decimal256(76, values.type.scale)
        values = pc.round(
            pc.cast(values, wide), ndigits=target.scale, round_mode="half_towards_infinity"
        )
    if attempt:
        wide = pa.decimal256(76, target.scale)
        values = pc.cast(values, wide)
        limit = pc.cast(pa.scalar(10 ** (target.precision - target.scale)), pa.decimal256(76, 0))
        good = pc.less(pc.abs(values), pc.cast(limit, pa.decimal256(76, target.scale)))
        values = pc.if_else(good, values, pa.scalar(None, wide))
    return pc.cast(values, target)


def _float_to_decimal(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """By way of the shortest text, as Spark does: 2.675 is 2.675, not 2.67499…"""
    if attempt:
        small = pc.less(pc.abs(values), 1e38)
        values = pc.if_else(small, values, pa.scalar(None, values.type))
    elif not pc.all(pc.is_finite(values)).as_py() and len(values) > values.null_count:
        raise DataError(f"NaN or infinity cannot be cast to {target}")
    return _string_to_decimal(pc.cast(values, pa.string()), target, attempt)


def _string_to_decimal(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    return _rescale(texts.to_wide_decimal(values, attempt), target, attempt)


def _seconds_to_timestamp(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    per = _PER_SECOND[target.unit]
    values = pc.cast(values, pa.int64())
    if attempt:
        values = _kept_between(values, -(2**63 // per), (2**63 - 1) // per)
    return pc.cast(pc.multiply_checked(values, pa.scalar(per, pa.int64())), target)


def _float_seconds_to_timestamp(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    scaled = pc.multiply(pc.cast(values, pa.float64()), float(_PER_SECOND[target.unit]))
    return pc.cast(_truncate(scaled, pa.int64(), attempt), target)


def _timestamp_to_seconds(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    per = _PER_SECOND[values.type.unit]
    ticks = pc.cast(values, pa.int64())
    return _narrow(with_nulls(values_of(ticks) // per, pa.int64(), ticks), target, attempt)


def _timestamp_to_float_seconds(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    ticks = pc.cast(pc.cast(values, pa.int64()), pa.float64(), safe=False)
    return pc.cast(pc.divide(ticks, float(_PER_SECOND[values.type.unit])), target, safe=False)


def _timestamp_to_date(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    return pc.cast(pc.cast(pc.cast(values, utc_type(values.type)), _naive(values.type)), target)


def _time_unit(values: Any, target: pa.DataType, attempt: bool = False) -> Any:
    """Another unit or zone; times are UTC throughout, fractions are rounded down."""
    fine, coarse = _PER_SECOND[values.type.unit], _PER_SECOND[target.unit]
    if fine > coarse:
        ticks = pc.cast(values, pa.int64())
        whole = with_nulls(values_of(ticks) // (fine // coarse), pa.int64(), ticks)
        return pc.cast(whole, target)
    if attempt and fine < coarse:
        limit = (2**63 - 1) // (coarse // fine)
        kept = _kept_between(pc.cast(values, pa.int64()), -limit, limit)
        values = pc.cast(kept, values.type)
    if values.type.tz and not target.tz:
        values = pc.cast(pc.cast(values, utc_type(values.type)), _naive(values.type))
    return pc.cast(values, target)


def _naive(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit)
