"""The table of aggregates: what each keeps of its rows, and how the result follows from that.

An aggregate is split so that it can be combined before an exchange and merged in any order: rows to
partial columns, partial columns of several to those of one, and these to the result.  A partial
column has a label; its name is ``$label(columns)``, so that aggregates share what they have in
common, and the label alone says how it is merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.types import adjusted_decimal
from penstock.operators import exact_sum, moments
from penstock.operators.collected import list_of, owners
from penstock.operators.terms import Aggregate

__all__ = ["AGGREGATES", "ALIASES", "MERGES", "SOURCES", "AggregateKind", "Partial", "ordinal"]

Columns = Callable[[str], pa.Array]
"""The partial column of a label."""


@dataclass(frozen=True)
class Partial:
    """A partial column: its label, how rows are folded into it, and what is made of them first."""

    label: str
    fold: str
    source: str = "self"


@dataclass(frozen=True)
class AggregateKind:
    """An aggregate: what it keeps, its result, and what its columns must be."""

    partials: tuple[Partial, ...]
    result: Callable[[Columns, Aggregate], pa.Array]
    takes: str = "any"
    columns: int = 1
    options: int = 0
    """How many constants may follow the columns."""


def _wide(values: pa.Array) -> pa.Array:
    """Numbers in the type of their sums."""
    if pa.types.is_decimal(values.type):
        kind = values.type
        return values.cast(pa.decimal128(min(38, kind.precision + 10), kind.scale))
    return values.cast(pa.int64()) if pa.types.is_integer(values.type) else values


def _true(values: pa.Array) -> pa.Array:
    return pc.if_else(values, values, pa.scalar(None, pa.bool_()))


def _pair(value: pa.Array, by: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([by, value], names=["by", "value"])


def _known_pair(value: pa.Array, by: pa.Array) -> pa.Array:
    return _pair(value, pc.if_else(value.is_valid(), by, pa.scalar(None, by.type)))


def _row(*columns: pa.Array) -> pa.Array:
    """Several columns as one; null if one of them is, as COUNT(DISTINCT a, b) has it."""
    if len(columns) == 1:
        return columns[0]
    missing = np.zeros(len(columns[0]), bool)
    for column in columns:
        missing |= column.is_null().to_numpy(zero_copy_only=False)
    names = [str(number) for number in range(len(columns))]
    return pa.StructArray.from_arrays(list(columns), names=names, mask=pa.array(missing))


SOURCES: dict[str, Callable[..., pa.Array]] = {
    "self": lambda values: values,
    "wide": _wide,
    "true": _true,
    "pair": _pair,
    "known pair": _known_pair,
    "row": _row,
    "text": lambda values: values.cast(pa.string()),
    **moments.SOURCES,
}
"""What is made of the columns before they are folded."""

_COUNT = Partial("count", "count")
_SUM = Partial("sum", "sum", "wide")
_SET, _LIST = Partial("set", "set", "row"), Partial("list", "list")


def _only(label: str) -> Callable[[Columns, Aggregate], pa.Array]:
    return lambda get, one: get(label)


def _sum(get: Columns, one: Aggregate) -> pa.Array:
    values = get("sum")
    return exact_sum.rounded(values) if pa.types.is_list(values.type) else values


def _avg(get: Columns, one: Aggregate) -> pa.Array:
    total, count = _sum(get, one), get("count")
    if pa.types.is_decimal(total.type):
        return _decimal_mean(total, count)
    return pc.divide(total.cast(pa.float64(), safe=False), count.cast(pa.float64()))


def _decimal_mean(total: pa.Array, count: pa.Array) -> pa.Array:
    """Spark's type: four more digits than the column has, all of them behind the point."""
    precision, scale = total.type.precision - 10, total.type.scale
    kind = adjusted_decimal(precision + 4, scale + 4)
    count = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
    wide = total.cast(pa.decimal256(total.type.precision + 5, scale + 5))
    exact = pc.divide(wide, count.cast(pa.decimal128(19, 0)).cast(pa.decimal256(19, 0)))
    rounded = pc.round(exact, ndigits=kind.scale, round_mode="half_towards_infinity")
    return rounded.cast(kind)


def _lengths(get: Columns, one: Aggregate) -> pa.Array:
    return pc.fill_null(pc.list_value_length(get("set")), 0).cast(pa.int64())


def _sum_of_set(get: Columns, one: Aggregate) -> pa.Array:
    lists = get("set")
    owner, values = owners(lists)
    groups = len(lists)
    if pa.types.is_floating(values.type):
        return exact_sum.rounded(exact_sum.exact(owner, groups, values))
    wide = _wide(values)
    table = pa.Table.from_arrays([pa.array(owner), wide], names=["g", "v"])
    made = table.group_by("g", use_threads=False).aggregate([("v", "sum")])
    totals = made["v_sum"].combine_chunks().cast(wide.type)
    return totals.take(pc.index_in(pa.array(np.arange(groups)), made["g"].combine_chunks()))


def _value(get: Columns, one: Aggregate, label: str) -> pa.Array:
    return pc.struct_field(get(label), "value")


def _joined(get: Columns, one: Aggregate) -> pa.Array:
    delimiter = str(one.options[0]) if one.options and one.options[0] is not None else ""
    lists = get("set" if one.function.endswith("distinct") else "list")
    text = pc.binary_join(lists.cast(pa.list_(pa.string())), delimiter)
    return pc.if_else(
        pc.greater(pc.list_value_length(lists), 0), text, pa.scalar(None, pa.string())
    )


def _mode(get: Columns, one: Aggregate) -> pa.Array:
    """The most frequent value, the least of several; lists are sorted, equal values together."""
    lists = get("list")
    owner, values = owners(lists)
    if not len(values):
        return pa.nulls(len(lists), values.type)
    other = np.ones(len(values), bool)
    same = pc.equal(values[1:], values[:-1])
    if pa.types.is_floating(values.type):
        same = pc.or_(same, pc.and_(pc.is_nan(values[1:]), pc.is_nan(values[:-1])))
    other[1:] = (owner[1:] != owner[:-1]) | ~same.to_numpy(zero_copy_only=False)
    start = np.flatnonzero(other)
    length = np.diff(np.append(start, len(values)))
    best = np.lexsort((start, -length, owner[start]))
    heads = np.unique(owner[start][best], return_index=True)
    place = np.zeros(len(lists), np.int64)
    empty = np.ones(len(lists), bool)
    place[heads[0]], empty[heads[0]] = start[best[heads[1]]], False
    return values.take(pa.array(place, mask=empty))


def _at(lists: pa.Array, rank: Any) -> pa.Array:
    """The element of each list at a place that is inside; null of an empty list."""
    lengths = np.asarray(lists.value_lengths().fill_null(0))
    starts = np.cumsum(lengths) - lengths
    return lists.flatten().take(pa.array(starts + rank, pa.int64(), mask=lengths == 0))


def _several(one: Aggregate, made: Callable[[float], pa.Array]) -> pa.Array:
    """The result for one percentage, or the list of those for several."""
    wanted = one.options[0]
    if not isinstance(wanted, list | tuple):
        return made(float(wanted))
    columns = [made(float(part)) for part in wanted]
    count = len(columns)
    groups = len(columns[0])
    flat = pa.concat_arrays(columns).take(
        pa.array(np.arange(count * groups).reshape(count, groups).T.ravel())
    )
    offsets = pa.array(np.arange(groups + 1, dtype=np.int32) * count)
    missing = columns[0].is_null() if groups else pa.array([], pa.bool_())
    kind = list_of(flat.type)
    return pa.ListArray.from_arrays(offsets, flat, type=kind, mask=missing)


def _percentile(get: Columns, one: Aggregate) -> pa.Array:
    lists = get("list")
    lengths = np.maximum(np.asarray(lists.value_lengths().fill_null(0)), 1)

    def made(wanted: float) -> pa.Array:
        place = (lengths - 1) * wanted
        low, high = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
        below, above = (moments.floats(_at(lists, rank)) for rank in (low, high))
        value = np.where(low == high, below, (high - place) * below + (place - low) * above)
        empty = np.asarray(lists.value_lengths().fill_null(0)) == 0
        return pa.array(value, pa.float64(), mask=empty)

    return _several(one, made)


def _median(get: Columns, one: Aggregate) -> pa.Array:
    return _percentile(get, Aggregate(one.function, one.column, one.name, options=(0.5,)))


def ordinal(count: Any, wanted: float) -> Any:
    """The place, from 0, of the value that percentile_approx gives of ``count`` sorted ones."""
    return np.maximum(np.ceil(count * wanted).astype(np.int64), 1) - 1


def _percentile_approx(get: Columns, one: Aggregate) -> pa.Array:
    lists = get("list")
    lengths = np.asarray(lists.value_lengths().fill_null(0))
    return _several(one, lambda wanted: _at(lists, ordinal(lengths, wanted)))


# -- moments -------------------------------------------------------------------------------------


def _powers(count: int) -> tuple[Partial, ...]:
    sources = ["x", *(f"x{k}{part}" for k in range(2, count + 1) for part in ("", "low"))]
    return (_COUNT, *(Partial(f"sum of {source}", "exact", source) for source in sources))


def _moments(get: Columns, count: int) -> tuple[Any, ...]:
    n = moments.floats(get("count"))
    sums = [moments.exact_pair(get("sum of x"))]
    for k in range(2, count + 1):
        high, low = (moments.exact_pair(get(f"sum of x{k}{part}")) for part in ("", "low"))
        sums.append(moments.add(high, low))
    return (n, *moments.central(n, sums))


def _from_moments(count: int, formula: Callable[..., Any], least: int = 1) -> AggregateKind:
    """``formula(n, mean, second, ...)``; null with fewer than ``least`` values, and where NaN is
    made of numbers."""

    def result(get: Columns, one: Aggregate) -> pa.Array:
        with np.errstate(all="ignore"):
            n, *made = _moments(get, count)
            value = formula(n, *made)
        missing = n < least
        if count > 2:
            missing = missing | (made[1] == 0)
        return pa.array(value, pa.float64(), mask=missing)

    return AggregateKind(_powers(count), result, "number")


_PAIRS = ("a", "b", "aa", "aalow", "bb", "bblow", "ab", "ablow")
_PAIR_PARTIALS = (
    Partial("count of ab", "count", "ab"),
    *(Partial(f"sum of {source}", "exact", source) for source in _PAIRS),
)


def _from_pairs(formula: Callable[..., Any], least: int = 1) -> AggregateKind:
    """``formula(n, mean a, mean b, second a, second b, products)``; null where it gives None."""

    def result(get: Columns, one: Aggregate) -> pa.Array:
        n = moments.floats(get("count of ab"))
        sums = {source: moments.exact_pair(get(f"sum of {source}")) for source in _PAIRS}
        with np.errstate(all="ignore"):
            squares = {k: moments.add(sums[k], sums[f"{k}low"]) for k in ("aa", "bb", "ab")}
            mean_a, m2_a = moments.central(n, [sums["a"], squares["aa"]])
            mean_b, m2_b = moments.central(n, [sums["b"], squares["bb"]])
            products = moments.comoment(n, sums["a"], sums["b"], squares["ab"])
            value, missing = formula(n, mean_a, mean_b, m2_a, m2_b, products)
        return pa.array(value, pa.float64(), mask=(n < least) | missing)

    return AggregateKind(_PAIR_PARTIALS, result, "number", columns=2)


def _corr(n: Any, ma: Any, mb: Any, a: Any, b: Any, ab: Any) -> Any:
    return ab / np.sqrt(a * b), (a == 0) | (b == 0)


def _r2(n: Any, ma: Any, mb: Any, a: Any, b: Any, ab: Any) -> Any:
    return np.where(a == 0, 1.0, ab * ab / (a * b)), b == 0


_NEVER = np.False_


AGGREGATES: dict[str, AggregateKind] = {
    "count": AggregateKind((_COUNT,), _only("count")),
    "sum": AggregateKind((_SUM,), _sum, "number"),
    "avg": AggregateKind((_SUM, _COUNT), _avg, "number"),
    "min": AggregateKind((Partial("min", "min"),), _only("min"), "order"),
    "max": AggregateKind((Partial("max", "max"),), _only("max"), "order"),
    "count_if": AggregateKind(
        (Partial("count true", "count", "true"),), _only("count true"), "boolean"
    ),
    "bool_and": AggregateKind((Partial("min", "min"),), _only("min"), "boolean"),
    "bool_or": AggregateKind((Partial("max", "max"),), _only("max"), "boolean"),
    **{
        name: AggregateKind((Partial(name, name),), _only(name), "integer")
        for name in ("bit_and", "bit_or", "bit_xor")
    },
    "count_distinct": AggregateKind((_SET,), _lengths, columns=100),
    "sum_distinct": AggregateKind((_SET,), _sum_of_set, "number"),
    "collect_set": AggregateKind((_SET,), _only("set")),
    "collect_list": AggregateKind((_LIST,), _only("list")),
    "listagg": AggregateKind((_LIST,), _joined, "string", options=1),
    "listagg_distinct": AggregateKind((_SET,), _joined, "string", options=1),
    "mode": AggregateKind((_LIST,), _mode, "order", options=1),
    "median": AggregateKind((_LIST,), _median, "number"),
    "percentile": AggregateKind((_LIST,), _percentile, "number", options=2),
    "percentile_approx": AggregateKind((_LIST,), _percentile_approx, "number", options=2),
    "max_by": AggregateKind(
        (Partial("top", "top", "pair"),), lambda get, one: _value(get, one, "top"), columns=2
    ),
    "min_by": AggregateKind(
        (Partial("low", "low", "pair"),), lambda get, one: _value(get, one, "low"), columns=2
    ),
    "first known": AggregateKind(
        (Partial("low known", "low", "known pair"),),
        lambda get, one: _value(get, one, "low known"),
        columns=2,
    ),
    "last known": AggregateKind(
        (Partial("top known", "top", "known pair"),),
        lambda get, one: _value(get, one, "top known"),
        columns=2,
    ),
    "var_pop": _from_moments(2, lambda n, mean, m2: m2 / n),
    "var_samp": _from_moments(2, lambda n, mean, m2: m2 / (n - 1), least=2),
    "stddev_pop": _from_moments(2, lambda n, mean, m2: np.sqrt(m2 / n)),
    "stddev_samp": _from_moments(2, lambda n, mean, m2: np.sqrt(m2 / (n - 1)), least=2),
    "skewness": _from_moments(3, lambda n, mean, m2, m3: np.sqrt(n) * m3 / np.sqrt(m2 * m2 * m2)),
    "kurtosis": _from_moments(4, lambda n, mean, m2, m3, m4: n * m4 / (m2 * m2) - 3.0),
    "covar_pop": _from_pairs(lambda n, ma, mb, a, b, ab: (ab / n, _NEVER)),
    "covar_samp": _from_pairs(lambda n, ma, mb, a, b, ab: (ab / (n - 1), _NEVER), least=2),
    "corr": _from_pairs(_corr, least=2),
    # Spark's order: regr_*(y, x).
    "regr_count": AggregateKind(
        (Partial("count of ab", "count", "ab"),), _only("count of ab"), "number", columns=2
    ),
    "regr_avgy": _from_pairs(lambda n, ma, mb, a, b, ab: (ma, _NEVER)),
    "regr_avgx": _from_pairs(lambda n, ma, mb, a, b, ab: (mb, _NEVER)),
    "regr_syy": _from_pairs(lambda n, ma, mb, a, b, ab: (a, _NEVER)),
    "regr_sxx": _from_pairs(lambda n, ma, mb, a, b, ab: (b, _NEVER)),
    "regr_sxy": _from_pairs(lambda n, ma, mb, a, b, ab: (ab, _NEVER)),
    "regr_slope": _from_pairs(lambda n, ma, mb, a, b, ab: (ab / b, b == 0)),
    "regr_intercept": _from_pairs(lambda n, ma, mb, a, b, ab: (ma - ab / b * mb, b == 0)),
    "regr_r2": _from_pairs(_r2),
}
"""Aggregates by name; two have names that cannot be written: first and last without nulls."""

ALIASES = {
    "mean": "avg", "try_avg": "avg", "every": "bool_and", "some": "bool_or",
    "approx_count_distinct": "count_distinct", "array_agg": "collect_list",
    "string_agg": "listagg", "string_agg_distinct": "listagg_distinct",
    "approx_percentile": "percentile_approx", "any_value": "min",
    "std": "stddev_samp", "stddev": "stddev_samp", "variance": "var_samp",
}  # fmt: skip
"""Other names of the same."""

_HOW_MERGED = {"count": "sum", "exact": "merge", "set": "join_set", "list": "join_list"}

MERGES = {
    partial.label: _HOW_MERGED.get(partial.fold, partial.fold)
    for kind in AGGREGATES.values()
    for partial in kind.partials
}
"""How the partial columns of a label are merged; sums of floats are told by their type."""
