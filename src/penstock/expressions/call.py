"""A function call in SQL while it is being compiled: its arguments, and how to refuse them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import pyarrow as pa

from penstock.expressions.coerce import coerced, operand
from penstock.expressions.nodes import Literal, Node
from penstock.expressions.types import is_integer, is_numeric, is_string

if TYPE_CHECKING:
    from penstock.expressions.build import ExpressionBuilder

__all__ = ["Call"]


class Call:
    """``name(args)`` at a place in the SQL."""

    def __init__(self, builder: ExpressionBuilder, name: str, trees: list[Any], tree: Any) -> None:
        self.builder = builder
        self.name = name
        self.trees = trees
        self.tree = tree
        self.args: list[Node] = [operand(builder.build(argument)) for argument in trees]

    def refuse(self, message: str, index: int | None = None) -> Never:
        """Refuse the call, or one of its arguments."""
        tree = self.tree if index is None else self.trees[index]
        self.builder.refuse(f"{self.name}: {message}", tree, function=self.name)

    def arity(self, least: int, most: int | None = None) -> None:
        """Check the number of arguments; without ``most`` it must be ``least``."""
        most = least if most is None else most
        if not least <= len(self.args) <= most:
            if least == most:
                wanted = str(least)
            else:
                wanted = f"{least} or more" if most > 99 else f"{least} to {most}"
            self.refuse(f"takes {wanted} argument(s), got {len(self.args)}")

    def string(self, index: int) -> Node:
        """An argument that must be text."""
        node = self.args[index]
        if pa.types.is_null(node.type):
            return coerced(node, pa.string())
        if not is_string(node.type):
            self._wrong(index, "a string")
        return node

    def number(self, index: int) -> Node:
        """An argument that must be a number."""
        node = self.args[index]
        if pa.types.is_null(node.type):
            return coerced(node, pa.float64())
        if not is_numeric(node.type):
            self._wrong(index, "a number")
        return node

    def double(self, index: int) -> Node:
        """An argument that must be a number, as a double."""
        return coerced(self.number(index), pa.float64())

    def integer(self, index: int) -> Node:
        """An argument that must be an integer, as bigint."""
        node = self.args[index]
        if pa.types.is_null(node.type):
            return coerced(node, pa.int64())
        if not is_integer(node.type):
            self._wrong(index, "an integer")
        return coerced(node, pa.int64())

    def constant_string(self, index: int) -> str:
        """An argument that must be a constant string."""
        node = self.string(index)
        if not isinstance(node, Literal) or node.is_null:
            self.refuse(f"argument {index + 1} must be a constant string", index)
        return str(node.value.as_py())

    def constant_integer(self, index: int) -> int:
        """An argument that must be a constant integer."""
        node = self.integer(index)
        if not isinstance(node, Literal) or node.is_null:
            self.refuse(f"argument {index + 1} must be a constant integer", index)
        return int(node.value.as_py())

    def _wrong(self, index: int, wanted: str) -> Never:
        kind = self.args[index].type
        self.refuse(f"argument {index + 1} must be {wanted}, but it is {kind}", index)
