"""Functions of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.arrays import values_of, with_nulls
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, common, folded, strict
from penstock.expressions.nodes import Apply, Node
from penstock.expressions.types import (
    adjusted_decimal,
    decimal_for,
    is_decimal,
    is_float,
    is_integer,
)

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]


def _real(kernel: Callable[..., Any], *, positive: bool = False) -> Build:
    """A function of a double to a double; ``positive``: null at and below zero, as logarithms."""

    def build(call: Call) -> Node:
        call.arity(1)
        wrapped: dict[str, Any] = {"inner": kernel} if positive else {}
        return strict(_where_positive if positive else kernel, [call.double(0)], _DOUBLE, **wrapped)

    return build


_DOUBLE = pa.float64()


def _where_positive(values: Any, inner: Callable[..., Any]) -> Any:
    null = pa.scalar(None, _DOUBLE)
    return inner(pc.if_else(pc.less_equal(values, 0.0), null, values))


def _abs(call: Call) -> Node:
    call.arity(1)
    number = call.number(0)
    if is_integer(number.type):
        return strict(pc.abs_checked, [number], number.type, fallible=True)
    return strict(pc.abs, [number], number.type)


def _sign(call: Call) -> Node:
    call.arity(1)
    return strict(pc.sign, [call.double(0)], _DOUBLE)


def _power(call: Call) -> Node:
    call.arity(2)
    return strict(pc.power, [call.double(0), call.double(1)], _DOUBLE)


def _log(call: Call) -> Node:
    call.arity(1, 2)
    if len(call.args) == 1:
        return strict(_where_positive, [call.double(0)], _DOUBLE, inner=pc.ln)
    return strict(_log_base, [call.double(0), call.double(1)], _DOUBLE)


def _log_base(base: Any, values: Any) -> Any:
    null = pa.scalar(None, _DOUBLE)
    base, values = (pc.if_else(pc.less_equal(v, 0.0), null, v) for v in (base, values))
    return pc.divide(pc.ln(values), pc.ln(base))


def _whole(kernel: Callable[..., Any]) -> Build:
    """floor and ceil: a bigint, or of a decimal a decimal without fraction."""

    def build(call: Call) -> Node:
        call.arity(1, 2)
        number = call.number(0)
        if len(call.args) == 2:
            return _whole_at(call, kernel, call.constant_integer(1))
        if is_integer(number.type):
            return coerced(number, pa.int64())
        if is_decimal(number.type):
            kind = pa.decimal128(min(number.type.precision - number.type.scale + 1, 38), 0)
        else:
            kind = pa.int64()
        return strict(_rounded_to, [number], kind, fallible=True, inner=kernel, target=kind)

    return build


def _whole_at(call: Call, kernel: Callable[..., Any], digits: int) -> Node:
    """floor and ceil at a number of digits: decimals, of other numbers those that hold them."""
    number = call.number(0)
    if is_float(number.type):
        wide = pa.decimal128(30, 15) if pa.types.is_float64(number.type) else pa.decimal128(14, 7)
        number = call.builder.cast(number, wide, call.tree)
    elif is_integer(number.type):
        number = coerced(number, decimal_for(number.type))
    scale = min(max(digits, 0), number.type.scale)
    whole = number.type.precision - number.type.scale + 1
    kind = adjusted_decimal(max(whole + scale, -digits + 1), scale)
    return strict(_whole_digits, [number], kind, fallible=True, inner=kernel, digits=digits)


def _whole_digits(values: Any, inner: Callable[..., Any], digits: int) -> Any:
    down = inner is pc.floor
    mode = "down" if down else "up"
    kind = values.type
    scale = min(max(digits, 0), kind.scale)
    whole = kind.precision - kind.scale + 1
    target = adjusted_decimal(max(whole + scale, -digits + 1), scale)
    wide = pc.cast(values, pa.decimal256(76, kind.scale))
    return pc.cast(pc.round(wide, ndigits=min(digits, kind.scale), round_mode=mode), target)


def _rounded_to(values: Any, inner: Callable[..., Any], target: pa.DataType) -> Any:
    if is_decimal(values.type):
        values = pc.cast(values, pa.decimal256(76, values.type.scale))
    return pc.cast(inner(values), target)


def _round(call: Call) -> Node:
    call.arity(1, 2)
    number = call.number(0)
    digits = call.constant_integer(1) if len(call.args) == 2 else 0
    if not -38 <= digits <= 38:
        call.refuse("the number of digits lies between -38 and 38", 1)
    if is_float(number.type):
        return strict(_half_up, [number], number.type, digits=digits)
    if is_integer(number.type):
        if digits >= 0:
            return number
        return strict(
            pc.round,
            [number],
            number.type,
            fallible=True,
            ndigits=digits,
            round_mode="half_towards_infinity",
        )
    scale = min(max(digits, 0), number.type.scale)
    kind = pa.decimal128(min(number.type.precision - number.type.scale + scale + 1, 38), scale)
    return strict(_round_decimal, [number], kind, fallible=True, digits=digits, target=kind)


def _half_up(values: Any, digits: int) -> Any:
    """Half away from zero, by the shortest decimal text of the float, as Spark rounds.

    A float's text is halfway iff the float is the one nearest to the halfway number, which a
    division of exact numbers gives: round(2.675, 2) is 2.68 though 2.675 * 100 < 267.5.
    """
    kind = values.type
    numbers = values_of(values).astype(np.float64)
    size = np.abs(numbers)
    factor = 10.0 ** abs(digits)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = size * factor if digits >= 0 else size / factor
        below = np.floor(scaled)
        middle = (below + 0.5) / factor if digits >= 0 else (below + 0.5) * factor
        steps = below + (size >= middle)
        made = steps / factor if digits >= 0 else steps * factor
    # Past 2**52 there is no fraction to round, and infinities and NaN stay what they are.
    made = np.copysign(np.where(scaled < 2.0**52, made, size), numbers)
    return with_nulls(made.astype(kind.to_pandas_dtype()), kind, values)


def _round_decimal(values: Any, digits: int, target: pa.DataType) -> Any:
    wide = pc.cast(values, pa.decimal256(76, values.type.scale))
    rounded = pc.round(wide, ndigits=digits, round_mode="half_towards_infinity")
    return pc.cast(rounded, target)


def _extreme(kernel: Callable[..., Any]) -> Build:
    """greatest and least: nulls are skipped, NaN is above all numbers."""

    def build(call: Call) -> Node:
        call.arity(2, 1000)
        kind = common(call.args)
        if kind is None or pa.types.is_nested(kind):
            kinds = ", ".join(dict.fromkeys(str(node.type) for node in call.args))
            call.refuse(f"the arguments have no common type: {kinds}")
        args = [coerced(node, kind) for node in call.args]
        if is_float(kind) and kernel is pc.max_element_wise:
            return folded(Apply(_greatest_float, args, kind))
        return folded(Apply(kernel, args, kind))

    return build


def _greatest_float(*values: Any) -> Any:
    greatest = pc.max_element_wise(*values)
    for value in values:
        nan = pc.fill_null(pc.is_nan(value), False)
        greatest = pc.if_else(nan, pa.scalar(float("nan"), greatest.type), greatest)
    return greatest


def _operator(sign: str) -> Build:
    def build(call: Call) -> Node:
        call.arity(2)
        return call.builder.calculated(sign, call.args[0], call.args[1], call.tree)

    return build


def _negative(call: Call) -> Node:
    from penstock.expressions.arithmetic import negated

    call.arity(1)
    made = negated(call.number(0))
    return made if made is not None else call.refuse("takes a number")


def _is_nan(call: Call) -> Node:
    call.arity(1)
    return folded(Apply(_nan, [call.double(0)], pa.bool_()))


def _nan(values: Any) -> Any:
    return pc.fill_null(pc.is_nan(values), False)


FUNCTIONS: dict[str, Build] = {
    "abs": _abs,
    "sign": _sign,
    "signum": _sign,
    "sqrt": _real(pc.sqrt),
    "exp": _real(pc.exp),
    "ln": _real(pc.ln, positive=True),
    "log10": _real(pc.log10, positive=True),
    "log2": _real(pc.log2, positive=True),
    "log": _log,
    "sin": _real(pc.sin),
    "cos": _real(pc.cos),
    "tan": _real(pc.tan),
    "power": _power,
    "pow": _power,
    "floor": _whole(pc.floor),
    "ceil": _whole(pc.ceil),
    "ceiling": _whole(pc.ceil),
    "round": _round,
    "greatest": _extreme(pc.max_element_wise),
    "least": _extreme(pc.min_element_wise),
    "mod": _operator("%"),
    "negative": _negative,
    "negate": _negative,
    "isnan": _is_nan,
}
