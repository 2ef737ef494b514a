"""from_json, to_json, get_json_object and their kin."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json
from pyarrow import types as t

from penstock.errors import SchemaError
from penstock.expressions.bytes import spread
from penstock.expressions.call import Call
from penstock.expressions.coerce import strict
from penstock.expressions.ddl import parse_schema, parse_type
from penstock.expressions.json_index import ARRAY, OBJECT, JsonIndex
from penstock.expressions.json_read import as_text, can_read, read, unescaped
from penstock.expressions.json_write import json_of
from penstock.expressions.lists import arrays_of, list_type, made_list
from penstock.expressions.nodes import Node

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]
_BLOCK = 4096
_STEP = re.compile(r"\.([^.\[\]*]+)|\['([^']+)'\]|\[(\d+)\]")


def _from_json(call: Call) -> Node:
    call.arity(2, 3)
    if len(call.args) == 3:
        call.refuse("options are not supported", 2)
    kind = _schema(call, call.constant_string(1))
    if not can_read(kind):
        call.refuse(f"values of {kind} cannot be read from JSON", 1)
    return strict(_parsed, [call.string(0)], kind, target=kind)


def _schema(call: Call, text: str) -> pa.DataType:
    """A type, or the columns of a struct."""
    try:
        if re.match(r"(?i)\s*(struct|array|map)\s*<", text):
            return parse_type(text, call.name)
        return pa.struct(list(parse_schema(text, call.name)))
    except SchemaError as error:
        call.refuse(str(error), 1)


def _parsed(values: Any, target: pa.DataType) -> pa.Array:
    (values,) = arrays_of(values)
    quick = _parsed_by_arrow(values, target)
    if quick is not None:
        return quick
    return _in_blocks(values, partial(_parsed_by_index, target=target))


def _in_blocks(values: pa.Array, run: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """A few thousand texts at a time: what is between the steps stays in the cache."""
    if len(values) <= _BLOCK:
        return run(values)
    starts = range(0, len(values), _BLOCK)
    return pa.concat_arrays([run(values.slice(start, _BLOCK)) for start in starts])


def _parsed_by_index(values: pa.Array, target: pa.DataType) -> pa.Array:
    index = JsonIndex(values, strict=True)
    made = read(index, index.root, target)
    if t.is_struct(target):
        # A malformed text gives a struct of nulls, an empty one and null give null.
        blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(values)), 0)
        empty = pc.or_(values.is_null(), blank.fill_null(True))
        fields = [target.field(i) for i in range(target.num_fields)]
        return pa.StructArray.from_arrays(made.flatten(), fields=fields, mask=empty)
    return made


def _exact(kind: pa.DataType) -> pa.DataType | None:
    """The type to read with Arrow, if that gives what Spark's reader does, or fails."""
    if t.is_struct(kind):
        fields = [(field.name, _exact(field.type)) for field in kind]
        return None if any(made is None for _, made in fields) else pa.struct(fields)
    if t.is_list(kind):
        inner = _exact(kind.value_type)
        return None if inner is None else list_type(inner)
    if t.is_signed_integer(kind):
        return pa.int64()
    return kind if t.is_float64(kind) or t.is_boolean(kind) or t.is_string(kind) else None


def _parsed_by_arrow(values: pa.Array, target: pa.DataType) -> pa.Array | None:
    """The usual case, four times as fast: every text is one object of just these types.

    Arrow reads a stream of objects and fails on anything else.  Each text begins with ``{`` and
    ends with ``}``, so no object goes from one text into the next; as many objects as texts means
    one in each.
    """
    exact = _exact(target) if t.is_struct(target) else None
    if exact is None or values.null_count or not len(values):
        return None
    whole = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if not pc.all(whole).as_py():
        return None
    data, _, _ = spread(pc.binary_join_element_wise(values, "\n", ""))
    try:
        made = json.read_json(
            pa.BufferReader(pa.py_buffer(data)),
            json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            json.ParseOptions(pa.schema(list(exact)), unexpected_field_behavior="ignore"),
        )
        if made.num_rows != len(values) or made.schema.types != [field.type for field in exact]:
            return None
        # An integer that is too large for its type fails here.
        columns = [
            column.combine_chunks().cast(field.type)
            for column, field in zip(made.columns, target, strict=True)
        ]
    except pa.ArrowInvalid:
        return None
    return pa.StructArray.from_arrays(columns, fields=list(target))


def _get_object(call: Call) -> Node:
    call.arity(2)
    path = call.constant_string(1)
    steps, at = [], 1
    while at < len(path) and (found := _STEP.match(path, at)):
        steps.append(int(found[3]) if found[3] else (found[1] or found[2]).strip())
        at = found.end()
    if not path.startswith("$") or at < len(path):
        call.refuse(f"the path {path!r} is not supported; write $, then .name, ['name'] or [0]", 1)
    return strict(_found, [call.string(0)], pa.string(), steps=tuple(steps))


def _found(values: Any, steps: tuple[str | int, ...]) -> pa.Array:
    (values,) = arrays_of(values)
    return _in_blocks(values, partial(_at_path, steps=steps))


def _at_path(values: pa.Array, steps: tuple[str | int, ...]) -> pa.Array:
    index = JsonIndex(values)
    nodes = index.root
    for step in steps:
        kinds = index.kinds(nodes)
        if isinstance(step, str):
            nodes = index.child(np.where(kinds == OBJECT, nodes, -1), step, first=True)
        else:
            members, sizes = index.children(np.where(kinds == ARRAY, nodes, -1))
            starts = np.cumsum(sizes) - sizes
            inside = step < sizes
            nodes = np.append(members, -1)[np.where(inside, starts + step, -1)]
    made = as_text(index, nodes)
    return made if steps else pc.coalesce(made, index.texts(nodes))


def _array_length(call: Call) -> Node:
    call.arity(1)
    return strict(_lengths, [call.string(0)], pa.int32())


def _lengths(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    index = JsonIndex(values)
    there = index.kinds(index.root) == ARRAY
    _, sizes = index.children(np.where(there, index.root, -1))
    return pa.array(sizes, pa.int32(), mask=~there)


def _object_keys(call: Call) -> Node:
    call.arity(1)
    return strict(_keys, [call.string(0)], list_type(pa.string()))


def _keys(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    index = JsonIndex(values)
    there = index.kinds(index.root) == OBJECT
    members, sizes = index.children(np.where(there, index.root, -1))
    names = unescaped(index.spans(index.key_start[members], index.key_stop[members]))
    return made_list(names, sizes, there)


# -- writing ---------------------------------------------------------------------------------------


def _to_json(call: Call) -> Node:
    call.arity(1, 2)
    if len(call.args) == 2:
        call.refuse("options are not supported", 1)
    node = call.args[0]
    if not (t.is_struct(node.type) or t.is_list(node.type) or t.is_map(node.type)):
        call.refuse(f"takes a struct, an array or a map, but it is {node.type}", 0)
    return strict(_written, [node], pa.string())


def _written(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    return json_of(values)


FUNCTIONS: dict[str, Build] = {
    "from_json": _from_json,
    "get_json_object": _get_object,
    "json_array_length": _array_length,
    "json_object_keys": _object_keys,
    "to_json": _to_json,
}
