"""Functions of maps and structs, and access to parts of nested values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions import list_functions
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, common, folded, null, strict
from penstock.expressions.lists import (
    Elements,
    arrays_of,
    codes_of,
    equal,
    list_type,
    made_list,
    parts,
)
from penstock.expressions.names import field_of
from penstock.expressions.nodes import Apply, Literal, Node

__all__ = ["FUNCTIONS", "entries_of", "made_map"]

Build = Callable[[Call], Node]


def entries_of(values: pa.Array) -> tuple[Elements, pa.Array, pa.Array]:
    """Maps as lists, and the keys and values of all entries."""
    lists = parts(values)
    return lists, pc.struct_field(lists.values, 0), pc.struct_field(lists.values, 1)


def made_map(
    keys: pa.Array, items: pa.Array, lengths: Any, valid: Any, *, checked: bool = False
) -> pa.Array:
    """Maps of the given numbers of entries; ``checked`` refuses null keys and keys that repeat."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if checked:
        _check_keys(keys, np.repeat(np.arange(len(lengths)), lengths))
    mask = None if valid is None or np.all(valid) else pa.array(~np.asarray(valid))
    kind = pa.map_(keys.type, items.type)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items, kind, mask=mask)


def _check_keys(keys: pa.Array, rows: Any) -> None:
    if keys.null_count:
        raise DataError("a map's key is NULL")
    codes = codes_of(pa.array(rows), keys)
    if len(np.unique(codes)) < len(codes):
        place = int(np.flatnonzero(np.bincount(codes)[codes] > 1)[-1])
        raise DataError(f"the key {keys[place].as_py()!r} comes twice in a map")


# -- structs -------------------------------------------------------------------------------------


def _struct(call: Call) -> Node:
    call.arity(1, 1000)
    names = [_field_name(call, tree, i) for i, tree in enumerate(call.trees)]
    return _made_struct(names, call.args)


def _field_name(call: Call, tree: Any, index: int) -> str:
    from sqlglot import exp

    if isinstance(tree, exp.Bracket) and pa.types.is_struct(call.builder.build(tree.this).type):
        return str(tree.expressions[0].name)
    return _name_of(tree, index)


def _name_of(tree: Any, index: int) -> str:
    from sqlglot import exp

    if isinstance(tree, exp.Alias):
        return str(tree.alias)
    if isinstance(tree, exp.Column | exp.Dot | exp.Identifier):
        return str(tree.name)
    return f"col{index + 1}"


def _named_struct(call: Call) -> Node:
    if len(call.args) % 2 or not call.args:
        call.refuse("takes names and values in turn")
    names = [call.constant_string(i) for i in range(0, len(call.args), 2)]
    return _made_struct(names, call.args[1::2])


def _made_struct(names: list[str], nodes: list[Node]) -> Node:
    kind = pa.struct([pa.field(name, node.type) for name, node in zip(names, nodes, strict=True)])
    return folded(Apply(_struct_of, nodes, kind, names=tuple(names)))


def _struct_of(*values: Any, names: tuple[str, ...]) -> pa.Array:
    return pa.StructArray.from_arrays(arrays_of(*values), names=list(names))


def _arrays_zip(call: Call) -> Node:
    call.arity(1, 100)
    nodes = [call.array(i) for i in range(len(call.args))]
    names = [_zip_name(tree, i) for i, tree in enumerate(call.trees)]
    fields = [pa.field(name, node.type.value_type) for name, node in zip(names, nodes, strict=True)]
    return strict(_zipped, nodes, list_type(pa.struct(fields)), names=tuple(names))


def _zip_name(tree: Any, index: int) -> str:
    made = _name_of(tree, index)
    return str(index) if made == f"col{index + 1}" else made


def _zipped(*values: Any, names: tuple[str, ...]) -> pa.Array:
    lists = [parts(one) for one in arrays_of(*values)]
    valid = np.logical_and.reduce([one.valid for one in lists])
    size = np.where(valid, np.maximum.reduce([one.lengths for one in lists]), 0)
    rows = np.repeat(np.arange(len(size)), size)
    index = np.arange(len(rows)) - (np.cumsum(size) - size)[rows]
    columns = []
    for one in lists:
        inside = index < one.lengths[rows]
        place = np.where(inside, one.starts[rows] + index, 0)
        columns.append(one.values.take(pa.array(place, pa.int64(), mask=~inside)))
    return made_list(pa.StructArray.from_arrays(columns, names=list(names)), size, valid)


# -- maps ----------------------------------------------------------------------------------------


def _map(call: Call) -> Node:
    if len(call.args) % 2 or not call.args:
        call.refuse("takes keys and values in turn")
    keys = call.common(*range(0, len(call.args), 2))
    items = call.common(*range(1, len(call.args), 2))
    kind = pa.map_(keys[0].type, items[0].type)
    return folded(Apply(_map_of, [*keys, *items], kind, fallible=True))


def _map_of(*values: Any) -> pa.Array:
    arrays = arrays_of(*values)
    count, rows = len(arrays) // 2, len(arrays[0])
    order = pa.array(np.arange(count * rows).reshape(count, rows).T.ravel())
    keys = pa.concat_arrays(arrays[:count]).take(order)
    items = pa.concat_arrays(arrays[count:]).take(order)
    return made_map(keys, items, np.full(rows, count), None, checked=True)


def _map_from_arrays(call: Call) -> Node:
    call.arity(2)
    keys, items = call.array(0), call.array(1)
    kind = pa.map_(keys.type.value_type, items.type.value_type)
    return strict(_map_from, [keys, items], kind, fallible=True)


def _map_from(keys: Any, items: Any) -> pa.Array:
    one, other = (parts(value) for value in arrays_of(keys, items))
    valid = one.valid & other.valid
    if (one.lengths != other.lengths)[valid].any():
        raise DataError("map_from_arrays: a row has another number of keys than of values")
    chosen = [pa.array(valid[side.rows]) for side in (one, other)]
    return made_map(
        one.values.filter(chosen[0]),
        other.values.filter(chosen[1]),
        one.lengths * valid,
        valid,
        checked=True,
    )


def _map_from_entries(call: Call) -> Node:
    call.arity(1)
    node = call.array(0)
    entry = node.type.value_type
    if not pa.types.is_struct(entry) or entry.num_fields != 2:
        call.refuse(f"takes an array of pairs (structs of two fields), but it is {node.type}", 0)
    kind = pa.map_(entry.field(0).type, entry.field(1).type)
    return strict(_from_entries, [node], kind, fallible=True)


def _from_entries(values: Any) -> pa.Array:
    lists = parts(values)
    broken = np.bincount(
        lists.rows[lists.values.is_null().to_numpy(zero_copy_only=False)],
        minlength=len(lists.lengths),
    )
    valid = lists.valid & (broken == 0)
    entries = lists.values.filter(pa.array(valid[lists.rows]))
    keys, items = (pc.struct_field(entries, i) for i in (0, 1))
    return made_map(keys, items, lists.lengths * valid, valid, checked=True)


def _side(index: int) -> Build:
    """map_keys and map_values."""

    def build(call: Call) -> Node:
        call.arity(1)
        node = call.map(0)
        element = node.type.item_type if index else node.type.key_type
        return strict(_one_side, [node], list_type(element), index=index)

    return build


def _one_side(values: Any, index: int) -> pa.Array:
    lists = parts(values)
    return made_list(pc.struct_field(lists.values, index), lists.lengths, lists.valid)


def _map_entries(call: Call) -> Node:
    call.arity(1)
    kind = call.map(0).type
    entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
    return strict(_entries, [call.map(0)], list_type(entry))


def _entries(values: Any) -> pa.Array:
    lists, keys, items = entries_of(values)
    entries = pa.StructArray.from_arrays([keys, items], names=["key", "value"])
    return made_list(entries, lists.lengths, lists.valid)


def _map_concat(call: Call) -> Node:
    call.arity(1, 100)
    nodes = [call.map(i) for i in range(len(call.args))]
    if any(node.type != nodes[0].type for node in nodes):
        call.refuse(f"the maps have other types: {', '.join(str(node.type) for node in nodes)}")
    return strict(_joined, nodes, nodes[0].type, fallible=True)


def _joined(*values: Any) -> pa.Array:
    taken = [entries_of(one) for one in arrays_of(*values)]
    valid = np.logical_and.reduce([lists.valid for lists, _, _ in taken])
    rows = np.concatenate([lists.rows for lists, _, _ in taken])
    order = np.argsort(rows, kind="stable")
    chosen = pa.array(order[valid[rows[order]]])
    keys = pa.concat_arrays([keys for _, keys, _ in taken]).take(chosen)
    items = pa.concat_arrays([items for _, _, items in taken]).take(chosen)
    lengths = sum(lists.lengths for lists, _, _ in taken) * valid
    return made_map(keys, items, lengths, valid, checked=True)


def _key(call: Call) -> tuple[Node, Node]:
    """A map, and an argument in the type of its keys."""
    node, key = call.map(0), call.args[1]
    if common([null(node.type.key_type), key]) != node.type.key_type:
        call.refuse(f"the keys are {node.type.key_type}, not {key.type}", 1)
    return node, coerced(key, node.type.key_type)


def _contains_key(call: Call) -> Node:
    call.arity(2)
    return strict(_has_key, list(_key(call)), pa.bool_())


def _has_key(values: Any, key: Any) -> pa.Array:
    values, key = arrays_of(values, key)
    found, missing = _looked_up(values, key)
    return pa.array(found >= 0, mask=missing)


def _value_at(call: Call) -> Node:
    node, key = _key(call)
    return strict(_map_value, [node, key], node.type.item_type)


def _map_value(values: Any, key: Any) -> pa.Array:
    values, key = arrays_of(values, key)
    _, _, items = entries_of(values)
    found, missing = _looked_up(values, key)
    return items.take(pa.array(np.maximum(found, 0), mask=missing | (found < 0)))


def _looked_up(values: pa.Array, key: pa.Array) -> tuple[Any, Any]:
    """The place of each row's key among all entries, -1 if it is not there; and where null."""
    lists, keys, _ = entries_of(values)
    hits = np.flatnonzero(equal(keys, key.take(pa.array(lists.rows))))
    found = np.full(len(values), -1)
    found[lists.rows[hits]] = hits
    return found, ~lists.valid | key.is_null().to_numpy(zero_copy_only=False)


def _element_at(outside: str) -> Build:
    def build(call: Call) -> Node:
        call.arity(2)
        if pa.types.is_map(call.args[0].type):
            return _value_at(call)
        return list_functions.element(call, 1, base=1, outside=outside)

    return build


def _item(call: Call) -> Node:
    """``x[key]``: an element of an array from 0, the value of a map, a field of a struct."""
    call.arity(2)
    kind = call.args[0].type
    if pa.types.is_map(kind):
        return _value_at(call)
    if pa.types.is_struct(kind) and isinstance(call.args[1], Literal):
        return field_of(call.builder, call.args[0], str(call.args[1].value.as_py()), call.tree)
    if not pa.types.is_list(kind):
        call.refuse(f"a part can be taken of an array, a map or a struct, but this is {kind}", 0)
    return list_functions.element(call, 1, base=0, outside="error")


def _str_to_map(call: Call) -> Node:
    call.arity(1, 3)
    pair = call.constant_string(1) if len(call.args) > 1 else ","
    key = call.constant_string(2) if len(call.args) > 2 else ":"
    kind = pa.map_(pa.string(), pa.string())
    return strict(_read_map, [call.string(0)], kind, fallible=True, pair=pair, key=key)


def _read_map(values: Any, pair: str, key: str) -> pa.Array:
    lists = parts(pc.split_pattern_regex(values, pattern=pair))
    halves = parts(pc.split_pattern_regex(lists.values, pattern=key, max_splits=1))
    keys = halves.values.take(pa.array(halves.starts))
    alone = halves.lengths < 2
    items = halves.values.take(pa.array(np.where(alone, 0, halves.starts + 1), mask=alone))
    return made_map(keys, items, lists.lengths, lists.valid, checked=True)


FUNCTIONS: dict[str, Build] = {
    "[]": _item,
    "struct": _struct,
    "named_struct": _named_struct,
    "arrays_zip": _arrays_zip,
    "map": _map,
    "map_from_arrays": _map_from_arrays,
    "map_from_entries": _map_from_entries,
    "map_keys": _side(0),
    "map_values": _side(1),
    "map_entries": _map_entries,
    "map_concat": _map_concat,
    "map_contains_key": _contains_key,
    "element_at": _element_at("error"),
    "try_element_at": _element_at("null"),
    "str_to_map": _str_to_map,
}
