"""filter: keep the rows for which a condition is true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import SchemaError, require
from penstock.expressions import Compiled, compile_expression, describe_expression
from penstock.operators.base import Kernel, StatelessOperator

__all__ = ["Filter"]


class Filter(StatelessOperator):
    """Rows for which the condition is true; a null condition drops the row, as in SQL."""

    kind = "filter"

    def __init__(self, condition: Any) -> None:
        self.condition = condition
        self._compiled: Compiled | None = None

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        compiled = compile_expression(self.condition, schema, what="filter")
        if not pa.types.is_boolean(compiled.type):
            raise SchemaError(
                f"filter: the condition {self.describe()} is of type {compiled.type}; it must be "
                "boolean, such as a comparison",
                type=compiled.type,
            )
        self._compiled = compiled
        return (schema,)

    def kernel(self) -> Kernel:
        require(self._compiled is not None, "filter: kernel() before output_schemas()")
        evaluate = self._compiled.evaluate  # type: ignore[union-attr]

        def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
            # A null in the mask drops the row: RecordBatch.filter's default.
            return batch.filter(evaluate(batch)) if batch.num_rows else batch

        return kept

    def describe(self) -> str:
        return describe_expression(self.condition)
