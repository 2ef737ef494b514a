"""compile_expression: SQL, an Arrow expression or a function, bound to a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError, SchemaError
from penstock.expressions.arrow import ArrowNode
from penstock.expressions.column import Column, refuse_foreign
from penstock.expressions.ddl import parse_type
from penstock.expressions.nodes import Node, as_array
from penstock.expressions.python import FunctionNode

if TYPE_CHECKING:
    from penstock.expressions.build import ExpressionBuilder

__all__ = ["Compiled", "compile_expression", "describe_expression"]


class Compiled:
    """An expression bound to a schema; a plain value that can be shipped to the hosts.

    >>> compiled = compile_expression("price * 2 AS twice", pa.schema({"price": pa.int64()}))
    >>> compiled.name, compiled.type
    ('twice', DataType(int64))
    >>> compiled.evaluate(pa.record_batch({"price": [1, None, 3]})).to_pylist()
    [2, None, 6]
    """

    def __init__(
        self,
        node: Node,
        name: str,
        text: str,
        columns: tuple[int, ...] = (),
        narrow: tuple[int, ...] | None = None,
    ) -> None:
        self.node = node
        self.type: pa.DataType = node.type
        self.name = name
        """The name of the result if none is given: alias, column name, or the SQL itself."""
        self.text = text
        self.columns = columns
        """The positions of the columns that it reads (of SQL; of others nothing is known)."""
        self._narrow = narrow

    def __repr__(self) -> str:
        return f"Compiled({self.text!r}, {self.type})"

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """The values for the batch's rows: an array of the batch's length and of ``type``."""
        if self._narrow is not None:
            batch = batch.select(list(self._narrow))
        try:
            return as_array(self.node.evaluate(batch), batch.num_rows)
        except (pa.ArrowInvalid, DataError) as error:
            raise self._explained(error, batch) from error

    def _explained(self, error: Exception, batch: pa.RecordBatch) -> DataError:
        """The error with the first row that causes it, found by bisection."""
        low, high = 0, batch.num_rows
        while high - low > 1:
            middle = (low + high) // 2
            if self._fails(batch.slice(low, middle - low)):
                high = middle
            else:
                low = middle
        row = ""
        if high > low and self._fails(batch.slice(low, 1)):
            names = batch.schema.names
            indices = range(len(names)) if self._narrow is not None else self.columns
            shown = [f"{names[i]} = {batch.column(i)[low].as_py()!r}" for i in indices]
            row = f" where {', '.join(shown)}" if shown else ""
        reason = error.message if isinstance(error, DataError) else str(error)
        return DataError(f"{self.text}: {reason}{row}", expression=self.text)

    def _fails(self, part: pa.RecordBatch) -> bool:
        try:
            self.node.evaluate(part)
        except (pa.ArrowInvalid, DataError):
            return True
        return False


def compile_expression(
    expr: Any,
    schema: pa.Schema,
    returnType: pa.DataType | str | None = None,
    what: str = "filter",
) -> Compiled:
    """Bind an expression to a schema; everything that can be wrong with it is refused here.

    ``expr`` is a column, SQL, a ``pyarrow.compute.Expression``, or a function from a record batch
    to an array.  ``what`` is the operator that errors name.
    """
    target = None if returnType is None else parse_type(returnType, what)
    if isinstance(expr, str | Column):
        return _compile_sql(expr, schema, target, what)
    if isinstance(expr, pc.Expression):
        node = ArrowNode.bound(expr, schema, target, what)
        return Compiled(node, node.name, str(expr))
    refuse_foreign(expr)
    if callable(expr):
        made = FunctionNode.bound(expr, schema, target, what)
        return Compiled(made, made.name, made.name)
    raise SchemaError(
        f"{what}: expected a column (F.col(...)), SQL, a pyarrow.compute.Expression or a function "
        "of a record batch, got "
        f"{type(expr).__name__} {expr!r}"
    )


def describe_expression(expr: Any) -> str:
    """An expression in a few words: SQL and Arrow expressions as they are, functions by name."""
    if isinstance(expr, str):
        return " ".join(expr.split())
    if isinstance(expr, pc.Expression):
        return str(expr)
    if isinstance(expr, Column):
        return expr.sql
    return getattr(expr, "__qualname__", None) or type(expr).__qualname__


def _compile_sql(
    expr: str | Column, schema: pa.Schema, target: pa.DataType | None, what: str
) -> Compiled:
    # Imported here because of sqlglot: hosts evaluate and never parse, and start 0.1 s sooner.
    from penstock.expressions.build import ExpressionBuilder
    from penstock.expressions.parse import SourceText, expression_and_name, parse_sql

    sql = expr if isinstance(expr, str) else expr.sql
    source = SourceText(what, sql)
    tree, name = expression_and_name(parse_sql(source) if isinstance(expr, str) else expr.tree)
    builder = ExpressionBuilder(schema, source)
    node = builder.build(tree)
    if target is not None:
        node = builder.cast(node, target, tree)
    if pa.types.is_null(node.type):
        builder.refuse("the type of NULL is unknown; write CAST(NULL AS type)", tree)
    columns = tuple(dict.fromkeys(column.index for column in builder.columns))
    narrow = None
    if node.lazy and len(columns) < len(schema):
        # Lazy nodes filter the batch: leave out of it what they do not read.
        narrow = columns
        for column in builder.columns:
            column.index = columns.index(column.index)
    compiled = Compiled(node, name, " ".join(sql.split()), columns, narrow)
    _try_out(compiled, schema, builder, tree)
    return compiled


def _try_out(compiled: Compiled, schema: pa.Schema, builder: ExpressionBuilder, tree: Any) -> None:
    """Run once on no rows and once on nulls: what the kernels cannot do shows now, not later."""
    for size in (0, 1):
        batch = pa.RecordBatch.from_arrays(
            [pa.nulls(size, field.type) for field in schema],
            schema=pa.schema([field.with_nullable(True) for field in schema]),
        )
        try:
            made = compiled.evaluate(batch)
        except DataError:
            continue
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError) as error:
            builder.refuse(f"this is not supported: {error}", tree)
        if made.type != compiled.type:
            builder.refuse(
                f"inferred the type {compiled.type}, but the result is {made.type}; please report "
                "this",
                tree,
            )
