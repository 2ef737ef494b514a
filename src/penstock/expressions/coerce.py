"""Making nodes: operands, implicit casts, constants computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.nodes import Apply, Literal, Node, as_array
from penstock.expressions.types import (
    common_type,
    decimal_for,
    is_decimal,
    is_integer,
    is_numeric,
    operand_type,
)

__all__ = ["coerced", "common", "folded", "null", "operand", "strict"]


def null(kind: pa.DataType) -> Literal:
    """NULL of a type."""
    return Literal(pa.scalar(None, kind))


def folded(node: Node) -> Node:
    """The constant, if all children are; a constant that cannot be computed fails at run time."""
    if isinstance(node, Apply) and all(isinstance(child, Literal) for child in node.children):
        arrays = [pa.repeat(child.value, 1) for child in node.children]  # type: ignore[attr-defined]
        try:
            return Literal(as_array(node.kernel(*arrays, **node.options), 1)[0])
        except (pa.ArrowInvalid, DataError):
            return node
    return node


def strict(
    kernel: Callable[..., Any],
    children: Sequence[Node],
    kind: pa.DataType,
    *,
    fallible: bool = False,
    **options: Any,
) -> Node:
    """A kernel that gives null whenever an input is null."""
    if any(isinstance(child, Literal) and child.is_null for child in children):
        return null(kind)
    return folded(Apply(kernel, children, kind, fallible=fallible, **options))


def operand(node: Node) -> Node:
    """The node with a type that the kernels know: decoded, widened from unsigned."""
    kind = operand_type(node.type)
    return node if kind == node.type else folded(Apply(_plain_cast, [node], kind, target=kind))


def coerced(node: Node, kind: pa.DataType) -> Node:
    """The node as ``kind``, one of its wider types; constants are converted here and now."""
    if node.type == kind:
        return node
    if isinstance(node, Literal) and node.is_null:
        return null(kind)
    return folded(Apply(_plain_cast, [node], kind, target=kind))


def common(nodes: Sequence[Node]) -> pa.DataType | None:
    """The type that all nodes can be seen as, or None."""
    kind: pa.DataType | None = pa.null()
    for node in nodes:
        kind = None if kind is None else common_type(kind, node.type)
    return kind


def literal_decimal(node: Node) -> pa.DataType:
    """The decimal for a number: of a constant integer, with only as many digits as it has."""
    if isinstance(node, Literal) and is_integer(node.type) and not node.is_null:
        return pa.decimal128(len(str(abs(node.value.as_py()))), 0)
    return decimal_for(node.type)


def exact_literal(node: Node, kind: pa.DataType) -> Literal | None:
    """The constant as ``kind`` if no value is changed by that, so that a column need not be cast.

    >>> exact_literal(Literal(pa.scalar(5, pa.int32())), pa.int8()).type
    DataType(int8)
    >>> exact_literal(Literal(pa.scalar(500, pa.int32())), pa.int8()) is None
    True
    """
    if not isinstance(node, Literal) or node.is_null:
        return None
    if is_decimal(kind) or not (is_numeric(kind) or pa.types.is_timestamp(kind)):
        return None
    if pa.types.is_float32(kind):
        # 0.1 as a float is another number than 0.1, though it is read as 0.1 again.
        wide = float(node.value.as_py())
        return Literal(pa.scalar(wide, kind)) if pa.scalar(wide, kind).as_py() == wide else None
    try:
        there = _plain_cast(pa.repeat(node.value, 1), target=kind)
        back = _plain_cast(there, target=node.type)
    except pa.ArrowInvalid:
        return None
    return Literal(there[0]) if back[0].equals(node.value) else None


def _plain_cast(values: Any, target: pa.DataType) -> Any:
    """A widening cast; integers become floats as in SQL, rounded where they must be."""
    source = values.type
    if is_decimal(target) and is_integer(source):
        values = pc.cast(values, decimal_for(source))
    if pa.types.is_floating(target):
        return pc.cast(values, target, safe=False)
    return pc.cast(values, target)
