"""Functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.call import Call
from penstock.expressions.coerce import strict
from penstock.expressions.list_building import joined_lists
from penstock.expressions.list_operands import any_in_row, as_list, list_operands, with_element
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
from penstock.expressions.nodes import Node
from penstock.expressions.types import is_string

__all__ = ["FUNCTIONS", "element", "reverse_list"]

Build = Callable[[Call], Node]


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
        node, value = with_element(call, 0, 1)
        return strict(kernel, [node, value], kind)

    return build


def _matches(lists: Elements, value: pa.Array) -> Any:
    return equal(lists.values, value.take(pa.array(lists.rows)))


def _contains(values: Any, value: Any) -> pa.Array:
    values, value = arrays_of(values, value)
    lists = parts(values)
    hit = any_in_row(lists, _matches(lists, value))
    unsure = any_in_row(lists, lists.values.is_null().to_numpy(zero_copy_only=False)) & ~hit
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
    node, value = with_element(call, 0, 1)
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
    return _distinct(parts(joined_lists(one, other)))


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
    hit = any_in_row(first, there & real)
    nulls = any_in_row(first, ~real) | any_in_row(
        second, second.values.is_null().to_numpy(zero_copy_only=False)
    )
    unsure = ~hit & nulls & (first.lengths > 0) & (second.lengths > 0)
    return pa.array(hit, mask=~valid | unsure)


def _join(call: Call) -> Node:
    call.arity(2, 3)
    node = call.array(0)
    if not is_string(node.type.value_type):
        node = as_list(node, pa.string())
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


FUNCTIONS: dict[str, Build] = {
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
    "array_join": _join,
    "slice": _slice,
    "get": _get,
}

reverse_list = _list_map(_reversed)
element = _element
