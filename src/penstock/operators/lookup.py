"""lookup: join with a small table that every node holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError, require
from penstock.operators.base import Kernel, StatelessOperator
from penstock.operators.columns import require_column

__all__ = ["Lookup"]


class Lookup(StatelessOperator):
    """The stream's columns and, found by key, columns of the table."""

    kind = "lookup"

    def __init__(
        self,
        table: pa.Table,
        on: str | Mapping[str, str] | Sequence[str],
        *,
        how: str = "inner",
        columns: Sequence[str] | None = None,
    ) -> None:
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise SchemaError(f"lookup: the table is a pyarrow.Table, got {type(table).__name__}")
        if how not in ("inner", "left"):
            raise SchemaError(f"lookup: how is 'inner' or 'left', got {how!r}")
        if isinstance(on, str):
            on = {on: on}
        self.on = dict(on) if isinstance(on, Mapping) else {name: name for name in on}
        if not self.on:
            raise SchemaError("lookup: name at least one key column in on")
        self.table = table
        self.how = how
        keys = list(self.on.values())
        self.columns = (
            [name for name in table.column_names if name not in keys]
            if columns is None
            else list(columns)
        )
        self._schema: pa.Schema | None = None

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        if len(self.on) != 1:
            raise SchemaError("lookup: more than one key column is not supported yet")
        ((ours, theirs),) = self.on.items()
        key = require_column(schema, ours, "lookup")
        other = require_column(self.table.schema, theirs, "lookup (table)")
        if key.type != other.type:
            raise SchemaError(f"lookup: {ours!r} is {key.type}, {theirs!r} is {other.type}")
        fields = [require_column(self.table.schema, c, "lookup (table)") for c in self.columns]
        self._schema = pa.schema([*schema, *[pa.field(f.name, f.type) for f in fields]])
        return (self._schema,)

    def kernel(self) -> Kernel:
        schema, how = self._schema, self.how
        require(schema is not None, "lookup: kernel() before output_schemas()")
        ((ours, theirs),) = self.on.items()
        keys = self.table.column(theirs).combine_chunks()
        values = [self.table.column(name).combine_chunks() for name in self.columns]

        def found(batch: pa.RecordBatch) -> pa.RecordBatch:
            places = pc.index_in(batch.column(ours), keys, skip_nulls=True)
            if how == "inner" and places.null_count:
                batch = batch.filter(places.is_valid())
                places = places.drop_null()
            taken = [pc.take(value, places, boundscheck=False) for value in values]
            return pa.RecordBatch.from_arrays([*batch.columns, *taken], schema=schema)

        return found

    def describe(self) -> str:
        return f"{', '.join(self.on)} -> {', '.join(self.columns)} ({self.how})"
