"""What ``on`` means in a join: names, columns, or equalities of a column of each side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import SchemaError
from penstock.expressions import Column
from penstock.expressions.column import named, refuse_foreign

if TYPE_CHECKING:
    from penstock.api.stream import Stream

__all__ = ["join_keys"]


def join_keys(other: Stream, on: Any) -> tuple[Stream, list[str]]:
    """The names of the keys, and the right side with a column of each name."""
    names, added = [], []
    for one in on if isinstance(on, list | tuple) else [on]:
        for left, right in _pairs(one):
            names.append(left)
            if right != left:
                added.append((left, named(f"`{right}`")))
    return other._with_columns(added), names


def _pairs(one: Any) -> Iterator[tuple[str, str]]:
    if isinstance(one, str):
        yield one, one
        return
    refuse_foreign(one)
    if not isinstance(one, Column):
        raise SchemaError(f"join: on= takes columns or their names, got {one!r}")
    yield from _of_tree(one.tree, one)


def _of_tree(tree: Any, whole: Column) -> Iterator[tuple[str, str]]:
    from sqlglot import exp

    tree = tree.unnest()
    if isinstance(tree, exp.And):
        yield from _of_tree(tree.this, whole)
        yield from _of_tree(tree.expression, whole)
        return
    sides = [tree.this, tree.expression] if isinstance(tree, exp.EQ) else [tree, tree]
    if not all(isinstance(side, exp.Column) and len(side.parts) == 1 for side in sides):
        raise SchemaError(
            f"join: cannot join on {whole.sql}; name columns that both sides have, or write "
            "F.col('left_name') == F.col('right_name'); add what is computed with withColumn first"
        )
    yield sides[0].name, sides[1].name
