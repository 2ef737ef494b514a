"""A function call in SQL while it is being compiled: its arguments, and how to refuse them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never

import pyarrow as pa

from penstock.expressions.coerce import coerced, common, null, operand, strict
from penstock.expressions.nodes import Literal, Node
from penstock.expressions.parameters import by_parameters
from penstock.expressions.types import is_binary, is_integer, is_numeric, is_string

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
        self.args: list[Node] = [
            # A function of columns is compiled when it is known what it is given.
            Literal(pa.scalar(None)) if is_lambda(argument) else operand(builder.build(argument))
            for argument in trees
        ]

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

    def text(self, index: int) -> Node:
        """An argument as text: numbers, dates and so on as CAST writes them."""
        node = self.args[index]
        if pa.types.is_null(node.type):
            return coerced(node, pa.string())
        if is_string(node.type):
            return node
        return self.builder.cast(node, pa.string(), self.trees[index])

    def binary(self, index: int) -> Node:
        """An argument as bytes: binary, or text in UTF-8."""
        node = self.args[index]
        if is_binary(node.type):
            return node
        return self.builder.cast(self.text(index), pa.binary(), self.trees[index])

    def int32(self, index: int) -> Node:
        """An argument that must be an integer, as int; one that does not fit fails."""
        return self.builder.cast(self.integer(index), pa.int32(), self.trees[index])

    def array(self, index: int) -> Node:
        """An argument that must be an array."""
        node = self.args[index]
        if not (pa.types.is_list(node.type) or pa.types.is_large_list(node.type)):
            self._wrong(index, "an array")
        return node

    def map(self, index: int) -> Node:
        """An argument that must be a map."""
        if not pa.types.is_map(self.args[index].type):
            self._wrong(index, "a map")
        return self.args[index]

    def common(self, *indexes: int) -> list[Node]:
        """Some arguments brought to one type."""
        nodes = [self.args[index] for index in indexes]
        kind = common(nodes)
        if kind is None:
            kinds = ", ".join(dict.fromkeys(str(node.type) for node in nodes))
            self.refuse(f"the arguments have no common type: {kinds}")
        return [coerced(node, kind) for node in nodes]

    def applied(
        self,
        kernel: Callable[..., Any],
        kind: pa.DataType,
        values: Sequence[Node],
        parameters: Mapping[str, Node],
        *,
        fallible: bool = False,
        **options: Any,
    ) -> Node:
        """A kernel with parameters that Arrow wants constant: ``kernel(*values, **parameters)``.

        Where they are columns it is called once for each different combination of their values.
        """
        if all(isinstance(node, Literal) for node in parameters.values()):
            known = {name: node.value.as_py() for name, node in parameters.items()}  # type: ignore[attr-defined]
            if any(value is None for value in known.values()):
                return null(kind)
            return strict(kernel, values, kind, fallible=fallible, **known, **options)
        return strict(
            by_parameters,
            [*values, *parameters.values()],
            kind,
            fallible=fallible,
            inner=kernel,
            names=tuple(parameters),
            options=options,
            target=kind,
        )

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

    def constant(self, index: int, default: Any = None) -> Any:
        """The Python value of an argument that must be constant; ``default`` if it is not there."""
        if index >= len(self.args):
            return default
        node = self.args[index]
        if not isinstance(node, Literal):
            self.refuse(f"argument {index + 1} must be a constant", index)
        value = node.value.as_py()
        return default if value is None else value

    def _wrong(self, index: int, wanted: str) -> Never:
        kind = self.args[index].type
        self.refuse(f"argument {index + 1} must be {wanted}, but it is {kind}", index)


def is_lambda(tree: Any) -> bool:
    """Whether an argument is a function, such as ``x -> x + 1``."""
    from sqlglot import exp

    return isinstance(tree, exp.Lambda)
