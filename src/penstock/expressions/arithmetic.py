"""``+ - * / % div`` and unary minus: numbers, decimals, dates, timestamps and intervals.

Integers overflow with an error, ``/`` is division of doubles (of decimals, if both are), a zero
divisor is an error: Spark's ANSI rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.errors import DataError
from penstock.expressions.arrays import null_mask, values_of, with_nulls
from penstock.expressions.coerce import coerced, common, literal_decimal, operand, strict
from penstock.expressions.nodes import Literal, Node
from penstock.expressions.types import (
    adjusted_decimal,
    common_type,
    is_decimal,
    is_float,
    is_integer,
    is_numeric,
    utc_type,
)

__all__ = ["calculate", "negated"]

_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_PLAIN = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_DAY_US = 86_400_000_000


def calculate(sign: str, left: Node, right: Node) -> Node | None:
    """``left sign right``, or None if the types do not allow it."""
    left, right = operand(left), operand(right)
    if t.is_null(left.type) and t.is_null(right.type):
        left = right = coerced(left, pa.float64())
    for one, other in ((left, right), (right, left)):
        if t.is_null(one.type) and is_numeric(other.type):
            left, right = coerced(left, other.type), coerced(right, other.type)
    if not (is_numeric(left.type) and is_numeric(right.type)):
        return _with_times(sign, left, right)
    if is_decimal(left.type) or is_decimal(right.type):
        if not (is_float(left.type) or is_float(right.type)):
            return _decimals(sign, left, right)
    elif sign == "div":
        return _integer_division(left, right)
    kind = pa.float64() if sign == "/" else common([left, right])
    if sign == "div" or kind is None:
        return None
    left, right = coerced(left, kind), coerced(right, kind)
    if sign == "%":
        return strict(_remainder, [left, right], kind, fallible=True)
    if sign == "/":
        return strict(pc.divide_checked, [left, right], kind, fallible=True)
    if is_float(kind):
        return strict(_PLAIN[sign], [left, right], kind)
    return strict(_CHECKED[sign], [left, right], kind, fallible=True)


def negated(node: Node) -> Node | None:
    """``-node``, or None if it is not a number or an interval."""
    node = operand(node)
    if is_integer(node.type):
        return strict(pc.negate_checked, [node], node.type, fallible=True)
    if is_numeric(node.type) or t.is_duration(node.type):
        return strict(pc.negate, [node], node.type)
    return None


def _integer_division(left: Node, right: Node) -> Node | None:
    if not (is_integer(left.type) and is_integer(right.type)):
        return None
    left, right = coerced(left, pa.int64()), coerced(right, pa.int64())
    return strict(pc.divide_checked, [left, right], pa.int64(), fallible=True)


def _remainder(left: Any, right: Any) -> Any:
    """The remainder with the sign of the dividend, as C and SQL have it."""
    kind = left.type
    a, b = values_of(left), values_of(right)
    zero = np.asarray(b) == 0
    if zero.any():
        empty = null_mask(left, right)
        if not np.broadcast_to(zero, np.shape(a) or np.shape(b))[
            slice(None) if empty is None else ~empty
        ].any():
            b = np.where(zero, 1, b)
        else:
            raise DataError("remainder by zero (%); test the divisor with CASE WHEN or NULLIF")
    return with_nulls(np.fmod(a, b).astype(kind.to_pandas_dtype(), copy=False), kind, left, right)


def _decimals(sign: str, left: Node, right: Node) -> Node | None:
    if sign == "div":
        return None
    one, other = literal_decimal(left), literal_decimal(right)
    left, right = coerced(left, one), coerced(right, other)
    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    if sign in ("+", "-"):
        return _exact(_PLAIN[sign], left, right, whole + scale + 1, scale)
    if sign == "*":
        return _exact(
            pc.multiply, left, right, one.precision + other.precision + 1, one.scale + other.scale
        )
    if sign == "/":
        return _decimal_division(left, right)
    least = min(one.precision - one.scale, other.precision - other.scale)
    if max(one.precision, other.precision, whole + scale) > 18:
        return None
    kind = pa.decimal128(least + scale, scale)
    pair = [coerced(node, pa.decimal128(18, scale)) for node in (left, right)]
    return strict(_decimal_remainder, pair, kind, fallible=True, target=kind)


def _exact(kernel: Callable[..., Any], left: Node, right: Node, precision: int, scale: int) -> Node:
    """A sum or product: exact up to 38 digits, past them rounded and checked."""
    kind = adjusted_decimal(precision, scale)
    if precision <= 38:
        return strict(kernel, [left, right], kind)
    return strict(_rounded, [left, right], kind, fallible=True, inner=kernel, target=kind)


def _rounded(left: Any, right: Any, inner: Callable[..., Any], target: pa.DataType) -> Any:
    # Arrow wants room for one digit more than two factors of 38 digits leave: one gets 37.
    precision = min(left.type.precision, 75 - right.type.precision)
    left = pc.cast(left, pa.decimal256(precision, left.type.scale))
    right = pc.cast(right, pa.decimal256(right.type.precision, right.type.scale))
    return _fitted(inner(left, right), target)


def _fitted(values: Any, target: pa.DataType) -> Any:
    if values.type.scale > target.scale:
        values = pc.round(values, ndigits=target.scale, round_mode="half_towards_infinity")
    return pc.cast(values, target)


def _decimal_division(left: Node, right: Node) -> Node | None:
    one, other = left.type, right.type
    scale = max(6, one.scale + other.precision + 1)
    kind = adjusted_decimal(one.precision - one.scale + other.scale + scale, scale)
    # Arrow truncates the quotient; one digit more than wanted decides how to round.
    made = max(4, one.scale + other.precision - other.scale + 1)
    more = max(0, kind.scale + 1 - made)
    if one.precision - one.scale + other.scale + made + more > 76 or one.precision + more > 76:
        return None
    return strict(_divide_decimals, [left, right], kind, fallible=True, more=more, target=kind)


def _divide_decimals(left: Any, right: Any, more: int, target: pa.DataType) -> Any:
    wide = pa.decimal256(left.type.precision + more, left.type.scale + more)
    divisor = pa.decimal256(right.type.precision, right.type.scale)
    return _fitted(pc.divide(pc.cast(left, wide), pc.cast(right, divisor)), target)


def _decimal_remainder(left: Any, right: Any, target: pa.DataType) -> Any:
    scale = left.type.scale
    size = len(left) if isinstance(left, pa.Array) else len(right)
    arrays = [v if isinstance(v, pa.Array) else pa.repeat(v, size) for v in (left, right)]
    integers = [pc.cast(pc.multiply(v, _power(scale)), pa.int64(), safe=False) for v in arrays]
    rest = pc.cast(_remainder(*integers), pa.decimal256(19, 0))
    quotient = pc.divide(pc.cast(rest, pa.decimal256(40, 20)), pc.cast(_power(scale), _WIDE_POWER))
    return _fitted(quotient, target)


_WIDE_POWER = pa.decimal256(19, 0)


def _power(scale: int) -> pa.Scalar:
    return pc.cast(pa.scalar(10**scale), pa.decimal128(19, 0))


def _with_times(sign: str, left: Node, right: Node) -> Node | None:
    """Dates, timestamps and intervals; an interval is a number of microseconds."""
    one, other = left.type, right.type
    if sign == "+" and not t.is_duration(other) and (t.is_duration(one) or t.is_date32(other)):
        return _with_times(sign, right, left)
    if sign == "*" and t.is_duration(other) and is_integer(one):
        return _with_times(sign, right, left)
    if t.is_duration(one) and t.is_duration(other) and sign in ("+", "-"):
        kind = common_type(one, other)
        return _durations(sign, coerced(left, kind), coerced(right, kind), kind)
    if t.is_duration(one) and is_integer(other) and sign == "*":
        kind = one
        return strict(_times, [left, coerced(right, pa.int64())], kind, fallible=True)
    if t.is_date32(one):
        return _with_date(sign, left, right)
    if not t.is_timestamp(one):
        return None
    if t.is_duration(other) and sign in ("+", "-"):
        return _moved(sign, left, right)
    if sign == "-" and (t.is_timestamp(other) or t.is_date32(other)):
        shared: Any = common_type(one, other)
        unit = shared.unit
        pair = [coerced(coerced(node, shared), pa.timestamp(unit)) for node in (left, right)]
        return strict(pc.subtract_checked, pair, pa.duration(unit), fallible=True)
    return None


def _with_date(sign: str, left: Node, right: Node) -> Node | None:
    other = right.type
    if is_integer(other) and other != pa.int64() and sign in ("+", "-"):
        days = coerced(right, pa.int32())
        pair = [coerced(left, pa.int32()), days]
        moved = strict(_CHECKED[sign], pair, pa.int32(), fallible=True)
        return coerced(moved, pa.date32())
    if t.is_duration(other) and sign in ("+", "-"):
        if isinstance(right, Literal) and _whole_days(right):
            days = Literal(pa.scalar(_us(right) // _DAY_US, pa.int32()))
            return _with_date(sign, left, days)
        return _moved(sign, coerced(left, pa.timestamp("us", "UTC")), right)
    if sign == "-" and t.is_date32(other):
        pair = [coerced(node, pa.timestamp("us")) for node in (left, right)]
        return strict(pc.subtract, pair, pa.duration("us"))
    if sign == "-" and t.is_timestamp(other):
        return _with_times(sign, coerced(left, utc_type(other)), right)
    return None


def _whole_days(interval: Literal) -> bool:
    return not interval.is_null and _us(interval) % _DAY_US == 0


def _us(interval: Literal) -> int:
    return int(pc.cast(interval.value, pa.duration("us")).value)


def _moved(sign: str, left: Node, right: Node) -> Node:
    """A timestamp and an interval, in the finer of their units."""
    units = ("s", "ms", "us", "ns")
    unit = left.type.unit
    if isinstance(right, Literal) and not right.is_null:
        micros = _us(right)
        while micros % {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}[unit]:
            unit = units[units.index(unit) + 1]
    else:
        unit = max(unit, right.type.unit, key=units.index)
    kind = pa.timestamp(unit, left.type.tz)
    pair = [coerced(left, kind), coerced(right, pa.duration(unit))]
    return strict(_CHECKED[sign], pair, kind, fallible=True)


def _durations(sign: str, left: Node, right: Node, kind: pa.DataType) -> Node:
    return strict(_CHECKED[sign], [left, right], kind, fallible=True)


def _times(interval: Any, number: Any) -> Any:
    return pc.multiply_checked(interval, number)
