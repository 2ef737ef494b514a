"""asOf and lookup: rows and the version of a published table that they see.

``AsOf`` notes with a batch which versions are the newest when it comes by, as ``ctx.call`` does: it
is durable before the batch goes on, and a replay is given the same.  ``TableLookup`` is then a
function of its rows alone: nothing is kept for it, nothing is lost with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.vertex import Time, Vertex, VertexContext
from penstock.connectors.table import PublishedTable
from penstock.connectors.table_pins import TablePin
from penstock.errors import SchemaError, require
from penstock.operators.base import Kernel, Operator, StatelessOperator
from penstock.operators.lookup import Lookup

__all__ = ["AsOf", "TableLookup", "pin_name"]

VERSIONS_OPEN = 4
"""Number of versions of a table that a node keeps open."""


class AsOf(Operator):
    """Adds a column per table: the version that the row sees, null before the first."""

    kind = "as_of"
    reader: str | None = None
    """What the flow's pins are called (see :mod:`penstock.connectors.table_pins`); None: there are
    none."""

    def __init__(self, tables: Sequence[PublishedTable]) -> None:
        if not tables:
            raise SchemaError("asOf: name at least one table, as stream.toTable(...) gives it")
        for table in tables:
            if not isinstance(table, PublishedTable):
                raise SchemaError(
                    f"asOf: a table is what stream.toTable(...) gives, got {type(table).__name__}"
                )
        self.tables = tuple(tables)

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        for table in self.tables:
            if table.column in schema.names:
                raise SchemaError(
                    f"asOf: there is a column {table.column!r} already; columns: "
                    f"[{', '.join(schema.names)}]",
                    column=table.column,
                )
            schema = schema.append(pa.field(table.column, pa.int64()))
        return (schema,)

    @property
    def asks(self) -> bool:
        return True

    def vertex(self) -> Vertex:
        return _AsOfVertex(self.tables, self.reader)

    def describe(self) -> str:
        return ", ".join(table.name for table in self.tables)


def pin_name(reader: str, stage: str, shard: int) -> str:
    """What the pins of a node are called."""
    return f"{reader}.{stage}.{shard}"


class _AsOfVertex(Vertex):
    """Notes versions."""

    stateless = True

    def __init__(self, tables: Sequence[PublishedTable], reader: str | None) -> None:
        self._tables = tables
        self._reader = reader
        self._pins: dict[str, TablePin] = {}

    def open(self, context: VertexContext) -> None:
        super().open(context)
        if self._reader is None:
            return
        name = pin_name(self._reader, context.place.stage, context.place.shard)
        for table in self._tables:
            if table.placed:
                pin = self._pins[table.name] = TablePin(table.folder, name)
                pin.open(table.newest())

    def released(self, low: int, completed: int) -> None:
        for table in self._tables:
            if table.name in self._pins:
                self._pins[table.name].released(low, completed, table.newest())

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        for table, version in zip(self._tables, self.call(self._newest), strict=True):
            if table.name in self._pins:
                self._pins[table.name].noted(time.epoch, version)
            values = pa.repeat(pa.scalar(version, pa.int64()), batch.num_rows)
            batch = batch.append_column(table.column, values)
        self.sendBy(0, batch, time)

    def _newest(self) -> list[int | None]:
        return [table.newest() for table in self._tables]


class TableLookup(StatelessOperator):
    """The stream's columns and, found by key in the row's version, columns of the table."""

    kind = "lookup"

    def __init__(
        self,
        table: PublishedTable,
        on: str | Mapping[str, str] | Sequence[str],
        *,
        how: str = "inner",
        columns: Sequence[str] | None = None,
    ) -> None:
        self.table = table
        self._on, self._how, self._columns = on, how, columns
        self._empty = self._lookup(table.schema.empty_table())
        self._schema: pa.Schema | None = None

    def _lookup(self, rows: pa.Table) -> Lookup:
        return Lookup(rows, self._on, how=self._how, columns=self._columns)

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (self._schema,) = inputs
        if self.table.column not in self._schema.names:
            raise SchemaError(
                f"lookup: no column {self.table.column!r} says which version of table "
                f"{self.table.name!r} a row sees; call asOf(table) on the stream first; columns: "
                f"[{', '.join(self._schema.names)}]",
                column=self.table.column,
            )
        return self._empty.output_schemas(inputs)

    def kernel(self) -> Kernel:
        schema, column = self._schema, self.table.column
        require(schema is not None, "lookup: kernel() before output_schemas()")
        open_versions: OrderedDict[int | None, Kernel] = OrderedDict()

        def of_version(version: int | None) -> Kernel:
            kernel = open_versions.get(version)
            if kernel is None:
                if version is None:
                    lookup = self._empty
                else:
                    lookup = self._lookup(self.table.read(version))
                lookup.output_schemas([schema])
                kernel = open_versions[version] = lookup.kernel()
                if len(open_versions) > VERSIONS_OPEN:
                    open_versions.popitem(last=False)
            open_versions.move_to_end(version)
            return kernel

        def found(batch: pa.RecordBatch) -> pa.RecordBatch:
            versions = batch.column(column)
            seen = pc.unique(versions).to_pylist()
            if len(seen) == 1:
                return of_version(seen[0])(batch)
            rows = [
                versions.is_null() if version is None else pc.equal(versions, version)
                for version in seen
            ]
            parts = [
                of_version(version)(batch.filter(pc.fill_null(which, False)))
                for version, which in zip(seen, rows, strict=True)
            ]
            return pa.concat_batches(parts) if parts else of_version(None)(batch)

        return found

    def describe(self) -> str:
        empty = self._empty
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in empty.on.items())
        return f"{keys} -> {', '.join(empty.columns)} ({empty.how}, table {self.table.name})"
