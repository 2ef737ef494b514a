"""Functions of doubles, and of numbers that may have no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.arithmetic import calculate
from penstock.expressions.arrays import values_of, with_nulls
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, common, folded, null, strict
from penstock.expressions.comparison import compare, null_safe_equal
from penstock.expressions.lists import arrays_of
from penstock.expressions.nodes import Apply, CaseWhen, Literal, Node
from penstock.expressions.types import is_decimal, is_float, is_integer

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]
_DOUBLE = pa.float64()


def _doubles(kernel: Callable[..., Any], count: int = 1) -> Build:
    """A NumPy function of doubles."""

    def build(call: Call) -> Node:
        call.arity(count)
        nodes = [call.double(i) for i in range(count)]
        return strict(_numpy, nodes, _DOUBLE, inner=kernel)

    return build


def _numpy(*values: Any, inner: Callable[..., Any]) -> pa.Array:
    arrays = arrays_of(*values)
    with np.errstate(all="ignore"):
        made = inner(*[values_of(one) for one in arrays])
    return with_nulls(made, _DOUBLE, *arrays)


def _log1p_call(call: Call) -> Node:
    call.arity(1)
    return strict(_above_minus_one, [call.double(0)], _DOUBLE)


def _above_minus_one(values: Any) -> Any:
    known = pc.if_else(pc.less_equal(values, -1.0), pa.scalar(None, _DOUBLE), values)
    return pc.log1p(known)


def _atan2(one: Any, other: Any) -> Any:
    return np.arctan2(one + 0.0, other + 0.0)  # without negative zeros, as Spark


def _cot(numbers: Any) -> Any:
    return 1 / np.tan(numbers)


def _csc(numbers: Any) -> Any:
    return 1 / np.sin(numbers)


def _sec(numbers: Any) -> Any:
    return 1 / np.cos(numbers)


def _constant(value: float) -> Build:
    def build(call: Call) -> Node:
        call.arity(0)
        return Literal(pa.scalar(value))

    return build


def _factorial(call: Call) -> Node:
    call.arity(1)
    return strict(_factorials, [call.int32(0)], pa.int64())


_FACTORIALS = pa.array(np.cumprod([1, *range(1, 21)]), pa.int64())


def _factorials(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    inside = pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, 20))
    return _FACTORIALS.take(pc.if_else(inside, values, pa.scalar(None, values.type)))


def _bround(call: Call) -> Node:
    """Half to even."""
    call.arity(1, 2)
    number, digits = call.number(0), call.constant_integer(1) if len(call.args) == 2 else 0
    if is_decimal(number.type):
        scale = min(max(digits, 0), number.type.scale)
        kind = pa.decimal128(min(number.type.precision - number.type.scale + scale + 1, 38), scale)
        return strict(_even_decimal, [number], kind, fallible=True, digits=digits, target=kind)
    if is_integer(number.type):
        call.refuse("takes doubles and decimals; an integer is rounded by round", 0)
    return strict(_even, [number], number.type, digits=digits)


def _even_decimal(values: Any, digits: int, target: pa.DataType) -> Any:
    wide = pc.cast(values, pa.decimal256(76, values.type.scale))
    return pc.cast(pc.round(wide, ndigits=digits, round_mode="half_to_even"), target)


def _even(values: Any, digits: int) -> pa.Array:
    """By the shortest decimal text of a double, as :func:`round` is."""
    (values,) = arrays_of(values)
    numbers = values_of(values).astype(np.float64)
    factor = 10.0 ** abs(digits)
    with np.errstate(all="ignore"):
        scaled = np.abs(numbers) * factor if digits >= 0 else np.abs(numbers) / factor
        below = np.floor(scaled)
        middle = (below + 0.5) / factor if digits >= 0 else (below + 0.5) * factor
        size = np.abs(numbers)
        up = (size > middle) | ((size == middle) & (below % 2 == 1))
        steps = below + up
        made = steps / factor if digits >= 0 else steps * factor
    made = np.copysign(np.where(scaled < 2.0**52, made, size), numbers)
    return with_nulls(made.astype(values.type.to_pandas_dtype()), values.type, values)


def _pmod(call: Call) -> Node:
    """The remainder with the sign of the divisor."""
    call.arity(2)
    call.number(0), call.number(1)
    one, other = call.common(0, 1)
    rest = call.builder.calculated("%", one, other, call.tree)
    if is_decimal(rest.type):
        call.refuse("does not take decimals; cast them to double")
    return strict(_positive, [rest, coerced(other, rest.type)], rest.type, fallible=rest.fallible)


def _positive(rest: Any, divisor: Any) -> pa.Array:
    rest, divisor = arrays_of(rest, divisor)
    r, n = values_of(rest), values_of(divisor)
    with np.errstate(all="ignore"):
        made = np.where(r < 0, np.fmod(r + n, np.where(n == 0, 1, n)), r)
    return with_nulls(made.astype(r.dtype), rest.type, rest, divisor)


def _attempt(sign: str) -> Build:
    """try_add and the like: null where the operator would fail."""

    def build(call: Call) -> Node:
        call.arity(2)
        one, other = call.args
        if sign in ("/", "%"):
            other = _null_if_zero(call, other)
        made = calculate(sign, one, other)
        if made is None:
            return call.builder.calculated(sign, one, other, call.tree)
        if isinstance(made, Literal) or not made.fallible:
            return made
        return _Attempt(made)

    return build


class _Attempt(Node):
    """A node that may fail, with null in the rows that it fails for.

    Rows that fail are found by halving, so that few of them cost little.
    """

    def __init__(self, inner: Node) -> None:
        self.inner = inner
        self.type = inner.type
        self.children = (inner,)
        self.lazy = True

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        try:
            return self.inner.evaluate(batch)
        except (pa.ArrowInvalid, DataError):
            size = batch.num_rows
            if size <= 1:
                return pa.nulls(size, self.type)
            half = size // 2
            parts = [self.evaluate(batch.slice(0, half)), self.evaluate(batch.slice(half))]
            sizes = [half, size - half]
            return pa.concat_arrays(
                [
                    pa.repeat(part, n) if isinstance(part, pa.Scalar) else part
                    for part, n in zip(parts, sizes, strict=True)
                ]
            )


def _null_if_zero(call: Call, node: Node) -> Node:
    zero = compare("=", node, Literal(pa.scalar(0, pa.int32())))
    if zero is None:
        call.refuse(f"takes numbers, not {node.type}")
    return call.builder.case([zero], [null(node.type)], node, call.tree)


def _nullifzero(call: Call) -> Node:
    call.arity(1)
    return _null_if_zero(call, call.number(0))


def _zeroifnull(call: Call) -> Node:
    call.arity(1)
    number = call.number(0)
    zero = Literal(pa.scalar(0, pa.int32()))
    kind = common([number, zero])
    return folded(Apply(pc.coalesce, [coerced(number, kind), coerced(zero, kind)], kind))


def _nanvl(call: Call) -> Node:
    call.arity(2)
    call.number(0), call.number(1)
    one, other = call.common(0, 1)
    if not is_float(one.type):
        one, other = coerced(one, _DOUBLE), coerced(other, _DOUBLE)
    return folded(Apply(_number_or, [one, other], one.type))


def _number_or(one: Any, other: Any) -> pa.Array:
    one, other = arrays_of(one, other)
    return pc.if_else(pc.fill_null(pc.is_nan(one), False), other, one)


def _equal_null(call: Call) -> Node:
    call.arity(2)
    made = null_safe_equal(call.args[0], call.args[1])
    if made is None:
        call.builder.incomparable(call.args[0], call.args[1], call.tree)
    return made


def _width_bucket(call: Call) -> Node:
    call.arity(4)
    nodes = [call.double(i) for i in range(3)]
    return strict(_bucket, [*nodes, call.integer(3)], pa.int64())


def _bucket(value: Any, low: Any, high: Any, count: Any) -> pa.Array:
    arrays = arrays_of(value, low, high, count)
    v, a, b, n = (values_of(one) for one in arrays)
    odd = (n <= 0) | ~np.isfinite(a) | ~np.isfinite(b) | (a == b) | np.isnan(v)
    with np.errstate(all="ignore"):
        place = np.floor(n * ((v - a) / (b - a))) + 1
        below = np.where(a < b, v < a, v > a)
        above = np.where(a < b, v >= b, v <= b)
        made = np.where(below, 0, np.where(above, n + 1, place))
    made = np.where(odd, 0, made).astype(np.int64)
    missing = odd | ~np.logical_and.reduce([np.asarray(one.is_valid()) for one in arrays])
    return pa.array(made, mask=missing)


def _typeof(call: Call) -> Node:
    from penstock.expressions.ddl import ddl_of

    call.arity(1)
    return Literal(pa.scalar(ddl_of(call.args[0].type)))


def _assert_true(call: Call) -> Node:
    call.arity(1, 2)
    condition = call.builder.boolean(call.trees[0], "the condition of assert_true")
    text = call.constant(1, "") if len(call.args) == 2 else ""
    return Apply(_asserted, [condition], pa.null(), fallible=True, text=text)


def _asserted(values: Any, text: str) -> pa.Array:
    (values,) = arrays_of(values)
    if not pc.all(pc.fill_null(values, False), min_count=0).as_py():
        raise DataError(text or "the condition of assert_true is not true")
    return pa.nulls(len(values))


def _raise_error(call: Call) -> Node:
    call.arity(1)
    made = Apply(_raised, [call.text(0)], pa.string(), fallible=True)
    # Constant or not, it is computed only where a row comes.
    return CaseWhen([Literal(pa.scalar(True))], [made], null(pa.string()))


def _raised(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    if len(values):
        raise DataError(str(values[0].as_py()))
    return pa.array([], pa.string())


def _positive_sign(call: Call) -> Node:
    call.arity(1)
    return call.number(0)


FUNCTIONS: dict[str, Build] = {
    "acos": _doubles(np.arccos),
    "acosh": _doubles(np.arccosh),
    "asin": _doubles(np.arcsin),
    "asinh": _doubles(np.arcsinh),
    "atan": _doubles(np.arctan),
    "atan2": _doubles(_atan2, 2),
    "atanh": _doubles(np.arctanh),
    "cbrt": _doubles(np.cbrt),
    "cosh": _doubles(np.cosh),
    "cot": _doubles(_cot),
    "csc": _doubles(_csc),
    "degrees": _doubles(np.degrees),
    "expm1": _doubles(np.expm1),
    "hypot": _doubles(np.hypot, 2),
    "log1p": _log1p_call,
    "radians": _doubles(np.radians),
    "rint": _doubles(np.rint),
    "sec": _doubles(_sec),
    "sinh": _doubles(np.sinh),
    "tanh": _doubles(np.tanh),
    "e": _constant(np.e),
    "pi": _constant(np.pi),
    "factorial": _factorial,
    "bround": _bround,
    "pmod": _pmod,
    "positive": _positive_sign,
    "try_add": _attempt("+"),
    "try_subtract": _attempt("-"),
    "try_multiply": _attempt("*"),
    "try_divide": _attempt("/"),
    "try_mod": _attempt("%"),
    "nullifzero": _nullifzero,
    "zeroifnull": _zeroifnull,
    "nanvl": _nanvl,
    "equal_null": _equal_null,
    "width_bucket": _width_bucket,
    "typeof": _typeof,
    "assert_true": _assert_true,
    "raise_error": _raise_error,
}
