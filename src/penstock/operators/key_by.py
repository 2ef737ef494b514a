"""keyBy: bring rows with equal keys together in one shard."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.operators.base import Exchange, Hash, Kernel, StatelessOperator
from penstock.operators.columns import identity, require_column, require_hashable

__all__ = ["KeyBy"]


class KeyBy(StatelessOperator):
    """Rows as they are, behind a hash exchange; without columns the whole row is the key."""

    kind = "key_by"

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        for column in self.columns or schema.names:
            require_hashable(require_column(schema, column, "keyBy"), "keyBy")
        return (schema,)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        (schema,) = inputs
        return (Hash(self.columns or tuple(schema.names)),)

    def kernel(self) -> Kernel:
        return identity

    def describe(self) -> str:
        return ", ".join(self.columns) or "*"
