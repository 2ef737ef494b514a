"""Folding and sorting rows with results that depend on the rows alone, never on their order.

Nulls form a group of their own.  Floats are compared in one order, NaN greater than every number
and one zero, as Spark does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.expressions.ordering import ordered, sort_keys, unordered
from penstock.operators import exact_sum
from penstock.operators.collected import collected, extreme, joined
from penstock.operators.encoding import Encoder, number_groups

__all__ = [
    "Fold",
    "aggregate_codes",
    "array_of",
    "group_rows",
    "sort_by",
    "sort_rows",
]

_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class Fold:
    """One aggregated column: ``kind`` of ``column`` (None for whole rows) goes to ``name``.

    Kinds: ``rows`` (how many), ``count`` (values that are not null), ``sum`` (integers and
    decimals), ``exact`` (floats to an exact partial sum), ``merge`` (exact partial sums), ``min``,
    ``max``; ``bit_and``, ``bit_or``, ``bit_xor``; ``set`` and ``list`` (sorted values, and with
    ``join_`` before it, sorted lists made one); ``top`` and ``low`` (the row of a pair ``by``,
    ``value`` with the greatest or least ``by``).
    """

    kind: str
    column: str | None
    name: str


def array_of(table: pa.Table | pa.RecordBatch, column: str | int) -> pa.Array:
    """A column as one contiguous array."""
    values = table.column(column)
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def group_rows(
    table: pa.Table | pa.RecordBatch,
    by: Sequence[str],
    folds: Sequence[Fold],
    encoders: dict[str, Encoder],
) -> pa.Table:
    """One row per different value of the ``by`` columns (which must be canonical), with folds."""
    keys = {name: array_of(table, name) for name in by}
    codes, groups, heads = number_groups(keys, table.num_rows, encoders)
    folded = aggregate_codes(codes, groups, table, folds)
    return pa.Table.from_arrays(heads + folded, names=[*by, *(fold.name for fold in folds)])


def aggregate_codes(
    codes: Any, groups: int, table: pa.Table | pa.RecordBatch, folds: Sequence[Fold]
) -> list[pa.Array]:
    """The folds of each group, in the order of the codes; every code must occur."""
    out: dict[int, pa.Array] = {}
    names, arrays = ["$g"], [pa.array(codes)]
    plan: list[Any] = []
    ready: dict[int, _Ready] = {}
    for number, fold in enumerate(folds):
        if fold.kind == "rows":
            out[number] = pa.array(np.bincount(codes, minlength=groups).astype(np.int64))
            continue
        values = array_of(table, fold.column or "")
        if fold.kind == "exact":
            out[number] = exact_sum.exact(codes, groups, values)
        elif fold.kind == "merge":
            out[number] = exact_sum.merge(codes, groups, values)
        elif fold.kind in ("set", "list"):
            out[number] = collected(codes, groups, values, distinct=fold.kind == "set")
        elif fold.kind in ("join_set", "join_list"):
            out[number] = joined(codes, groups, values, distinct=fold.kind == "join_set")
        elif fold.kind in ("top", "low"):
            out[number] = extreme(codes, groups, values, greatest=fold.kind == "top")
        else:
            made = _plain(fold.kind, codes, groups, values)
            if made is not None:
                out[number] = made
            else:
                ready[number] = _prepare(fold, values, arrays, names, plan, number)
    if ready:
        # Arrow knows every type, but a query plan takes 150 µs to set up.
        grouped = pa.Table.from_arrays(arrays, names=names)
        made = grouped.group_by(["$g"], use_threads=False).aggregate(plan)
        order = pc.sort_indices(made["$g"])
        out |= {number: one.finish(made).take(order) for number, one in ready.items()}
    return [out[number] for number in range(len(folds))]


_EMPTY = {
    "min": (1 << 63) - 1, "max": -(1 << 63), "sum": 0, "bit_and": -1, "bit_or": 0, "bit_xor": 0,
}  # fmt: skip
_INTO = {
    "min": np.minimum, "max": np.maximum, "sum": np.add, "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
}  # fmt: skip


def _plain(kind: str, codes: Any, groups: int, values: pa.Array) -> pa.Array | None:
    """A fold with NumPy, for the kinds and types that it can do: numbers and times."""
    if values.null_count:
        codes = codes[values.is_valid().to_numpy(zero_copy_only=False)]
    if kind == "count":
        return pa.array(np.bincount(codes, minlength=groups).astype(np.int64))
    numbers = ordered(values) if pa.types.is_floating(values.type) else values
    if pa.types.is_temporal(values.type) and values.type.bit_width in (32, 64):
        numbers = values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
    if not pa.types.is_signed_integer(numbers.type) or (kind == "sum" and _may_overflow(values)):
        return None
    held = numbers.drop_null().to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    folded = np.full(groups, _EMPTY[kind], np.int64)
    _INTO[kind].at(folded, codes, held)
    mask = None
    if values.null_count:
        mask = np.bincount(codes, minlength=groups) == 0
        folded[mask] = 0
    made = pa.array(folded, mask=mask).cast(numbers.type)
    return unordered(made, values.type) if numbers is not values else made


@dataclass(frozen=True)
class _Ready:
    """How a fold comes out of Arrow's aggregate: the columns made, and the type wanted."""

    columns: tuple[str, ...]
    kind: str
    type: pa.DataType | None
    label: str

    def finish(self, made: pa.Table) -> pa.Array:
        value = array_of(made, self.columns[0])
        if self.kind == "halves":
            return _joined(value, array_of(made, self.columns[1]), self.label)
        if self.type is not None and value.type != self.type:
            try:
                return value.cast(self.type)
            except pa.ArrowInvalid as error:
                raise _overflow(self.label, self.type) from error
        return value


def _prepare(
    fold: Fold,
    values: pa.Array,
    arrays: list[pa.Array],
    names: list[str],
    plan: list[Any],
    number: int,
) -> _Ready:
    """Add what Arrow's aggregate needs for a fold: arrays, their names, and the functions."""
    column = f"${number}"

    def add(extra: pa.Array, function: str, suffix: str = "") -> str:
        arrays.append(extra)
        names.append(column + suffix)
        plan.append((column + suffix, function))
        return f"{column}{suffix}_{function}"

    label = fold.name.partition("(")[2].removesuffix(")")
    if fold.kind == "sum":
        if pa.types.is_decimal(values.type):
            wide = values.cast(pa.decimal128(38, values.type.scale))
            return _Ready((add(wide, "sum"),), "plain", values.type, label)
        if _may_overflow(values):
            high, low = pc.shift_right(values, 32), pc.bit_wise_and(values, (1 << 32) - 1)
            return _Ready((add(high, "sum", "h"), add(low, "sum", "l")), "halves", None, label)
        return _Ready((add(values, "sum"),), "plain", None, label)
    return _Ready((add(values, fold.kind),), "plain", values.type, label)


def _may_overflow(values: pa.Array) -> bool:
    if values.null_count:
        values = values.drop_null()
    if not len(values):
        return False
    numbers = values.to_numpy(zero_copy_only=False)
    return max(-int(numbers.min()), int(numbers.max())) * len(values) > _INT64_MAX


def _joined(high: pa.Array, low: pa.Array, label: str) -> pa.Array:
    """64-bit sums from the sums of both halves, refusing those that do not fit."""
    missing = high.is_null().to_numpy(zero_copy_only=False)
    highs, lows = (np.asarray(part.fill_null(0)) for part in (high, low))
    highs, lows = highs + (lows >> 32), lows & ((1 << 32) - 1)
    if ((highs >= 1 << 31) | (highs < -(1 << 31))).any():
        raise _overflow(label, pa.int64())
    return pa.array((highs << 32) | lows, pa.int64(), mask=missing)


def _overflow(label: str, kind: pa.DataType) -> UsageError:
    return UsageError(
        f"the sum of {label} does not fit {kind}; cast the column to a wider decimal or "
        "to double before the aggregate",
        column=label,
    )


def sort_by(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Rows sorted by columns that together differ in every row, nulls last."""
    if table.num_rows < 2 or not names:
        return table
    keys = [(name, "ascending") for name in names]
    if not any(pa.types.is_floating(table.schema.field(name).type) for name in names):
        return table.take(pc.sort_indices(table, sort_keys=keys))
    columns = [sort_keys(array_of(table, name))[0] for name in names]
    return table.take(pc.sort_indices(pa.Table.from_arrays(columns, names=names), sort_keys=keys))


def sort_rows(table: pa.Table, first: Sequence[str] = ()) -> pa.Table:
    """Rows in the one order that depends on the rows alone: by ``first``, then by all columns."""
    if table.num_rows < 2:
        return table
    order = [*first, *(name for name in table.column_names if name not in first)]
    keys = [key for name in order for key in sort_keys(array_of(table, name))]
    names = [str(number) for number in range(len(keys))]
    index = pc.sort_indices(
        pa.Table.from_arrays(keys, names=names),
        sort_keys=[(name, "ascending") for name in names],
    )
    return table.take(index)
