"""compile_expression (first version: enough SQL for simple filters)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from penstock.errors import SchemaError


@dataclass
class Compiled:
    type: pa.DataType
    name: str
    function: Callable[[pa.RecordBatch], Any]

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        made = self.function(batch)
        return pa.repeat(made, batch.num_rows) if isinstance(made, pa.Scalar) else made


def describe_expression(expr: Any) -> str:
    return getattr(expr, "__qualname__", None) or str(expr)


_BINARY = {
    exp.EQ: pc.equal, exp.NEQ: pc.not_equal, exp.GT: pc.greater, exp.GTE: pc.greater_equal,
    exp.LT: pc.less, exp.LTE: pc.less_equal, exp.And: pc.and_kleene, exp.Or: pc.or_kleene,
    exp.Add: pc.add_checked, exp.Sub: pc.subtract_checked, exp.Mul: pc.multiply_checked,
    exp.Div: pc.divide_checked,
}  # fmt: skip


def _build(node: Any, schema: pa.Schema) -> Callable[[pa.RecordBatch], Any]:
    if isinstance(node, exp.Alias | exp.Paren):
        return _build(node.this, schema)
    if isinstance(node, exp.Column):
        if node.name not in schema.names:
            raise SchemaError(
                f"no column {node.name!r}; columns: [{', '.join(schema.names)}]", column=node.name
            )
        index = schema.get_field_index(node.name)
        return lambda batch: batch.column(index)
    if isinstance(node, exp.Literal):
        value = pa.scalar(node.to_py())
        return lambda batch: value
    if isinstance(node, exp.Not):
        inner = _build(node.this, schema)
        return lambda batch: pc.invert(inner(batch))
    if type(node) in _BINARY:
        left, right = _build(node.this, schema), _build(node.expression, schema)
        function = _BINARY[type(node)]
        return lambda batch: function(left(batch), right(batch))
    raise SchemaError(f"not supported: {node.sql(dialect='spark')}")


def compile_expression(
    expr: Any, schema: pa.Schema, returnType: Any = None, what: str = "filter"
) -> Compiled:
    empty = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    if isinstance(expr, str):
        try:
            node = sqlglot.parse_one(expr, dialect="spark")
        except sqlglot.errors.SqlglotError as error:
            raise SchemaError(f"{what}: cannot read {expr!r}: {error}") from None
        try:
            function = _build(node, schema)
            type_ = function(empty).type
        except pa.ArrowException as error:
            raise SchemaError(f"{what}: {expr!r}: {error}") from None
        return Compiled(type_, node.output_name or node.sql(dialect="spark"), function)
    if isinstance(expr, pc.Expression):
        made = pa.table(empty).select([])

        def evaluate(batch: pa.RecordBatch) -> pa.Array:
            import pyarrow.acero as acero

            decl = acero.Declaration.from_sequence(
                [
                    acero.Declaration(
                        "table_source", acero.TableSourceNodeOptions(pa.table(batch))
                    ),
                    acero.Declaration("project", acero.ProjectNodeOptions([expr], ["v"])),
                ]
            )
            return decl.to_table(use_threads=False).column(0).combine_chunks()

        del made
        return Compiled(evaluate(empty).type, str(expr), evaluate)
    if callable(expr):
        type_ = returnType or expr(empty).type
        return Compiled(type_, describe_expression(expr), expr)
    raise SchemaError(f"{what}: expected SQL, an Arrow expression or a function, got {expr!r}")
