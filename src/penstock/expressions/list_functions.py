"""Functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, common, folded, null, strict
from penstock.expressions.lists import (
    Elements,
    arrays_of,
    codes_of,
    equal,
    kept,
    list_type,
    made_list,
    parts,
    sorted_rows,
)
from penstock.expressions.nodes import Apply, Literal, Node
from penstock.expressions.types import is_integer, is_string

__all__ = ["FUNCTIONS", "list_operands"]

Build = Callable[[Call], Node]


def list_operands(call: Call, *indexes: int) -> list[Node]:
    """Arrays brought to one type of elements."""
    nodes = [call.array(index) for index in indexes]
    element = common([null(node.type.value_type) for node in nodes])
    if element is None:
        kinds = ", ".join(str(node.type) for node in nodes)
        call.refuse(f"the arrays have no common type: {kinds}")
    return [_as_list(node, element) for node in nodes]


def _as_list(node: Node, element: pa.DataType) -> Node:
    kind = list_type(element)
    if node.type.value_type == element:
        return node
    return strict(_cast_list, [node], kind, target=kind)


def _cast_list(values: Any, target: pa.DataType) -> pa.Array:
    return pc.cast(values, target)


def _with_element(call: Call, list_index: int, element_index: int) -> tuple[Node, Node]:
    """An array and a value brought to the type of its elements."""
    node, value = call.array(list_index), call.args[element_index]
    kind = common([null(node.type.value_type), value])
    if kind is None:
        call.refuse(f"an array of {node.type.value_type} has no {value.type} in it", element_index)
    return _as_list(node, kind), coerced(value, kind)


def _list_map(kernel: Callable[[Elements], Any], **options: Any) -> Build:
    """A function of one array to an array of the same type."""

    def build(call: Call) -> Node:
        call.arity(1)
        node = call.array(0)
        kind = list_type(node.type.value_type)
        return strict(_on_parts, [node], kind, inner=kernel, options=options)

    return build


def _on_parts(values: Any, inner: Callable[..., Any], options: Any) -> pa.Array:
    return inner(parts(values), **options)


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


def _size(call: Call) -> Node:
    call.arity(1)
    node = call.args[0] if pa.types.is_map(call.args[0].type) else call.array(0)
    return strict(_length, [node], pa.int32())


def _length(values: Any) -> pa.Array:
    if pa.types.is_map(values.type):
        values = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    return pc.list_value_length(values).cast(pa.int32())


def _distinct(lists: Elements) -> pa.Array:
    return kept(lists, _first_of_its_kind(lists))


def _first_of_its_kind(lists: Elements) -> Any:
    codes = codes_of(pa.array(lists.rows), lists.values)
    first = np.zeros(len(codes), bool)
    first[np.unique(codes, return_index=True)[1]] = True
    return first


def _compact(lists: Elements) -> pa.Array:
    return kept(lists, lists.values.is_valid().to_numpy(zero_copy_only=False))


def _reversed(lists: Elements) -> pa.Array:
    ends = lists.starts + lists.lengths - 1
    place = ends[lists.rows] - lists.positions
    return made_list(lists.values.take(pa.array(place)), lists.lengths, lists.valid)


def _sorted(lists: Elements, descending: bool, nulls_first: bool) -> pa.Array:
    order = sorted_rows(lists.rows, lists.values, descending=descending, nulls_first=nulls_first)
    return made_list(lists.values.take(order), lists.lengths, lists.valid)


def _sort_array(call: Call) -> Node:
    call.arity(1, 2)
    ascending = bool(call.constant(1, True))
    return _list_map_of(call, _sorted, descending=not ascending, nulls_first=ascending)


def _array_sort(call: Call) -> Node:
    call.arity(1, 2)
    if len(call.args) == 2:
        call.refuse("a comparator is not supported; sort an array of structs by their fields", 1)
    return _list_map_of(call, _sorted, descending=False, nulls_first=False)


def _list_map_of(call: Call, kernel: Callable[..., Any], **options: Any) -> Node:
    node = call.array(0)
    kind = list_type(node.type.value_type)
    return strict(_on_parts, [node], kind, inner=kernel, options=options)


def _extreme(*, greatest: bool) -> Build:
    def build(call: Call) -> Node:
        call.arity(1)
        node = call.array(0)
        return strict(_most, [node], node.type.value_type, greatest=greatest)

    return build


def _most(values: Any, greatest: bool) -> pa.Array:
    """The greatest or least element that is not null."""
    lists = parts(_on_parts(values, _compact, {}))
    order = sorted_rows(lists.rows, lists.values, descending=greatest, nulls_first=False)
    empty = lists.lengths == 0
    ordered = lists.values.take(order)
    return ordered.take(pa.array(np.where(empty, 0, lists.starts), pa.int64(), mask=empty))


def _found(kernel: Callable[..., Any], kind: pa.DataType) -> Build:
    """A function of an array and a value that may be in it."""

    def build(call: Call) -> Node:
        call.arity(2)
        node, value = _with_element(call, 0, 1)
        return strict(kernel, [node, value], kind)

    return build


def _matches(lists: Elements, value: pa.Array) -> Any:
    return equal(lists.values, value.take(pa.array(lists.rows)))


def _any_in_row(lists: Elements, flags: Any) -> Any:
    return np.bincount(lists.rows[flags], minlength=len(lists.lengths)) > 0


def _contains(values: Any, value: Any) -> pa.Array:
    values, value = arrays_of(values, value)
    lists = parts(values)
    hit = _any_in_row(lists, _matches(lists, value))
    unsure = _any_in_row(lists, lists.values.is_null().to_numpy(zero_copy_only=False)) & ~hit
    missing = value.is_null().to_numpy(zero_copy_only=False) | ~lists.valid
    return pa.array(hit, mask=missing | unsure)


def _position(values: Any, value: Any) -> pa.Array:
    values, value = arrays_of(values, value)
    lists = parts(values)
    hits = np.flatnonzero(_matches(lists, value))
    place = np.zeros(len(values), np.int64)
    place[lists.rows[hits][::-1]] = lists.positions[hits][::-1] + 1
    missing = value.is_null().to_numpy(zero_copy_only=False) | ~lists.valid
    return pa.array(place, mask=missing)


def _remove(call: Call) -> Node:
    call.arity(2)
    node, value = _with_element(call, 0, 1)
    return strict(_without, [node, value], list_type(node.type.value_type))


def _without(values: Any, value: Any) -> pa.Array:
    values, value = arrays_of(values, value)
    lists = parts(values)
    known = value.is_valid().to_numpy(zero_copy_only=False) & lists.valid
    return kept(lists, ~_matches(lists, value) & known[lists.rows], known)


def _set_function(kernel: Callable[..., Any]) -> Build:
    """union, intersect, except: of two arrays, each value once."""

    def build(call: Call) -> Node:
        call.arity(2)
        one, other = list_operands(call, 0, 1)
        return strict(kernel, [one, other], list_type(one.type.value_type))

    return build


def _union(one: Any, other: Any) -> pa.Array:
    return _distinct(parts(_joined(one, other)))


def _members(one: Any, other: Any) -> tuple[Elements, Elements, Any, Any]:
    """Two lists, whether each element of the first is in the second, and the rows without null."""
    one, other = arrays_of(one, other)
    first, second = parts(one), parts(other)
    rows = pa.array(np.concatenate([first.rows, second.rows]))
    codes = codes_of(rows, pa.concat_arrays([first.values, second.values]))
    mine, theirs = codes[: len(first.rows)], codes[len(first.rows) :]
    return first, second, np.isin(mine, theirs), first.valid & second.valid


def _intersect(one: Any, other: Any) -> pa.Array:
    first, _, there, valid = _members(one, other)
    return kept(first, there & _first_of_its_kind(first) & valid[first.rows], valid)


def _except(one: Any, other: Any) -> pa.Array:
    first, _, there, valid = _members(one, other)
    return kept(first, ~there & _first_of_its_kind(first) & valid[first.rows], valid)


def _overlap(call: Call) -> Node:
    call.arity(2)
    return strict(_overlapping, list_operands(call, 0, 1), pa.bool_())


def _overlapping(one: Any, other: Any) -> pa.Array:
    first, second, there, valid = _members(one, other)
    real = first.values.is_valid().to_numpy(zero_copy_only=False)
    hit = _any_in_row(first, there & real)
    nulls = _any_in_row(first, ~real) | _any_in_row(
        second, second.values.is_null().to_numpy(zero_copy_only=False)
    )
    unsure = ~hit & nulls & (first.lengths > 0) & (second.lengths > 0)
    return pa.array(hit, mask=~valid | unsure)


def _concat_lists(call: Call) -> Node:
    nodes = list_operands(call, *range(len(call.args)))
    made = nodes[0]
    for node in nodes[1:]:
        made = strict(_joined, [made, node], list_type(node.type.value_type))
    return made


def _joined(one: Any, other: Any) -> pa.Array:
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
        node, value = _with_element(call, 0, 1)
        single = folded(Apply(_array_of, [value], list_type(value.type)))
        pair = [single, node] if front else [node, single]
        return strict(_joined, pair, list_type(value.type))

    return build


def _insert(call: Call) -> Node:
    call.arity(3)
    node, value = _with_element(call, 0, 2)
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


def _join(call: Call) -> Node:
    call.arity(2, 3)
    node = call.array(0)
    if not is_string(node.type.value_type):
        node = _as_list(node, pa.string())
    replacement = call.constant(2)
    return call.applied(
        _joined_text, pa.string(), [node], {"separator": call.string(1)}, replacement=replacement
    )


def _joined_text(values: Any, separator: str, replacement: str | None) -> pa.Array:
    lists = parts(values)
    if replacement is None:
        values = _compact(lists)
    else:
        filled = pc.fill_null(lists.values, replacement)
        values = made_list(filled, lists.lengths, lists.valid)
    return pc.binary_join(values, separator)


def _slice(call: Call) -> Node:
    call.arity(3)
    node = call.array(0)
    kind = list_type(node.type.value_type)
    return strict(_sliced, [node, call.integer(1), call.integer(2)], kind, fallible=True)


def _sliced(values: Any, start: Any, length: Any) -> pa.Array:
    values, start, length = arrays_of(values, start, length)
    lists = parts(values)
    known = lists.valid.copy()
    for one in (start, length):
        known &= one.is_valid().to_numpy(zero_copy_only=False)
    first, count = (np.asarray(pc.fill_null(one, 1)) for one in (start, length))
    if (first[known] == 0).any() or (count[known] < 0).any():
        raise DataError("slice counts from 1 (or from -1 at the end), and takes 0 elements or more")
    begin = np.where(first > 0, first - 1, lists.lengths + first)
    index = lists.positions
    low, high = begin[lists.rows], (begin + count)[lists.rows]
    inside = (index >= low) & (index < high) & (low >= 0) & known[lists.rows]
    return kept(lists, inside, known)


def _element(call: Call, index: int, *, base: int, outside: str) -> Node:
    node = call.array(0)
    options = {"base": base, "outside": outside}
    fails = outside == "error" or base == 1
    return strict(_at, [node, call.integer(index)], node.type.value_type, fallible=fails, **options)


def _at(values: Any, index: Any, base: int, outside: str) -> pa.Array:
    values, index = arrays_of(values, index)
    lists = parts(values)
    known = lists.valid & index.is_valid().to_numpy(zero_copy_only=False)
    place = np.asarray(pc.fill_null(index, 1))
    if base == 1:
        if (place[known] == 0).any():
            raise DataError("elements of an array are counted from 1, or from -1 at the end, not 0")
        place = np.where(place > 0, place - 1, lists.lengths + place)
    inside = (place >= 0) & (place < lists.lengths)
    if outside == "error" and (known & ~inside).any():
        row = int(np.flatnonzero(known & ~inside)[0])
        raise DataError(
            f"the array has {lists.lengths[row]} elements, none at {index[row].as_py()}; F.get and "
            "try_element_at give NULL instead"
        )
    there = known & inside
    return lists.values.take(pa.array(np.where(there, lists.starts + place, 0), mask=~there))


def _get(call: Call) -> Node:
    call.arity(2)
    return _element(call, 1, base=0, outside="null")


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
    broken = _any_in_row(lists, ~inner.valid)
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
    "size": _size,
    "cardinality": _size,
    "array_size": _size,
    "array_distinct": _list_map(_distinct),
    "array_compact": _list_map(_compact),
    "sort_array": _sort_array,
    "array_sort": _array_sort,
    "array_max": _extreme(greatest=True),
    "array_min": _extreme(greatest=False),
    "array_contains": _found(_contains, pa.bool_()),
    "array_position": _found(_position, pa.int64()),
    "array_remove": _remove,
    "array_union": _set_function(_union),
    "array_intersect": _set_function(_intersect),
    "array_except": _set_function(_except),
    "arrays_overlap": _overlap,
    "array_append": _append(front=False),
    "array_prepend": _append(front=True),
    "array_insert": _insert,
    "array_repeat": _repeat,
    "array_join": _join,
    "slice": _slice,
    "get": _get,
    "flatten": _flatten,
    "sequence": _sequence,
}

reverse_list = _list_map(_reversed)
concat_lists = _concat_lists
element = _element
