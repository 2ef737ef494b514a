"""lookup: join with a small table that every node holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.errors import SchemaError, require
from penstock.expressions.types import common_type, operand_type
from penstock.operators.base import Kernel, StatelessOperator
from penstock.operators.columns import require_column
from penstock.operators.finder import Finder

__all__ = ["Lookup"]


class Lookup(StatelessOperator):
    """The stream's columns and, found by key, columns of the table.

    A key is in the table once; a null key matches nothing.  Rows without a match are dropped
    (``inner``) or get nulls (``left``).
    """

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
            raise SchemaError(
                f"lookup: the table is a pyarrow.Table, got {type(table).__name__} (of a Spark "
                "DataFrame: df.toArrow())"
            )
        if how not in ("inner", "left"):
            raise SchemaError(f"lookup: how is 'inner' or 'left', got {how!r}")
        self.on = _pairs(on)
        self.how = how
        self.columns = _chosen(table, list(self.on.values()), columns)
        self._schema: pa.Schema | None = None
        self._key_types: list[pa.DataType] = []
        self._ours: list[int] = []
        self.table = _prepared(table, list(self.on.values()), self.columns)

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        # Made whole first: hosts that are threads of one process share an operator.
        key_types = [
            _key_type(require_column(schema, ours, "lookup"), self.table.schema.field(theirs))
            for ours, theirs in self.on.items()
        ]
        self._key_types = key_types
        self._ours = [schema.get_field_index(ours) for ours in self.on]
        fields = list(schema)
        for name in self.columns:
            if name in schema.names:
                raise SchemaError(
                    f"lookup: column {name!r} is in the stream and in the table; choose others "
                    f"with columns=[...], or rename one; stream: [{', '.join(schema.names)}]",
                    column=name,
                )
            field = self.table.schema.field(name)
            fields.append(field.with_nullable(True) if self.how == "left" else field)
        self._schema = pa.schema(fields, metadata=schema.metadata)
        return (self._schema,)

    def kernel(self) -> Kernel:
        schema, inner = self._schema, self.how == "inner"
        require(schema is not None, "lookup: kernel() before output_schemas()")
        kinds, ours = self._key_types, self._ours
        keys = [
            _plain(self.table.column(name)).cast(kind)
            for name, kind in zip(self.on.values(), kinds, strict=True)
        ]
        values = [_plain(self.table.column(name)) for name in self.columns]
        find = Finder(keys).find

        def found(batch: pa.RecordBatch) -> pa.RecordBatch:
            wanted = [batch.column(i) for i in ours]
            places = find(
                [
                    column if column.type == kind else column.cast(kind)
                    for column, kind in zip(wanted, kinds, strict=True)
                ]
            )
            if inner and places.null_count:
                batch = batch.filter(places.is_valid())
                places = places.drop_null()
            taken = [pc.take(value, places, boundscheck=False) for value in values]
            return pa.RecordBatch.from_arrays([*batch.columns, *taken], schema=schema)

        return found

    def describe(self) -> str:
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on.items())
        return f"{keys} -> {', '.join(self.columns)} ({self.how}, {self.table.num_rows} rows)"


def _pairs(on: str | Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Our key columns, each with the table's."""
    if isinstance(on, str):
        pairs = {on: on}
    elif isinstance(on, Mapping):
        pairs = dict(on)
    else:
        pairs = {name: name for name in on}
    if not pairs:
        raise SchemaError("lookup: name at least one key column in on=...")
    return pairs


def _chosen(table: pa.Table, keys: list[str], columns: Sequence[str] | None) -> list[str]:
    for name in keys:
        require_column(table.schema, name, "lookup: the table")
    if columns is None:
        return [name for name in table.column_names if name not in keys]
    chosen = [columns] if isinstance(columns, str) else list(columns)
    for i, name in enumerate(chosen):
        require_column(table.schema, name, "lookup: the table")
        if name in chosen[:i]:
            raise SchemaError(f"lookup: column {name!r} is chosen twice", column=name)
    return chosen


def _prepared(table: pa.Table, keys: list[str], columns: list[str]) -> pa.Table:
    """Only what is needed, without null keys (which match nothing), checked for unique keys."""
    table = table.select(list(dict.fromkeys([*keys, *columns])))
    for name in keys:
        kind = operand_type(table.schema.field(name).type)
        if t.is_nested(kind) or t.is_null(kind):
            raise SchemaError(
                f"lookup: column {name!r} of type {kind} in the table cannot be a key", column=name
            )
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    plain = pa.table({name: _plain(table.column(name)) for name in keys})
    counts = plain.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1))
    if repeated.num_rows:
        key = {name: repeated.column(name)[0].as_py() for name in keys}
        times = repeated.column("count_all")[0].as_py()
        raise SchemaError(
            f"lookup: keys must be unique in the table, but {key} is there {times} times "
            f"({repeated.num_rows} such keys)"
        )
    return table


def _key_type(ours: pa.Field, theirs: pa.Field) -> pa.DataType:
    """The type in which the two are compared; text is never compared with numbers."""
    one, other = operand_type(ours.type), operand_type(theirs.type)
    kind = common_type(one, other)
    mixed = t.is_floating(one) != t.is_floating(other) or t.is_decimal(one) != t.is_decimal(other)
    if kind is None or t.is_nested(kind) or t.is_null(kind) or mixed:
        raise SchemaError(
            f"lookup: column {ours.name!r} of the stream is {ours.type}, column {theirs.name!r} of "
            f"the table is {theirs.type}; cast one of them",
            column=ours.name,
        )
    return kind


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """One array, decoded if it was dictionary-encoded."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = operand_type(array.type)
    encoded = t.is_dictionary(array.type) or t.is_run_end_encoded(array.type)
    return array.cast(kind) if encoded else array
