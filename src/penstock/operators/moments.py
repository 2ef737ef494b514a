"""Variances, covariances and the like from exact sums of powers.

A power of a double is kept as two doubles (it and what was lost in rounding it), so that the sum of
the powers, which is exact, holds some 106 bits: enough to subtract two nearly equal sums of squares
at the end.  Numbers in pairs are (high, low) with high + low the number; the formulas are those of
Dekker and Knuth for sums and products without error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators import exact_sum

__all__ = ["SOURCES", "Pair", "central", "comoment", "exact_pair", "floats"]

Pair = tuple[Any, Any]
_SPLIT = 134217729.0  # 2**27 + 1
_LARGE = 2.0**500


def _two_sum(a: Any, b: Any) -> Pair:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Any, b: Any) -> Pair:
    product = a * b
    a1, b1 = (v * _SPLIT - (v * _SPLIT - v) for v in (a, b))
    a2, b2 = a - a1, b - b1
    low = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    usual = (np.abs(a) < _LARGE) & (np.abs(b) < _LARGE) & np.isfinite(product)
    return product, np.where(usual, low, 0.0)


def add(one: Pair, other: Pair) -> Pair:
    """The sum of two pairs."""
    high, low = _two_sum(one[0], other[0])
    return _two_sum(high, low + one[1] + other[1])


def multiply(one: Pair, other: Pair) -> Pair:
    """The product of two pairs."""
    high, low = _two_product(one[0], other[0])
    return _two_sum(high, low + (one[0] * other[1] + one[1] * other[0]))


def divide(one: Pair, by: Any) -> Pair:
    """A pair divided by doubles."""
    first = one[0] / by
    high, low = _two_product(first, by)
    rest = (one[0] - high) - low + one[1]
    return _two_sum(first, rest / by)


def _scaled(one: Pair, by: float) -> Pair:
    return multiply(one, (np.full(np.shape(one[0]), by), np.zeros(np.shape(one[0]))))


def exact_pair(partials: pa.Array) -> Pair:
    """Exact sums as pairs, zero where there was no value."""
    groups = len(partials)
    high = exact_sum.rounded(partials)
    both = pa.concat_arrays([partials, exact_sum.exact(np.arange(groups), groups, pc.negate(high))])
    codes = np.concatenate([np.arange(groups), np.arange(groups)])
    low = exact_sum.rounded(exact_sum.merge(codes, groups, both))
    return floats(high), np.where(np.isfinite(floats(high)), floats(low), 0.0)


def floats(values: pa.Array) -> Any:
    """Doubles, null as zero."""
    return pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)


def central(n: Any, sums: list[Pair]) -> tuple[Any, ...]:
    """The mean, and the sums of the second to fourth powers of the distance from it."""
    count = np.maximum(n, 1.0)
    mean = divide(sums[0], count)
    square = multiply(mean, mean)
    made = [mean[0], _minus(sums[1], multiply(mean, sums[0]))[0]]
    if len(sums) > 2:
        cube = _scaled(multiply(multiply(square, mean), (n, 0.0 * n)), 2.0)
        made.append(add(_minus(sums[2], _scaled(multiply(mean, sums[1]), 3.0)), cube)[0])
    if len(sums) > 3:
        fourth = _scaled(multiply(multiply(square, square), (n, 0.0 * n)), 3.0)
        middle = _scaled(multiply(square, sums[1]), 6.0)
        start = _minus(sums[3], _scaled(multiply(mean, sums[2]), 4.0))
        made.append(_minus(add(start, middle), fourth)[0])
    return tuple(made)


def comoment(n: Any, one: Pair, other: Pair, products: Pair) -> Any:
    """The sum of the products of both distances from the mean."""
    mean = divide(one, np.maximum(n, 1.0))
    return _minus(products, multiply(mean, other))[0]


def _minus(one: Pair, other: Pair) -> Pair:
    return add(one, (-other[0], -other[1]))


def _power(exponent: int, low: bool) -> Callable[[pa.Array], pa.Array]:
    def made(values: pa.Array) -> pa.Array:
        return _column(_powers(floats(values), exponent)[low], values.is_null())

    return made


def _powers(numbers: Any, exponent: int) -> Pair:
    with np.errstate(over="ignore", invalid="ignore"):
        pair = (numbers, np.zeros(len(numbers)))
        made = pair
        for _ in range(exponent - 1):
            made = multiply(made, pair)
    return made[0], np.where(np.isfinite(made[0]), made[1], 0.0)


def _both(one: pa.Array, other: pa.Array) -> pa.Array:
    return pc.or_(one.is_null(), other.is_null())


def _side(number: int, exponent: int, low: bool) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """A power of one of two columns, in the rows in which both have a value."""

    def made(one: pa.Array, other: pa.Array) -> pa.Array:
        numbers = floats((one, other)[number])
        return _column(_powers(numbers, exponent)[low], _both(one, other))

    return made


def _product(low: bool) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def made(one: pa.Array, other: pa.Array) -> pa.Array:
        with np.errstate(over="ignore", invalid="ignore"):
            pair = _two_product(floats(one), floats(other))
        return _column(pair[low], _both(one, other))

    return made


def _column(numbers: Any, missing: pa.Array) -> pa.Array:
    return pa.array(numbers, pa.float64(), mask=missing.to_numpy(zero_copy_only=False))


SOURCES: dict[str, Callable[..., pa.Array]] = {
    "x": _power(1, False),
    **{f"x{k}": _power(k, False) for k in (2, 3, 4)},
    **{f"x{k}low": _power(k, True) for k in (2, 3, 4)},
    "a": _side(0, 1, False),
    "b": _side(1, 1, False),
    "aa": _side(0, 2, False),
    "aalow": _side(0, 2, True),
    "bb": _side(1, 2, False),
    "bblow": _side(1, 2, True),
    "ab": _product(False),
    "ablow": _product(True),
}
"""What is summed, from one column or two."""
