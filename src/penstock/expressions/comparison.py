"""Comparisons: common types, and NaN as Spark has it (equal to itself, above all numbers)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.casts import cast_kernel
from penstock.expressions.coerce import coerced, common, exact_literal, operand, strict
from penstock.expressions.nodes import Apply, Literal, Node
from penstock.expressions.types import is_float, is_string, is_temporal, utc_type

__all__ = ["comparable", "compare", "null_safe_equal"]

_KERNELS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def comparable(left: Node, right: Node) -> tuple[Node, Node] | None:
    """Both sides with one type, or None if they cannot be compared."""
    left, right = operand(left), operand(right)
    left, right = _read_time(left, right.type), _read_time(right, left.type)
    if left.type != right.type:
        # A constant adapts to the column when that loses nothing: no column is copied then.
        for one, other, flip in ((left, right, False), (right, left, True)):
            exact = exact_literal(one, other.type)
            if exact is not None and not isinstance(other, Literal) and common([one, other]):
                return (other, exact) if flip else (exact, other)
    kind = common([left, right])
    if kind is None or pa.types.is_nested(kind):
        return None
    if pa.types.is_timestamp(kind):
        kind = utc_type(kind)
    return coerced(left, kind), coerced(right, kind)


def compare(sign: str, left: Node, right: Node) -> Node | None:
    """``left sign right`` with three-valued logic, or None if the types do not allow it."""
    pair = comparable(left, right)
    if pair is None:
        return None
    left, right = pair
    if is_float(left.type) and (patch := _nan_patch(sign, left, right)) is not None:
        return strict(patch, [left, right], pa.bool_(), sign=sign)
    return strict(_KERNELS[sign], [left, right], pa.bool_())


def null_safe_equal(left: Node, right: Node) -> Node | None:
    """``left <=> right``: NULL equals NULL, and the result is never NULL."""
    pair = comparable(left, right)
    if pair is None:
        return None
    equal = compare("=", *pair)
    if equal is None:
        return None
    return Apply(_null_safe, [equal, *pair], pa.bool_())


def _read_time(node: Node, other: pa.DataType) -> Node:
    """A constant string beside a date or timestamp is read as one."""
    if not (isinstance(node, Literal) and is_string(node.type) and is_temporal(other)):
        return node
    found = cast_kernel(node.type, other)
    if found is None or node.is_null:
        return node
    made = strict(found[0], [node], other, fallible=True, **found[2])
    return made if isinstance(made, Literal) else node


def _nan_patch(sign: str, left: Node, right: Node) -> Any:
    """The kernel that corrects Arrow's NaN, or None where NaN cannot make a difference."""

    def number(node: Node) -> bool:
        return isinstance(node, Literal) and node.value.as_py() == node.value.as_py()

    if sign in ("=", "<>") and (number(left) or number(right)):
        return None
    if sign in ("<", "<=") and number(right):
        return None
    if sign in (">", ">=") and number(left):
        return None
    return _compare_floats


def _compare_floats(left: Any, right: Any, sign: str) -> Any:
    plain = _KERNELS[sign](left, right)
    if sign in ("=", "<>"):
        both = pc.and_(pc.is_nan(left), pc.is_nan(right))
        return pc.or_(plain, both) if sign == "=" else pc.and_not(plain, both)
    if sign in ("<", "<="):
        left, right = right, left
    above = pc.is_nan(left)
    if sign in ("<", ">"):
        above = pc.and_not(above, pc.is_nan(right))
    return pc.or_(plain, above)


def _null_safe(equal: Any, left: Any, right: Any) -> Any:
    return pc.coalesce(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
