"""The algebra of aggregates: rows to partial rows, partial rows to partial rows, to results.

What each aggregate keeps is in the table of :mod:`penstock.operators.aggregate_functions`.

Law: however the rows are cut into batches and in whatever order partial rows are merged, the
results are the same to the byte.  Sums of floats are exact until they are rounded once
(:mod:`penstock.operators.exact_sum`); sums of integers that leave int64 are refused, not wrapped;
lists are sorted.

Everything that follows from types is read off the schema of the partial rows, so that the part
after an exchange needs nothing but the partial rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.expressions.ordering import canonical, is_sortable, value_type
from penstock.expressions.suggest import nearest
from penstock.operators.aggregate_functions import (
    AGGREGATES,
    MERGES,
    SOURCES,
    AggregateKind,
    Partial,
)
from penstock.operators.columns import require_column
from penstock.operators.encoding import Encoder
from penstock.operators.grouping import Fold, aggregate_codes, array_of, group_rows
from penstock.operators.key_columns import find_key
from penstock.operators.terms import Aggregate, Computed

__all__ = ["ROWS", "Aggregation"]

ROWS = "$rows"
"""The partial column that counts rows; every partial row has it."""

_NEEDS: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "number": ("numbers", lambda kind: _is_number(kind)),
    "integer": ("integers", lambda kind: pa.types.is_integer(kind)),
    "boolean": ("booleans", lambda kind: pa.types.is_boolean(kind)),
    "order": ("values with an order", lambda kind: is_sortable(kind)),
    "string": ("strings", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind)),
    "any": ("a value", lambda kind: True),
}


class Aggregation:
    """A list of aggregates, and the keys they are grouped by."""

    def __init__(self, keys: Sequence[str], aggregates: Sequence[Aggregate | Computed]) -> None:
        self.keys = list(keys)
        self.aggregates = list(aggregates)
        self.simple = [
            part
            for one in aggregates
            for part in (one.parts if isinstance(one, Computed) else (one,))
        ]
        """The aggregates without what is computed from them."""
        self._encoders: dict[str, Encoder] = {}

    def describe(self) -> str:
        """The aggregates as SQL would write them."""
        return ", ".join(f"{one} AS {one.name}" for one in self.aggregates)

    # -- schemas ---------------------------------------------------------------------------------

    def key_fields(self, schema: pa.Schema, where: str) -> list[pa.Field]:
        """The key columns as the output has them: dictionaries give their values."""
        fields = [find_key(schema, key, where) for key in self.keys]
        return [pa.field(one.name, value_type(one.type)) for one in fields]

    def partial_fields(self, schema: pa.Schema, where: str) -> list[pa.Field]:
        """The partial columns of rows with ``schema``, types checked."""
        for one in self.simple:
            _check(one, schema, where)
        wanted = [name for one in self.simple for name in one.columns]
        fields = [pa.field(name, schema.field(name).type) for name in dict.fromkeys(wanted)]
        empty = pa.schema(fields).empty_table()
        names, arrays = self._inputs(empty)
        made = self.combine_codes([], 0, pa.Table.from_arrays(arrays, names=names))
        return list(made.schema)

    def result_fields(self, partials: pa.Schema) -> list[pa.Field]:
        """The result columns, from the schema of the partial rows."""
        columns = self.results(partials.empty_table())
        return [
            pa.field(one.name, column.type)
            for one, column in zip(self.aggregates, columns, strict=True)
        ]

    # -- rows ------------------------------------------------------------------------------------

    def prepared(self, batch: pa.RecordBatch | pa.Table) -> tuple[list[str], list[pa.Array]]:
        """The columns of a batch that matter here, keys canonical: names and arrays."""
        names, arrays = self._inputs(batch)
        keys = [canonical(array_of(batch, key)) for key in self.keys]
        return [*self.keys, *names], [*keys, *arrays]

    def combine(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        """Partial rows of prepared rows, one per different value of ``by``."""
        return group_rows(table, by, self._row_folds(table.schema), self._encoders)

    def combine_codes(self, codes: Any, groups: int, table: pa.Table) -> pa.Table:
        """The same with groups already numbered: partial columns, in the order of groups."""
        folds = self._row_folds(table.schema)
        made = aggregate_codes(np.asarray(codes, np.int64), groups, table, folds)
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
        made = {one: _result(one, partials) for one in self.simple}
        return [
            _computed(one, made) if isinstance(one, Computed) else made[one]
            for one in self.aggregates
        ]

    # -- pieces ----------------------------------------------------------------------------------

    def _inputs(self, rows: pa.RecordBatch | pa.Table) -> tuple[list[str], list[pa.Array]]:
        made: dict[str, pa.Array] = {}
        for one in self.simple:
            for partial in _partials_of(one):
                name = _source_name(partial, one)
                if one.columns and name not in made:
                    columns = [_plain(array_of(rows, column)) for column in one.columns]
                    made[name] = SOURCES[partial.source](*columns)
        return list(made), list(made.values())

    def _row_folds(self, schema: pa.Schema) -> list[Fold]:
        folds = {ROWS: Fold("rows", None, ROWS)}
        for one in self.simple:
            for partial in _partials_of(one):
                name, source = _partial_name(partial.label, one), _source_name(partial, one)
                if name in folds:
                    continue
                fold = partial.fold
                if fold == "sum" and pa.types.is_floating(schema.field(source).type):
                    fold = "exact"
                folds[name] = Fold(fold, source, name)
        return list(folds.values())


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal128(kind))


def _check(one: Aggregate, schema: pa.Schema, where: str) -> None:
    """Refuse an unknown aggregate, an unknown column, or one of a type that it cannot take."""
    kind = AGGREGATES.get(one.function)
    if kind is None:
        raise SchemaError(
            f"{where}: no aggregate {one.function!r}{nearest(one.function, AGGREGATES)} there are "
            f"{', '.join(AGGREGATES)}"
        )
    if one.column == "*" and one.function != "count":
        raise SchemaError(f"{where}: {one.function}(*) has no meaning; name a column, or use count")
    for column in one.columns:
        _check_column(one, kind, require_column(schema, column, f"{where}: {one.function}"), where)


def _check_column(one: Aggregate, kind: AggregateKind, field: pa.Field, where: str) -> None:
    found = value_type(field.type)
    words, fits = _NEEDS[kind.takes]
    if fits(found) or pa.types.is_null(found):
        return
    remedy = "take one of its parts with select"
    if kind.takes == "number":
        remedy = f"cast it first, e.g. F.col({field.name!r}).cast('double')"
    raise SchemaError(
        f"{where}: {one.function}({one.column}) needs {words}, but {field.name!r} is {found}; "
        f"{remedy}",
        column=field.name,
        type=str(found),
    )


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _partials_of(one: Aggregate) -> tuple[Partial, ...]:
    return AGGREGATES[one.function].partials if one.columns else ()


def _partial_name(label: str, one: Aggregate) -> str:
    return f"${label}({', '.join(one.columns)})" if one.columns else ROWS


def _source_name(partial: Partial, one: Aggregate) -> str:
    return f"{partial.source} of {', '.join(one.columns)}"


def _merge_kind(field: pa.Field) -> str:
    if field.name == ROWS:
        return "sum"
    label = field.name[1:].partition("(")[0]
    kind = MERGES.get(label, "")
    return "merge" if kind == "sum" and pa.types.is_list(field.type) else kind


def _result(one: Aggregate, partials: pa.Table) -> pa.Array:
    return AGGREGATES[one.function].result(
        lambda label: array_of(partials, _partial_name(label, one)), one
    )


def _computed(one: Computed, made: dict[Aggregate, pa.Array]) -> pa.Array:
    arrays = [made[part] for part in one.parts]
    names = [str(number) for number in range(len(arrays))]
    return one.value.evaluate(pa.RecordBatch.from_arrays(arrays, names=names))
