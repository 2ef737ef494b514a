"""Arrays and values brought to one type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, common, null, strict
from penstock.expressions.lists import Elements, list_type
from penstock.expressions.nodes import Node

__all__ = ["any_in_row", "as_list", "list_operands", "with_element"]


def list_operands(call: Call, *indexes: int) -> list[Node]:
    """Arrays brought to one type of elements."""
    nodes = [call.array(index) for index in indexes]
    element = common([null(node.type.value_type) for node in nodes])
    if element is None:
        kinds = ", ".join(str(node.type) for node in nodes)
        call.refuse(f"the arrays have no common type: {kinds}")
    return [as_list(node, element) for node in nodes]


def as_list(node: Node, element: pa.DataType) -> Node:
    """An array with elements of another type."""
    kind = list_type(element)
    if node.type.value_type == element:
        return node
    return strict(_cast_list, [node], kind, target=kind)


def _cast_list(values: Any, target: pa.DataType) -> pa.Array:
    return pc.cast(values, target)


def with_element(call: Call, list_index: int, element_index: int) -> tuple[Node, Node]:
    """An array and a value brought to the type of its elements."""
    node, value = call.array(list_index), call.args[element_index]
    kind = common([null(node.type.value_type), value])
    if kind is None:
        call.refuse(f"an array of {node.type.value_type} has no {value.type} in it", element_index)
    return as_list(node, kind), coerced(value, kind)


def any_in_row(lists: Elements, flags: Any) -> Any:
    """Whether a flag is set for any element of each list."""
    return np.bincount(lists.rows[flags], minlength=len(lists.lengths)) > 0
