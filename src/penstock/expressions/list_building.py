"""Functions that make arrays: of values, of arrays and values, and of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, folded, strict
from penstock.expressions.list_operands import any_in_row, list_operands, with_element
from penstock.expressions.lists import (
    arrays_of,
    list_type,
    made_list,
    parts,
)
from penstock.expressions.nodes import Apply, Literal, Node
from penstock.expressions.types import is_integer

__all__ = ["FUNCTIONS", "concat_lists", "joined_lists"]

Build = Callable[[Call], Node]


def _array(call: Call) -> Node:
    args = call.common(*range(len(call.args))) if call.args else []
    kind = args[0].type if args else pa.null()
    if not args:
        return Literal(pa.scalar([], list_type(pa.string())))
    return folded(Apply(_array_of, args, list_type(kind)))


def _array_of(*values: Any) -> pa.Array:
    arrays = arrays_of(*values)
    count, rows = len(arrays), len(arrays[0])
    order = np.arange(count * rows).reshape(count, rows).T.ravel()
    flat = pa.concat_arrays(arrays).take(pa.array(order))
    return made_list(flat, np.full(rows, count))


def concat_lists(call: Call) -> Node:
    """concat of arrays."""
    nodes = list_operands(call, *range(len(call.args)))
    made = nodes[0]
    for node in nodes[1:]:
        made = strict(joined_lists, [made, node], list_type(node.type.value_type))
    return made


def joined_lists(one: Any, other: Any) -> pa.Array:
    """Both lists in one, null if one of them is."""
    one, other = arrays_of(one, other)
    first, second = parts(one), parts(other)
    valid = first.valid & second.valid
    rows = np.concatenate([first.rows, second.rows])
    order = np.argsort(rows, kind="stable")
    order = order[valid[rows[order]]]
    values = pa.concat_arrays([first.values, second.values]).take(pa.array(order))
    return made_list(values, (first.lengths + second.lengths) * valid, valid)


def _append(*, front: bool) -> Build:
    def build(call: Call) -> Node:
        call.arity(2)
        node, value = with_element(call, 0, 1)
        single = folded(Apply(_array_of, [value], list_type(value.type)))
        pair = [single, node] if front else [node, single]
        return strict(joined_lists, pair, list_type(value.type))

    return build


def _insert(call: Call) -> Node:
    call.arity(3)
    node, value = with_element(call, 0, 2)
    kind = list_type(node.type.value_type)
    single = folded(Apply(_array_of, [value], list_type(value.type)))
    return strict(_inserted, [node, call.integer(1), single], kind, fallible=True)


def _inserted(values: Any, position: Any, single: Any) -> pa.Array:
    """At a place from 1, or from -1 at the end; nulls fill the gap to a place outside."""
    values, position, single = arrays_of(values, position, single)
    lists, item = parts(values), parts(single)
    known = position.is_valid().to_numpy(zero_copy_only=False) & lists.valid
    place = np.asarray(pc.fill_null(position, 1))
    if (place[known] == 0).any():
        raise DataError("the place in array_insert counts from 1, or from -1 at the end; it is 0")
    count = lists.lengths
    # -1 puts it behind the last element, as Spark 4 counts.
    at = np.where(place > 0, place - 1, np.maximum(count + place + 1, 0))
    lead = np.where(place > 0, 0, np.maximum(-(count + place + 1), 0))
    lead = np.where(lead > 0, lead, 0)
    size = np.where(known, np.maximum(count + lead, at) + 1, 0)
    starts = np.cumsum(size) - size
    row = np.repeat(np.arange(len(size)), size)
    index = np.arange(len(row)) - starts[row]
    is_new = index == at[row]
    old = index - (index > at[row]) - lead[row]
    inside = ~is_new & (old >= 0) & (old < count[row])
    source = np.where(is_new, len(lists.values) + row, lists.starts[row] + old)
    flat = pa.concat_arrays([lists.values, item.values])
    made = flat.take(pa.array(np.where(inside | is_new, source, 0), mask=~(inside | is_new)))
    return made_list(made, size, known)


def _repeat(call: Call) -> Node:
    call.arity(2)
    value = call.args[0]
    return folded(Apply(_repeated, [value, call.integer(1)], list_type(value.type)))


def _repeated(value: Any, count: Any) -> pa.Array:
    value, count = arrays_of(value, count)
    known = count.is_valid().to_numpy(zero_copy_only=False)
    times = np.where(known, np.maximum(np.asarray(pc.fill_null(count, 0)), 0), 0)
    rows = np.repeat(np.arange(len(value)), times)
    return made_list(value.take(pa.array(rows)), times, known)


def _flatten(call: Call) -> Node:
    call.arity(1)
    node = call.array(0)
    inner = node.type.value_type
    if not pa.types.is_list(inner):
        call.refuse(f"takes an array of arrays, but it is {node.type}", 0)
    return strict(_flat, [node], list_type(inner.value_type))


def _flat(values: Any) -> pa.Array:
    lists = parts(values)
    inner = parts(lists.values)
    broken = any_in_row(lists, ~inner.valid)
    valid = lists.valid & ~broken
    owner = lists.rows[inner.rows] if len(inner.rows) else inner.rows
    chosen = valid[owner]
    lengths = np.bincount(owner[chosen], minlength=len(lists.lengths))
    return made_list(inner.values.filter(pa.array(chosen)), lengths, valid)


def _sequence(call: Call) -> Node:
    call.arity(2, 3)
    step = call.integer(2) if len(call.args) == 3 else None
    dates = pa.types.is_date32(call.args[0].type)
    if (dates and step is not None) or not (dates or is_integer(call.args[0].type)):
        call.refuse("takes integers, or dates without a step (each day)", 0)
    one, other = call.common(0, 1)
    kind = one.type
    ends = [
        coerced(coerced(node, pa.int32()) if dates else node, pa.int64()) for node in (one, other)
    ]
    made = strict(
        _range, [*ends, *([step] if step is not None else [])], list_type(pa.int64()), fallible=True
    )
    return strict(_narrowed, [made], list_type(kind), target=kind)


def _narrowed(values: Any, target: pa.DataType) -> pa.Array:
    lists = parts(values)
    numbers = lists.values.cast(pa.int32()) if pa.types.is_date32(target) else lists.values
    return made_list(numbers.cast(target), lists.lengths, lists.valid)


def _range(start: Any, stop: Any, step: Any = None) -> pa.Array:
    start, stop = arrays_of(start, stop) if step is None else arrays_of(start, stop, step)[:2]
    known = pc.and_(start.is_valid(), stop.is_valid())
    low, high = (np.asarray(pc.fill_null(one, 0)) for one in (start, stop))
    if step is None:
        by: Any = np.where(high >= low, 1, -1)
    else:
        (step, _) = arrays_of(step, start)
        known = pc.and_(known, step.is_valid())
        by = np.asarray(pc.fill_null(step, 1))
    known = known.to_numpy(zero_copy_only=False)
    wrong = known & (
        ((by > 0) & (low > high)) | ((by < 0) & (low < high)) | ((by == 0) & (low != high))
    )
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise DataError(f"sequence cannot go from {low[at]} to {high[at]} by {by[at]}")
    count = np.where(known, (high - low) // np.where(by == 0, 1, by) + 1, 0)
    row = np.repeat(np.arange(len(count)), count)
    index = np.arange(len(row)) - (np.cumsum(count) - count)[row]
    return made_list(pa.array(low[row] + index * by[row], pa.int64()), count, known)


FUNCTIONS: dict[str, Build] = {
    "array": _array,
    "array_append": _append(front=False),
    "array_prepend": _append(front=True),
    "array_insert": _insert,
    "array_repeat": _repeat,
    "flatten": _flatten,
    "sequence": _sequence,
}
