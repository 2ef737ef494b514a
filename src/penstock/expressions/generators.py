"""explode and its kin: functions that make several rows of one, for ``select``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.expressions.column import Column
from penstock.expressions.compile import Compiled, compile_expression
from penstock.expressions.lists import parts

__all__ = ["GENERATORS", "Generator", "generator_of"]

GENERATORS = frozenset(
    ["explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer"]
)
"""The names of such functions."""


class Generator(NamedTuple):
    """A generator bound to a schema."""

    source: Compiled
    """The array or map."""
    fields: tuple[pa.Field, ...]
    """The columns that it makes."""
    position: bool
    outer: bool
    """Whether a row with nothing to make rows of stays, with nulls."""

    def made(self, batch: pa.RecordBatch) -> tuple[Any, list[pa.Array]]:
        """The row that each new row comes from, and the new columns."""
        lists = parts(self.source.evaluate(batch))
        rows, place = lists.rows, np.arange(len(lists.rows))
        missing = np.zeros(len(rows), bool)
        if self.outer:
            empty = np.flatnonzero(lists.lengths == 0)
            order = np.argsort(np.concatenate([rows, empty]), kind="stable")
            rows = np.concatenate([rows, empty])[order]
            place = np.concatenate([place, np.zeros(len(empty), np.int64)])[order]
            missing = np.concatenate([missing, np.ones(len(empty), bool)])[order]
        values = lists.values.take(pa.array(place, pa.int64(), mask=missing))
        columns = []
        if self.position:
            at = np.where(missing, 0, place - lists.starts[rows])
            columns.append(pa.array(at, pa.int32(), mask=missing))
        if len(self.fields) == 1 + self.position:
            return rows, [*columns, values]
        return rows, [
            *columns,
            *(pc.struct_field(values, i) for i in range(len(self.fields) - self.position)),
        ]


def generator_of(column: Column, schema: pa.Schema, names: list[str]) -> Generator | None:
    """The generator that a column is, if it is one; ``names`` are those of its results."""
    from sqlglot import exp

    tree = column.tree
    if isinstance(tree, exp.Alias):
        names, tree = [tree.alias], tree.this
    if not isinstance(tree, exp.Anonymous) or tree.name.lower() not in GENERATORS:
        return None
    name = tree.name.lower()
    if len(tree.expressions) != 1:
        raise SchemaError(f"select: {name} takes 1 argument, got {len(tree.expressions)}")
    source = compile_expression(Column(tree.expressions[0]), schema, what=f"select: {name}")
    return _bound(name, source, names)


def _bound(name: str, source: Compiled, names: list[str]) -> Generator:
    kind = source.type
    outer, position = name.endswith("_outer"), name.startswith("pos")
    if name.startswith("inline"):
        if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)):
            raise SchemaError(f"select: {name} takes an array of structs, but it is {kind}")
        fields = [kind.value_type.field(i) for i in range(kind.value_type.num_fields)]
    elif pa.types.is_map(kind):
        fields = [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    elif pa.types.is_list(kind):
        fields = [pa.field("col", kind.value_type)]
    else:
        raise SchemaError(f"select: {name} takes an array or a map, but it is {kind}")
    if position:
        fields.insert(0, pa.field("pos", pa.int32()))
    if names:
        if len(names) != len(fields):
            raise SchemaError(
                f"select: {name} makes {len(fields)} columns, {len(names)} names were given; "
                "rename them with withColumnRenamed"
            )
        fields = [field.with_name(new) for field, new in zip(fields, names, strict=True)]
    made = tuple(pa.field(field.name, field.type) for field in fields)
    return Generator(source, made, position, outer)
