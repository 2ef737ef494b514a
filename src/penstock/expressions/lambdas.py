"""Functions of columns as arguments: ``transform(xs, x -> x + n)``.

The body is compiled against a small schema of its own: the function's parameters, and the columns
of the row that it uses.  It is evaluated once for the elements of all rows together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.call import Call, is_lambda
from penstock.expressions.coerce import coerced
from penstock.expressions.lists import Elements, arrays_of, kept, list_type, made_list, parts
from penstock.expressions.maps import entries_of, made_map
from penstock.expressions.nodes import Node, Reference, as_array

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]
Body = Callable[[Sequence[pa.Array], Any], pa.Array]
"""The body of a function, on arguments and the row that each belongs to."""


class HigherOrder(Node):
    """A kernel that gets the values of its children and bodies of functions."""

    def __init__(
        self,
        kernel: Callable[..., pa.Array],
        children: Sequence[Node],
        functions: Sequence[_Compiled],
        kind: pa.DataType,
    ) -> None:
        self.kernel = kernel
        self.type = kind
        self.count = len(children)
        self.functions = tuple(functions)
        captured = [node for function in functions for node in function.captured]
        self.children = (*children, *captured)
        self.fallible = any(node.fallible for node in children) or any(
            function.body.fallible for function in functions
        )
        self.lazy = any(node.lazy for node in children)

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        values = [as_array(child.evaluate(batch), batch.num_rows) for child in self.children]
        bodies, at = [], self.count
        for function in self.functions:
            end = at + len(function.captured)
            bodies.append(_bound(function, values[at:end]))
            at = end
        return self.kernel(*values[: self.count], *bodies)


def _bound(function: _Compiled, captured: list[pa.Array]) -> Body:
    body = function.body

    def run(arguments: Sequence[pa.Array], rows: Any) -> pa.Array:
        taken = [column.take(pa.array(rows)) for column in captured]
        arrays = [*arguments[: function.parameters], *taken]
        names = [str(number) for number in range(len(arrays))]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        return as_array(body.evaluate(batch), batch.num_rows)

    return run


class _Compiled:
    """A function's body, and the columns of the row that it uses."""

    def __init__(self, body: Node, parameters: int, captured: Sequence[Node]) -> None:
        self.body = body
        self.parameters = parameters
        self.captured = tuple(captured)


def _function(
    call: Call, index: int, kinds: Sequence[pa.DataType], least: int | None = None
) -> _Compiled:
    """An argument that must be a function of so many parameters; of ``least`` or more if given."""
    tree = call.trees[index]
    if not is_lambda(tree):
        call.refuse(f"argument {index + 1} must be a function, such as x -> x + 1", index)
    names = [one.name for one in tree.expressions]
    if not (len(kinds) if least is None else least) <= len(names) <= len(kinds):
        call.refuse(f"the function takes {len(kinds)} argument(s), not {len(names)}", index)
    outer = call.builder
    kept_columns = [(i, field) for i, field in enumerate(outer.schema) if field.name not in names]
    fields = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=False)]
    inner = type(outer)(pa.schema([*fields, *(field for _, field in kept_columns)]), outer.source)
    body = inner.build(tree.this)
    captured: dict[int, int] = {}
    nodes: list[Node] = []
    for used in inner.columns:
        place = used.index - len(names)
        if place < 0:
            continue
        if place not in captured:
            captured[place] = len(names) + len(nodes)
            node = Reference(kept_columns[place][0], used.type)
            outer.columns.append(node)
            nodes.append(node)
        used.index = captured[place]
    return _Compiled(body, len(names), nodes)


def _element_function(call: Call, *, index_too: bool) -> _Compiled:
    element = call.array(0).type.value_type
    kinds = [element, pa.int32()] if index_too else [element]
    return _function(call, 1, kinds, least=1)


def _on_elements(
    kernel: Callable[..., pa.Array], result: Callable[[pa.DataType, Node], pa.DataType], **how: Any
) -> Build:
    """A function of an array and a function of its elements; ``how`` says what that must be."""
    condition, index_too = how.get("condition", True), how.get("index_too", False)

    def build(call: Call) -> Node:
        call.arity(2)
        function = _element_function(call, index_too=index_too)
        if condition:
            _require_boolean(call, function, 1)
        node = call.array(0)
        return HigherOrder(kernel, [node], [function], result(node.type, function.body))

    return build


def _require_boolean(call: Call, function: _Compiled, index: int) -> None:
    if pa.types.is_null(function.body.type):
        function.body = coerced(function.body, pa.bool_())
    if not pa.types.is_boolean(function.body.type):
        call.refuse(f"the function must give a boolean, not {function.body.type}", index)


def _run(lists: Elements, body: Body) -> pa.Array:
    return body([lists.values, pa.array(lists.positions, pa.int32())], lists.rows)


def _transform(values: Any, body: Body) -> pa.Array:
    lists = parts(values)
    return made_list(_run(lists, body), lists.lengths, lists.valid)


def _filter(values: Any, body: Body) -> pa.Array:
    lists = parts(values)
    chosen = _run(lists, body).fill_null(False).to_numpy(zero_copy_only=False)
    return kept(lists, chosen)


def _quantified(values: Any, body: Body, *, every: bool) -> pa.Array:
    lists = parts(values)
    flags = body([lists.values], lists.rows)
    if every:
        flags = pc.invert(flags)
    sure = flags.fill_null(False).to_numpy(zero_copy_only=False)
    unsure = flags.is_null().to_numpy(zero_copy_only=False)
    size = len(lists.lengths)
    hit = np.bincount(lists.rows[sure], minlength=size) > 0
    open_ = (np.bincount(lists.rows[unsure], minlength=size) > 0) & ~hit
    return pa.array(hit != every, mask=open_ | ~lists.valid)


def _exists(values: Any, body: Body) -> pa.Array:
    return _quantified(values, body, every=False)


def _forall(values: Any, body: Body) -> pa.Array:
    return _quantified(values, body, every=True)


def _aggregate(call: Call) -> Node:
    call.arity(3, 4)
    node, start = call.array(0), call.args[1]
    merge = _function(call, 2, [start.type, node.type.value_type])
    if merge.body.type != start.type:
        call.refuse(
            f"the function must give what it starts with, {start.type}, not {merge.body.type}; "
            "cast one of them",
            2,
        )
    functions = [merge]
    if len(call.args) == 4:
        functions.append(_function(call, 3, [start.type]))
    return HigherOrder(_folded, [node, start], functions, functions[-1].body.type)


def _folded(values: Any, start: Any, merge: Body, finish: Body | None = None) -> pa.Array:
    """Step k takes the k-th elements of all lists that are as long."""
    values, result = arrays_of(values, start)
    lists = parts(values)
    rows = np.arange(len(values))
    for step in range(int(lists.lengths.max(initial=0))):
        active = rows[lists.lengths > step]
        elements = lists.values.take(pa.array(lists.starts[active] + step))
        made = merge([result.take(pa.array(active)), elements], active)
        order = rows.copy()
        order[active] = len(rows) + np.arange(len(active))
        result = pa.concat_arrays([result, made]).take(pa.array(order))
    if finish is not None:
        result = finish([result], rows)
    return pc.if_else(pa.array(lists.valid), result, pa.scalar(None, result.type))


def _zip_with(call: Call) -> Node:
    call.arity(3)
    one, other = call.array(0), call.array(1)
    function = _function(call, 2, [one.type.value_type, other.type.value_type])
    return HigherOrder(_zipped, [one, other], [function], list_type(function.body.type))


def _zipped(one: Any, other: Any, body: Body) -> pa.Array:
    first, second = parts(one), parts(other)
    valid = first.valid & second.valid
    size = np.where(valid, np.maximum(first.lengths, second.lengths), 0)
    rows = np.repeat(np.arange(len(size)), size)
    index = np.arange(len(rows)) - (np.cumsum(size) - size)[rows]
    sides = []
    for side in (first, second):
        inside = index < side.lengths[rows]
        place = np.where(inside, side.starts[rows] + index, 0)
        sides.append(side.values.take(pa.array(place, pa.int64(), mask=~inside)))
    return made_list(body(sides, rows), size, valid)


def _map_function(
    kernel: Callable[..., pa.Array], result: Callable[[Any, Node], pa.DataType]
) -> Build:
    def build(call: Call) -> Node:
        call.arity(2)
        node = call.map(0)
        function = _function(call, 1, [node.type.key_type, node.type.item_type])
        if kernel is _map_filter:
            _require_boolean(call, function, 1)
        return HigherOrder(kernel, [node], [function], result(node.type, function.body))

    return build


def _map_filter(values: Any, body: Body) -> pa.Array:
    lists, keys, items = entries_of(values)
    chosen = body([keys, items], lists.rows).fill_null(False)
    flags = chosen.to_numpy(zero_copy_only=False)
    lengths = np.bincount(lists.rows[flags], minlength=len(lists.lengths))
    return made_map(keys.filter(chosen), items.filter(chosen), lengths, lists.valid)


def _transform_values(values: Any, body: Body) -> pa.Array:
    lists, keys, items = entries_of(values)
    return made_map(keys, body([keys, items], lists.rows), lists.lengths, lists.valid)


def _transform_keys(values: Any, body: Body) -> pa.Array:
    lists, keys, items = entries_of(values)
    made = body([keys, items], lists.rows)
    return made_map(made, items, lists.lengths, lists.valid, checked=True)


FUNCTIONS: dict[str, Build] = {
    "transform": _on_elements(
        _transform, lambda kind, body: list_type(body.type), condition=False, index_too=True
    ),
    "filter": _on_elements(_filter, lambda kind, body: list_type(kind.value_type), index_too=True),
    "exists": _on_elements(_exists, lambda kind, body: pa.bool_()),
    "forall": _on_elements(_forall, lambda kind, body: pa.bool_()),
    "aggregate": _aggregate,
    "reduce": _aggregate,
    "zip_with": _zip_with,
    "map_filter": _map_function(_map_filter, lambda kind, body: kind),
    "transform_values": _map_function(
        _transform_values, lambda kind, body: pa.map_(kind.key_type, body.type)
    ),
    "transform_keys": _map_function(
        _transform_keys, lambda kind, body: pa.map_(body.type, kind.item_type)
    ),
}
