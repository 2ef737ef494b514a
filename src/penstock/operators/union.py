"""union: all rows of several streams with equal schemas."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import GraphError, SchemaError
from penstock.operators.base import Kernel, StatelessOperator
from penstock.operators.columns import identity

__all__ = ["Union"]


class Union(StatelessOperator):
    """All rows; columns match by position and must agree in name and type."""

    kind = "union"

    def __init__(self) -> None:
        self._relabelled: pa.Schema | None = None

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        if len(inputs) < 2:
            raise GraphError("union: name at least one other stream")
        first = inputs[0]
        for number, other in enumerate(inputs[1:], start=2):
            _check_same(first, other, number)
        # A column may be null as soon as one of the streams may have nulls in it.
        merged = pa.schema(
            [
                pa.field(name, first.field(i).type, any(s.field(i).nullable for s in inputs))
                for i, name in enumerate(first.names)
            ],
            metadata=first.metadata,
        )
        same = all(schema.equals(merged, check_metadata=True) for schema in inputs)
        self._relabelled = None if same else merged
        return (merged,)

    def kernel(self) -> Kernel:
        schema = self._relabelled
        if schema is None:
            return identity
        return lambda batch: pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _check_same(first: pa.Schema, other: pa.Schema, number: int) -> None:
    if len(first) != len(other):
        raise SchemaError(
            f"union: stream 1 has {len(first)} columns [{', '.join(first.names)}], stream {number} "
            f"has {len(other)} [{', '.join(other.names)}]; select the same columns in both"
        )
    for i, (ours, theirs) in enumerate(zip(first, other, strict=True)):
        if ours.name != theirs.name:
            raise SchemaError(
                f"union: column {i + 1} is {ours.name!r} in stream 1 and {theirs.name!r} in stream "
                f"{number}; columns match by position: select them in the same order and names",
                column=theirs.name,
            )
        if ours.type != theirs.type:
            raise SchemaError(
                f"union: column {ours.name!r} is {ours.type} in stream 1 and {theirs.type} in "
                f"stream {number}; cast one of them",
                column=ours.name,
            )
