"""select and withColumn: columns computed from columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError, require
from penstock.expressions import Column, Compiled, compile_expression, describe_expression
from penstock.expressions.column import parsed, refuse_foreign
from penstock.expressions.generators import GENERATORS, Generator, generator_of
from penstock.operators.base import Kernel, StatelessOperator

__all__ = ["Select", "WithColumn", "WithColumns"]


class _Projection(StatelessOperator):
    """Columns, each either one of the input's (by position) or computed."""

    def __init__(self) -> None:
        self._columns: list[int | Compiled] | None = None
        self._generator: Generator | None = None
        self._schema: pa.Schema | None = None

    def _project(
        self, schema: pa.Schema, columns: list[tuple[str, int | Compiled]]
    ) -> tuple[pa.Schema, ...]:
        fields = []
        for name, made in columns:
            if isinstance(made, int):
                fields.append(schema.field(made).with_name(name))
            else:
                fields.append(pa.field(name, made.type, metadata=None))
        _check_unique([name for name, _ in columns], self.kind)
        self._columns = [made for _, made in columns]
        self._schema = pa.schema(fields, metadata=schema.metadata)
        return (self._schema,)

    def kernel(self) -> Kernel:
        columns, schema = self._columns, self._schema
        require(columns is not None, f"{self.kind}: kernel() before output_schemas()")
        made = list(columns or ())
        generator = self._generator

        def projected(batch: pa.RecordBatch) -> pa.RecordBatch:
            if generator is not None:
                rows, new = generator.made(batch)
                taken = batch.take(pa.array(rows))
                batch = pa.RecordBatch.from_arrays(
                    [*taken.columns, *new],
                    names=[str(i) for i in range(len(taken.columns) + len(new))],
                )
            arrays = [
                batch.column(one) if isinstance(one, int) else one.evaluate(batch) for one in made
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

        return projected


class Select(_Projection):
    """The named or computed columns, in that order.

    An item is a column's name, ``"*"``, SQL (``"price * 2 AS double"``), or a pair of a name and an
    expression (SQL, Arrow expression or function).
    """

    kind = "select"

    def __init__(self, columns: Sequence[Any]) -> None:
        super().__init__()
        if not columns:
            raise SchemaError("select: name at least one column")
        self.columns = list(columns)

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        chosen: list[tuple[str, int | Compiled]] = []
        new: list[pa.Field] = []
        for item in self.columns:
            generator = _generator(item, schema)
            if generator is None:
                chosen.extend(_select_item(item, schema))
                continue
            if new:
                raise SchemaError("select: one explode (or the like) in a select; use two selects")
            new = list(generator.fields)
            self._generator = generator
            chosen.extend((field.name, len(schema) + i) for i, field in enumerate(new))
        whole = pa.schema([*schema, *new], metadata=schema.metadata) if new else schema
        return self._project(whole, chosen)

    def describe(self) -> str:
        return ", ".join(_describe_item(item) for item in self.columns)


class WithColumn(_Projection):
    """All columns and one more, or one of them replaced."""

    kind = "with_column"

    def __init__(
        self, name: str, expression: Any, returnType: pa.DataType | str | None = None
    ) -> None:
        super().__init__()
        if not isinstance(name, str) or not name:
            raise SchemaError(f"withColumn: a column is named by a string, got {name!r}")
        self.name = name
        self.expression = expression
        self.return_type = returnType

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        made = compile_expression(self.expression, schema, self.return_type, what="withColumn")
        columns: list[tuple[str, int | Compiled]] = [
            (name, made if name == self.name else i) for i, name in enumerate(schema.names)
        ]
        if self.name not in schema.names:
            columns.append((self.name, made))
        return self._project(schema, columns)

    def describe(self) -> str:
        return f"{self.name} = {describe_expression(self.expression)}"


class WithColumns(_Projection):
    """All columns and some more, or some of them replaced; all are computed from the input."""

    kind = "with_columns"

    def __init__(self, columns: Sequence[tuple[str, Any]]) -> None:
        super().__init__()
        self.columns = list(columns)

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        made: dict[str, int | Compiled] = {name: i for i, name in enumerate(schema.names)}
        for name, expression in self.columns:
            if not isinstance(name, str) or not name:
                raise SchemaError(f"withColumns: a column is named by a string, got {name!r}")
            made[name] = compile_expression(expression, schema, what="withColumns")
        return self._project(schema, list(made.items()))

    def describe(self) -> str:
        return ", ".join(_describe_item(item) for item in self.columns)


def _generator(item: Any, schema: pa.Schema) -> Generator | None:
    """What an item makes several rows with, if it does."""
    names: list[str] = []
    if isinstance(item, tuple) and len(item) == 2:
        names, item = [item[0]], item[1]
    if isinstance(item, str) and any(f"{name}(" in item.lower() for name in GENERATORS):
        item = parsed(item)
    return generator_of(item, schema, names) if isinstance(item, Column) else None


def _select_item(item: Any, schema: pa.Schema) -> list[tuple[str, int | Compiled]]:
    if isinstance(item, Column):
        if item.sql == "*":
            return [(name, i) for i, name in enumerate(schema.names)]
        compiled = compile_expression(item, schema, what="select")
        return [(compiled.name, compiled)]
    if isinstance(item, tuple):
        if len(item) != 2 or not isinstance(item[0], str):
            raise SchemaError(f"select: a pair is (name, expression), got {item!r}")
        return [(item[0], compile_expression(item[1], schema, what="select"))]
    if isinstance(item, pc.Expression):
        compiled = compile_expression(item, schema, what="select")
        if compiled.name not in schema.names:
            raise SchemaError(f"select: give {item} a name: select(('name', expression))")
        return [(compiled.name, schema.get_field_index(compiled.name))]
    refuse_foreign(item)
    if not isinstance(item, str):
        raise SchemaError(
            "select: expected columns, their names, SQL or (name, expression) pairs, got "
            f"{describe_expression(item)}"
        )
    if item.strip() == "*":
        return [(name, i) for i, name in enumerate(schema.names)]
    if len(schema.get_all_field_indices(item)) == 1:
        return [(item, schema.get_field_index(item))]
    compiled = compile_expression(item, schema, what="select")
    return [(compiled.name, compiled)]


def _describe_item(item: Any) -> str:
    if isinstance(item, tuple) and len(item) == 2:
        return f"{item[0]} = {describe_expression(item[1])}"
    return describe_expression(item)


def _check_unique(names: list[str], kind: str) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise SchemaError(
                f"{kind}: two columns are named {name!r}; give one another name with AS",
                column=name,
            )
