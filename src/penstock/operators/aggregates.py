"""The algebra of aggregates: rows to partial rows, partial rows to partial rows, to results.

An aggregate is split so that it can be combined before an exchange and merged in any order:

========  ==================================  =================================
function  partial columns                     result
========  ==================================  =================================
count(*)  ``$rows``                           int64
count(c)  ``$count(c)``                       int64
sum(c)    ``$sum(c)``, exact for floats       int64, double, or a wider decimal
avg(c)    ``$sum(c)`` and ``$count(c)``       double
min, max  ``$min(c)``, ``$max(c)``            the column's type
========  ==================================  =================================

Law: however the rows are cut into batches and in whatever order partial rows are merged, the
results are the same to the byte.  Sums of floats are exact until they are rounded once
(:mod:`penstock.operators.exact_sum`); sums of integers that leave int64 are refused, not wrapped.

Everything that follows from types is read off the schema of the partial rows, so that the part
after an exchange needs nothing but the partial rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.functions import Aggregate
from penstock.errors import SchemaError
from penstock.operators import exact_sum
from penstock.operators.columns import require_column
from penstock.operators.encoding import Encoder, canonical
from penstock.operators.grouping import (
    Fold,
    aggregate_codes,
    array_of,
    group_rows,
)
from penstock.operators.key_columns import find_key, is_sortable, value_type

__all__ = ["ROWS", "Aggregation"]

ROWS = "$rows"
"""The partial column that counts rows; every partial row has it."""

_FUNCTIONS = ("count", "sum", "min", "max", "avg")


class Aggregation:
    """A list of aggregates, and the keys they are grouped by."""

    def __init__(self, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> None:
        self.keys = list(keys)
        self.aggregates = list(aggregates)
        self._encoders: dict[str, Encoder] = {}

    def describe(self) -> str:
        """The aggregates as SQL would write them."""
        made = [f"{one.function}({one.column}) AS {one.name}" for one in self.aggregates]
        return ", ".join(made)

    # -- schemas ---------------------------------------------------------------------------------

    def key_fields(self, schema: pa.Schema, where: str) -> list[pa.Field]:
        """The key columns as the output has them: dictionaries give their values."""
        fields = [find_key(schema, key, where) for key in self.keys]
        return [pa.field(one.name, value_type(one.type)) for one in fields]

    def partial_fields(self, schema: pa.Schema, where: str) -> list[pa.Field]:
        """The partial columns of rows with ``schema``, types checked."""
        fields = {ROWS: pa.field(ROWS, pa.int64())}
        for one in self.aggregates:
            if one.function not in _FUNCTIONS:
                raise SchemaError(
                    f"{where}: no aggregate {one.function!r}; there are {', '.join(_FUNCTIONS)}"
                )
            if one.column == "*":
                if one.function != "count":
                    raise SchemaError(
                        f"{where}: {one.function}(*) has no meaning; name a column, or use count"
                    )
                continue
            kind = value_type(require_column(schema, one.column, f"{where}: {one.function}").type)
            for name in _partials_of(one):
                fields[name] = pa.field(name, _partial_type(one, name, kind, where))
        return list(fields.values())

    def result_fields(self, partials: pa.Schema) -> list[pa.Field]:
        """The result columns, from the schema of the partial rows."""
        return [pa.field(one.name, _result_type(one, partials)) for one in self.aggregates]

    # -- rows ------------------------------------------------------------------------------------

    def prepared(self, batch: pa.RecordBatch | pa.Table) -> tuple[list[str], list[pa.Array]]:
        """The columns of a batch that matter here, keys canonical: names and arrays."""
        names = list(self.keys)
        arrays = [canonical(array_of(batch, key)) for key in self.keys]
        for column in dict.fromkeys(one.column for one in self.aggregates if one.column != "*"):
            values = array_of(batch, column)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            names.append(f"${column}")
            arrays.append(values)
        return names, arrays

    def combine(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        """Partial rows of prepared rows, one per different value of ``by``."""
        return group_rows(
            _widened(table, self._sums()), by, self._row_folds(table.schema), self._encoders
        )

    def combine_codes(self, codes: Any, groups: int, table: pa.Table) -> pa.Table:
        """The same with groups already numbered: partial columns, in the order of groups."""
        folds = self._row_folds(table.schema)
        made = aggregate_codes(codes, groups, _widened(table, self._sums()), folds)
        return pa.Table.from_arrays(made, names=[fold.name for fold in folds])

    def merge(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        """Partial rows of partial rows, one per different value of ``by``."""
        if table.num_rows < 2:
            return table
        return group_rows(table, by, self.merge_folds(table.schema), self._encoders)

    def merge_codes(self, codes: Any, groups: int, table: pa.Table) -> list[pa.Array]:
        """The same with groups already numbered: the partial columns, in the order of groups."""
        return aggregate_codes(codes, groups, table, self.merge_folds(table.schema))

    def merge_folds(self, schema: pa.Schema) -> list[Fold]:
        """How each partial column is merged."""
        return [
            Fold(_merge_kind(field), field.name, field.name)
            for field in schema
            if field.name.startswith("$") and _merge_kind(field)
        ]

    def results(self, partials: pa.Table) -> list[pa.Array]:
        """The result columns of partial rows."""
        return [_result(one, partials) for one in self.aggregates]

    # -- pieces ----------------------------------------------------------------------------------

    def _sums(self) -> list[str]:
        return [f"${one.column}" for one in self.aggregates if one.function in ("sum", "avg")]

    def _row_folds(self, schema: pa.Schema) -> list[Fold]:
        folds = {ROWS: Fold("rows", None, ROWS)}
        for one in self.aggregates:
            if one.column == "*":
                continue
            column = f"${one.column}"
            for name in _partials_of(one):
                kind = name[1 : name.index("(")]
                if kind == "sum":
                    kind = "exact" if pa.types.is_floating(schema.field(column).type) else "sum"
                    folds[name] = Fold(kind, f"{column}$" if kind == "sum" else column, name)
                else:
                    folds[name] = Fold(kind, column, name)
        return list(folds.values())


def _partials_of(one: Aggregate) -> list[str]:
    if one.column == "*":
        return [ROWS]
    kinds = ("sum", "count") if one.function == "avg" else (one.function,)
    return [f"${kind}({one.column})" for kind in kinds]


def _partial_type(one: Aggregate, name: str, kind: pa.DataType, where: str) -> pa.DataType:
    types = pa.types
    if name.startswith("$count("):
        return pa.int64()
    if name.startswith("$sum("):
        if types.is_integer(kind):
            return pa.int64()
        if types.is_floating(kind):
            return exact_sum.EXACT
        if types.is_decimal128(kind):
            return pa.decimal128(min(38, kind.precision + 10), kind.scale)
        raise SchemaError(
            f"{where}: {one.function}({one.column}) needs numbers, but {one.column!r} is {kind}; "
            f"cast it first, e.g. withColumn({one.column!r}, 'CAST({one.column} AS DOUBLE)')",
            column=one.column,
            type=str(kind),
        )
    if not is_sortable(kind):
        raise SchemaError(
            f"{where}: {one.function}({one.column}) needs values with an order, but "
            f"{one.column!r} is {kind}; take one of its parts with select",
            column=one.column,
            type=str(kind),
        )
    return kind


def _widened(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Add the columns to be summed in the type of their sums."""
    for column in dict.fromkeys(columns):
        values = array_of(table, column)
        if pa.types.is_decimal(values.type):
            kind = values.type
            wide = values.cast(pa.decimal128(min(38, kind.precision + 10), kind.scale))
        elif pa.types.is_integer(values.type):
            wide = values.cast(pa.int64())
        else:
            continue
        table = table.append_column(f"{column}$", wide)
    return table


def _merge_kind(field: pa.Field) -> str:
    if field.name == ROWS or field.name.startswith("$count("):
        return "sum"
    if field.name.startswith("$sum("):
        return "merge" if pa.types.is_list(field.type) else "sum"
    if field.name.startswith("$min("):
        return "min"
    return "max" if field.name.startswith("$max(") else ""


def _result_type(one: Aggregate, partials: pa.Schema) -> pa.DataType:
    if one.function == "count":
        return pa.int64()
    if one.function == "avg":
        return pa.float64()
    kind = partials.field(_partials_of(one)[0]).type
    return pa.float64() if pa.types.is_list(kind) else kind


def _result(one: Aggregate, partials: pa.Table) -> pa.Array:
    values = array_of(partials, _partials_of(one)[0])
    if pa.types.is_list(values.type):
        values = exact_sum.rounded(values)
    if one.function == "avg":
        counts = array_of(partials, f"$count({one.column})").cast(pa.float64())
        return pc.divide(values.cast(pa.float64(), safe=False), counts)
    return values
