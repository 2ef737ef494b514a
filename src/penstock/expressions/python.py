"""Functions of the user's that map a record batch to a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FunctionError, SchemaError
from penstock.expressions.nodes import Node

__all__ = ["FunctionNode"]


class FunctionNode(Node):
    """A user's function; what it returns is checked on every batch."""

    fallible = True

    def __init__(self, function: Callable[..., Any], kind: pa.DataType, what: str) -> None:
        self.function = function
        self.type = kind
        self.what = what
        self.name: str = getattr(function, "__qualname__", None) or type(function).__qualname__

    @staticmethod
    def bound(
        function: Callable[..., Any], schema: pa.Schema, target: pa.DataType | None, what: str
    ) -> FunctionNode:
        """With the declared type, or the one that an empty batch gives."""
        node = FunctionNode(function, target if target is not None else pa.null(), what)
        if target is not None:
            return node
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
        try:
            made = node.called(empty)
        except Exception as error:
            raise SchemaError(
                f"{what}: calling {node.name} with an empty batch to learn its type raised "
                f"{type(error).__name__}: {error}; give the type with returnType=..."
            ) from error
        if pa.types.is_null(made.type):
            raise SchemaError(
                f"{what}: {node.name} gives no type for an empty batch; give it with returnType=..."
            )
        node.type = made.type
        return node

    def called(self, batch: pa.RecordBatch) -> pa.Array:
        """What the function returns, as an array of the batch's length."""
        made = self.function(batch)
        if isinstance(made, pa.ChunkedArray):
            made = made.combine_chunks()
        elif isinstance(made, pa.Scalar):
            made = pa.repeat(made, batch.num_rows)
        elif isinstance(made, np.ndarray):
            made = pa.array(made)
        if not isinstance(made, pa.Array):
            raise FunctionError(
                f"{self.what}: {self.name} returned a {type(made).__name__}; it must return a "
                "pyarrow.Array with one value per row"
            )
        if len(made) != batch.num_rows:
            raise FunctionError(
                f"{self.what}: {self.name} returned {len(made)} values for {batch.num_rows} rows"
            )
        return made

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        made = self.called(batch)
        if made.type == self.type:
            return made
        try:
            return made.cast(self.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FunctionError(
                f"{self.what}: {self.name} returned {made.type} where {self.type} was expected: "
                f"{error}"
            ) from error
