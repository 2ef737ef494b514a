"""Rows into a table of a database, exactly once: each epoch is one transaction.

    stream.database(url, "events")                                      # rows are added
    stream.database(url, "latest", key="user")                          # one row a key: the newest
    stream.database(url, "balances", key="user", add=["spent", "ads"])  # added to what is there

The number of the epoch is written in the same transaction as its rows, in ``penstock_commits``, one
row per writer.  An epoch that comes again (its node was restarted, or an old process woke up) finds
its number taken and changes nothing.  At a start the flow asks there how far it got.

Rows of an epoch are gathered in one node and, where they are added up, summed by key in Arrow
first: the database sees one statement with one row per key and epoch.
"""

from __future__ import annotations

import contextlib
import time as clock
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.api.vertex import Time, Vertex
from penstock.connectors.base import Sink
from penstock.connectors.database_dialects import Dialect, dialect_of, lost, quoted, said
from penstock.connectors.ownership import Owner, taken
from penstock.errors import SchemaError, SinkError
from penstock.operators.base import Exchange, Single
from penstock.operators.columns import require_column

__all__ = ["COMMITS", "Database"]

COMMITS = "penstock_commits"
"""The table of epochs: ``writer`` (text), ``epoch`` (the last one committed)."""
WRITERS = "penstock_writers"
"""The table of who writes: per ``writer`` the run that may, its flow and its process."""
TRIES = 5
PAUSE_S = 0.2
"""Before the second try; twice as long before each further one."""

T = TypeVar("T")


class Database(Sink):
    """Writes each epoch in one transaction; see the module for the three ways."""

    kind = "database"
    durable = True
    _owner: Owner | None = None

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str] = (),
        add: str | Sequence[str] = (),
        writer: str | None = None,
    ) -> None:
        self.dialect = dialect_of(url)
        self.table = table
        self.key = _names(key)
        self.add = _names(add)
        self.writer = writer or table
        if self.add and not self.key:
            raise SchemaError("database: add= needs key=: which row is added to?")
        self.schema = pa.schema([])

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        for name in (*self.key, *self.add):
            require_column(schema, name, "database")
        for field in schema:
            if self.dialect.type_of(field.type) is None:
                raise SchemaError(
                    f"database: column {field.name!r} of type {field.type} has no counterpart in a "
                    "table; cast it, or leave it out with select(...)",
                    column=field.name,
                )
        if self.add:
            _check_sums(schema, self.key, self.add, exact=self.dialect.mark != "?")
        self.schema = schema
        return ()

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return (Single(),)

    def check(self) -> None:
        """Connect, make the tables that are missing, and have the database look at the statement.

        Nothing is written into tables that are there.
        """
        try:
            connection = self.dialect.connect()
        except self.dialect.errors() as error:
            raise lost(self.dialect, error) from error
        nulls = ", ".join(["NULL"] * len(self.schema))
        wanted = self.statement().replace(f"({self._marks()})", f"({nulls})")
        with contextlib.closing(connection):
            try:
                cursor = self.dialect.begin(connection)
                for statement in (*self._tables(), f"EXPLAIN {wanted}", "COMMIT"):
                    cursor.execute(statement)
            except self.dialect.errors() as error:
                raise SinkError(
                    f"database: table {self.table!r} in {self.dialect.shown} cannot be used: "
                    f"{said(error)}; it needs the columns [{', '.join(self.schema.names)}]"
                    + (f" and a unique index on ({', '.join(self.key)})" if self.key else ""),
                    table=self.table,
                ) from error

    def target(self) -> str:
        own = "" if self.writer == self.table else f", writer {self.writer}"
        return f"{self.dialect.identity}, table {self.table}{own}"

    def writes_as(self) -> str:
        return f"{self.dialect.identity}, writer {self.writer}"

    def owner(self) -> Owner | None:
        return self._use(lambda connection: self.owner_in(connection.cursor(), connection))

    def take(self, owner: Owner) -> None:
        before = self.owner()
        if before is not None and not before.is_of(owner) and before.is_alive():
            raise taken(self._shown(), before)
        self._owner = owner

    def prepare(self) -> None:
        """Say which run may write; others find out with their next transaction."""
        owner, mark = self._owner, self.dialect.mark
        if owner is None:
            return
        names = ("run", "flow", "flow_id", "pid", "machine")
        changes = ", ".join(f"{name} = excluded.{name}" for name in names)
        statement = (
            f"INSERT INTO {quoted(WRITERS)} (writer, {', '.join(names)}) "
            f"VALUES ({', '.join([mark] * (1 + len(names)))}) "
            f"ON CONFLICT (writer) DO UPDATE SET {changes}"
        )
        values = (self.writer, owner.run, owner.flow, owner.flow_id, owner.pid, owner.machine)

        def note(connection: Any) -> None:
            cursor = self.dialect.begin(connection)
            cursor.execute(statement, values)
            cursor.execute("COMMIT")

        self._use(note)

    def committed(self) -> int | None:
        asked = f"SELECT epoch FROM {quoted(COMMITS)} WHERE writer = {self.dialect.mark}"

        def ask(connection: Any) -> int | None:
            if not self.dialect.has_table(connection, COMMITS):
                return None
            cursor = connection.cursor()
            cursor.execute(asked, (self.writer,))
            row = cursor.fetchone()
            return None if row is None else int(row[0])

        return self._use(ask)

    def owner_in(self, cursor: Any, connection: Any) -> Owner | None:
        """The run that may write, as a transaction sees it."""
        if not self.dialect.has_table(connection, WRITERS):
            return None
        cursor.execute(
            f"SELECT run, flow, flow_id, pid, machine FROM {quoted(WRITERS)} "
            f"WHERE writer = {self.dialect.mark}",
            (self.writer,),
        )
        row = cursor.fetchone()
        return None if row is None else Owner(*row)

    def fence(self, cursor: Any, connection: Any) -> None:
        """Hold on to the right to write until the transaction ends, or say who has it."""
        if self._owner is None:
            return
        mark = self.dialect.mark
        cursor.execute(
            f"UPDATE {quoted(WRITERS)} SET run = run WHERE writer = {mark} AND run = {mark}",
            (self.writer, self._owner.run),
        )
        if not cursor.rowcount:
            raise taken(self._shown(), self.owner_in(cursor, connection))

    def _shown(self) -> str:
        return f"database: table {self.table!r} in {self.dialect.shown} (writer {self.writer!r})"

    def _use(self, work: Callable[[Any], T]) -> T:
        connection = Connection(self.dialect)
        try:
            return connection.use(work)
        except self.dialect.errors() as error:
            raise lost(self.dialect, error) from error
        finally:
            connection.close()

    def vertex(self) -> Vertex:
        return DatabaseVertex(self)

    def describe(self) -> str:
        how = f", {', '.join(self.add)} added by {', '.join(self.key)}" if self.add else ""
        how = how or (f", by {', '.join(self.key)}" if self.key else "")
        return f"{self.table} in {self.dialect.shown}{how}"

    # -- SQL -------------------------------------------------------------------------------------

    def _tables(self) -> list[str]:
        columns = [
            f"{quoted(field.name)} {self.dialect.type_of(field.type)}"
            + (" NOT NULL" if field.name in (*self.key, *self.add) else "")
            for field in self.schema
        ]
        if self.key:
            columns.append(f"PRIMARY KEY ({self._columns(self.key)})")
        commits = "writer TEXT PRIMARY KEY, epoch BIGINT NOT NULL"
        writers = (
            "writer TEXT PRIMARY KEY, run TEXT NOT NULL, flow TEXT NOT NULL, "
            "flow_id TEXT NOT NULL, pid BIGINT NOT NULL, machine TEXT NOT NULL"
        )
        return [
            f"CREATE TABLE IF NOT EXISTS {quoted(COMMITS)} ({commits})",
            f"CREATE TABLE IF NOT EXISTS {quoted(WRITERS)} ({writers})",
            f"CREATE TABLE IF NOT EXISTS {quoted(self.table)} ({', '.join(columns)})",
        ]

    def statement(self) -> str:
        """What puts one row in; the values are in the order of the columns."""
        names = self.schema.names
        text = f"INSERT INTO {quoted(self.table)} ({self._columns(names)}) VALUES ({self._marks()})"
        if not self.key:
            return text
        own = quoted(self.table)
        changes = [
            f"{quoted(name)} = COALESCE({own}.{quoted(name)}, 0) + excluded.{quoted(name)}"
            if name in self.add
            else f"{quoted(name)} = excluded.{quoted(name)}"
            for name in names
            if name not in self.key
        ]
        what = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"{text} ON CONFLICT ({self._columns(self.key)}) DO {what}"

    def claim(self) -> str:
        """What takes an epoch's number; changes no row if it is taken already."""
        mark, commits = self.dialect.mark, quoted(COMMITS)
        return (
            f"INSERT INTO {commits} (writer, epoch) VALUES ({mark}, {mark}) "
            "ON CONFLICT (writer) DO UPDATE SET epoch = excluded.epoch "
            f"WHERE {commits}.epoch < excluded.epoch"
        )

    def _columns(self, names: Sequence[str]) -> str:
        return ", ".join(map(quoted, names))

    def _marks(self) -> str:
        return ", ".join([self.dialect.mark] * len(self.schema))

    def reduced(self, rows: pa.Table, epoch: int) -> pa.Table:
        """One row a key, where there is a key."""
        if not self.key:
            return rows
        for name in self.key:
            if rows[name].null_count:
                raise SinkError(
                    f"database: {rows[name].null_count} rows for {self.table!r} have no "
                    f"{name!r}, which is a key; filter them out before",
                    table=self.table,
                    column=name,
                    epoch=epoch,
                )
        # Copied: Arrow's query engine complains of buffers that lie as they came over the wire.
        rows = rows.take(pa.array(range(rows.num_rows)))
        grouped = rows.group_by(list(self.key), use_threads=False)
        if not self.add:
            return self._unique(rows, grouped, epoch)
        sums = grouped.aggregate([(name, "sum") for name in self.add])
        columns = {name: sums[name] for name in self.key}
        columns |= {name: pc.fill_null(sums[f"{name}_sum"], 0) for name in self.add}
        return pa.table([columns[name] for name in self.schema.names], self.schema.names)

    def _unique(self, rows: pa.Table, grouped: Any, epoch: int) -> pa.Table:
        counts = grouped.aggregate([([], "count_all")])
        if counts.num_rows == rows.num_rows:
            return rows
        again = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist()[0]
        raise SinkError(
            f"database: {again.pop('count_all')} rows of one epoch for the key {again} of "
            f"{self.table!r}, and it is not known which is the newest; aggregate them before, or "
            "say add=... if they are to be added up",
            table=self.table,
            epoch=epoch,
        )


class Connection:
    """A connection that is made when it is needed, and again when it broke."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._connection: Any = None

    def use(self, work: Callable[[Any], T]) -> T:
        """Do some work, again if the connection breaks; so the work must be repeatable."""
        for number in range(TRIES):
            try:
                if self._connection is None:
                    self._connection = self._dialect.connect()
                return work(self._connection)
            except self._dialect.errors() as error:
                self.close()
                if not self._dialect.passes(error):
                    raise
                if number == TRIES - 1:
                    raise lost(self._dialect, error) from error
                clock.sleep(PAUSE_S * 2**number)
            except BaseException:
                self.close()  # and with it whatever was begun
                raise
        raise SinkError("database: no try is left")

    def close(self) -> None:
        """Give it up, and what was not committed with it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*self._dialect.errors()):
                connection.close()


class DatabaseVertex(Vertex):
    """Gathers the rows of open epochs; writes each when it is complete."""

    def __init__(self, sink: Database) -> None:
        self._sink = sink
        self._open: dict[int, list[pa.RecordBatch]] = {}
        self._database = Connection(sink.dialect)

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        batches = self._open.get(time.epoch)
        if batches is None:
            batches = self._open[time.epoch] = []
            self.notifyAt(time)
        batches.append(batch)

    def onNotify(self, time: Time) -> None:
        sink = self._sink
        rows = sink.reduced(pa.Table.from_batches(self._open.pop(time.epoch)), time.epoch)
        columns = [sink.dialect.values(rows[name]) for name in sink.schema.names]
        values = list(zip(*columns, strict=True))
        try:
            new = self._database.use(lambda each: self._write(each, time.epoch, values))
        except sink.dialect.errors() as error:
            raise SinkError(
                f"database: {sink.dialect.shown} refused rows of epoch {time.epoch} for table "
                f"{sink.table!r}: {said(error)}; the epoch was not written. Mend the rows "
                "or the table and start the flow again",
                table=sink.table,
                epoch=time.epoch,
            ) from error
        if new:
            self.count("epochs_published", 1)
            self.count("rows_published", len(values))

    def _write(self, connection: Any, epoch: int, values: list[tuple[Any, ...]]) -> bool:
        """One transaction; False if the epoch was there already."""
        sink = self._sink
        cursor = sink.dialect.begin(connection)
        sink.fence(cursor, connection)
        cursor.execute(sink.claim(), (sink.writer, epoch))
        if not cursor.rowcount:
            cursor.execute("ROLLBACK")
            return False
        cursor.executemany(sink.statement(), values)
        cursor.execute("COMMIT")
        return True

    def close(self) -> None:
        self._database.close()


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_sums(schema: pa.Schema, key: tuple[str, ...], add: tuple[str, ...], exact: bool) -> None:
    rest = [name for name in schema.names if name not in (*key, *add)]
    if rest:
        raise SchemaError(
            f"database: column {rest[0]!r} is neither in key= nor in add=; leave it out with "
            "select(...)",
            column=rest[0],
        )
    for name in add:
        kind = schema.field(name).type
        number = t.is_integer(kind) or t.is_floating(kind) or (exact and t.is_decimal(kind))
        if name in key or not number:
            why = "is in key= too" if name in key else f"is {kind}"
            hint = "; SQLite has no decimals: count in cents" if t.is_decimal(kind) else ""
            raise SchemaError(
                f"database: column {name!r} cannot be added up: it {why}{hint}", column=name
            )
