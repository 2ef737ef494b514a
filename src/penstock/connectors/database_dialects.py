"""What SQLite and PostgreSQL have in common, and where they differ.

Both know ``INSERT ... ON CONFLICT DO UPDATE``, so one set of statements serves both: the dialects
differ in how one connects, in placeholders, in column types, and in which errors are worth another
try.  PostgreSQL needs psycopg, which is imported only when an address asks for it.
"""

from __future__ import annotations

import os
import re
import sqlite3
from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from penstock.errors import SettingsError, SinkError

__all__ = ["Dialect", "dialect_of", "lost", "quoted", "said"]

_PASSWORD = re.compile(
    r"((?<=://)[^/@:?]*:).*(?=@)|((?<=[?&])(?:ssl)?pass(?:word|wd)=)[^&]*", re.IGNORECASE
)
"""What comes after a user's name, or the value of a parameter."""
BUSY_S = 10.0
"""How long to wait for another transaction, or for a connection."""


def quoted(name: str) -> str:
    """A table or column name as SQL wants it; dots divide a schema from a table.

    >>> quoted("public.ad balances")
    '"public"."ad balances"'
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def without_password(url: str) -> str:
    """An address that may be shown.

    >>> without_password("postgresql://me:secret@host/db?sslPassword=secret&x=1")
    'postgresql://me:***@host/db?sslPassword=***&x=1'
    """
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", url)


class Dialect(ABC):
    """One database: how to reach it and how to talk to it."""

    mark: str
    """The placeholder of a value."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def connect(self) -> Any:
        """A connection of the DB API, outside of any transaction."""

    @abstractmethod
    def begin(self, connection: Any) -> Any:
        """Begin a transaction that writes; gives a cursor."""

    @abstractmethod
    def has_table(self, connection: Any, name: str) -> bool:
        """Whether there is such a table."""

    @abstractmethod
    def passes(self, error: BaseException) -> bool:
        """Whether an error is one that another try may not meet."""

    @abstractmethod
    def errors(self) -> tuple[type[BaseException], ...]:
        """What the database raises."""

    @abstractmethod
    def type_of(self, kind: pa.DataType) -> str | None:
        """The type of a column that is made for an Arrow type; None: it cannot be stored."""

    def values(self, column: pa.ChunkedArray) -> list[Any]:
        """A column's values as the driver takes them."""
        return column.to_pylist()

    @property
    def shown(self) -> str:
        """The address without a password."""
        return without_password(self.url)

    @property
    def identity(self) -> str:
        """The address as far as it says which database it is, not who asks."""
        return re.sub(r"://[^/@]*@", "://", self.url).partition("?")[0].rstrip("/")


class Sqlite(Dialect):
    """A file, on a file system that all hosts share and that can lock; none is needed beside it.

    It has a rollback journal.  A write-ahead log keeps its index in memory that only the processes
    of one machine share: with a file that several machines use, an old process that wakes up can
    destroy it.  ``?journal_mode=wal`` says that no other machine uses the file.
    """

    mark = "?"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        address, _, option = url.partition("?")
        path = address.removeprefix("sqlite://").removeprefix("/")
        if option.lower() not in ("", "journal_mode=delete", "journal_mode=wal"):
            raise SettingsError(
                f"database: {url!r} has the option {option!r}; known are journal_mode=delete (the "
                "default) and journal_mode=wal, for a file that only this machine uses"
            )
        self.mode = "WAL" if option.lower().endswith("wal") else "DELETE"
        if not path or path == ":memory:":
            raise SettingsError(
                f"database: {url!r} names no file; hosts are processes of their own and cannot "
                "share a database in memory. Give sqlite:///relative.db or sqlite:////absolute.db"
            )
        self.path = os.path.realpath(path)
        # Absolute: hosts work in other folders.
        self.url = f"sqlite:///{self.path}" + (f"?{option}" if option else "")

    def connect(self) -> Any:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            # A file keeps the mode of a write-ahead log until a connection changes it.
            (mode,) = connection.execute(f"PRAGMA journal_mode = {self.mode}").fetchone()
            if mode.upper() != self.mode:
                raise sqlite3.OperationalError(
                    f"its journal_mode is {mode}, and cannot be made {self.mode}"
                )
            # EXTRA: the end of a journal is durable, too, so that no commit is taken back.
            connection.execute("PRAGMA synchronous = EXTRA")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def begin(self, connection: Any) -> Any:
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        return cursor

    def has_table(self, connection: Any, name: str) -> bool:
        asked = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return connection.execute(asked, (name,)).fetchone() is not None

    def passes(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)

    def errors(self) -> tuple[type[BaseException], ...]:
        return (sqlite3.Error, OverflowError)

    def type_of(self, kind: pa.DataType) -> str | None:
        if t.is_integer(kind) or t.is_boolean(kind):
            return "INTEGER"
        if t.is_floating(kind):
            return "REAL"
        if _is_binary(kind):
            return "BLOB"
        return "TEXT" if _is_text(kind) or _is_time(kind) or t.is_decimal(kind) else None

    def values(self, column: pa.ChunkedArray) -> list[Any]:
        if _is_time(column.type) or t.is_decimal(column.type):
            column = column.cast(pa.string())
        return column.to_pylist()


class Postgres(Dialect):
    """A server; the address is libpq's."""

    mark = "%s"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import psycopg
        except ImportError as error:
            raise SettingsError(
                "database: PostgreSQL needs psycopg, which is not installed here: "
                "pip install 'penstock[postgres]', on the hosts too"
            ) from error
        self._psycopg: Any = psycopg

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    def connect(self) -> Any:
        return self._psycopg.connect(self.url, autocommit=True, connect_timeout=int(BUSY_S))

    def begin(self, connection: Any) -> Any:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        return cursor

    def has_table(self, connection: Any, name: str) -> bool:
        found = connection.execute("SELECT to_regclass(%s)", (quoted(name),)).fetchone()
        return found[0] is not None

    def passes(self, error: BaseException) -> bool:
        lost = (self._psycopg.OperationalError, self._psycopg.InterfaceError)
        return isinstance(error, lost)

    def errors(self) -> tuple[type[BaseException], ...]:
        return (self._psycopg.Error,)

    def type_of(self, kind: pa.DataType) -> str | None:
        if t.is_boolean(kind):
            return "BOOLEAN"
        if t.is_integer(kind):
            return "NUMERIC(20)" if t.is_uint64(kind) else "BIGINT"
        if t.is_floating(kind):
            return "DOUBLE PRECISION"
        if t.is_decimal(kind):
            return f"NUMERIC({kind.precision}, {kind.scale})"
        if t.is_date(kind):
            return "DATE"
        if t.is_timestamp(kind):
            return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
        if _is_binary(kind):
            return "BYTEA"
        return "TEXT" if _is_text(kind) else None


def dialect_of(url: str) -> Dialect:
    """The dialect of an address.

    >>> dialect_of("sqlite:////tmp/billing.db").shown
    'sqlite:////tmp/billing.db'
    """
    scheme = url.partition("://")[0]
    if scheme == "sqlite" and "://" in url:
        return Sqlite(url)
    if scheme in ("postgresql", "postgres") and "://" in url:
        return Postgres(url)
    raise SettingsError(
        f"database: {url!r} is not an address that is known here; give sqlite:////path/to/file.db "
        "or postgresql://user@host/database"
    )


def said(error: BaseException) -> str:
    """What the database said, in one line."""
    return " ".join(str(error).split())


def lost(dialect: Dialect, error: BaseException) -> SinkError:
    """What to say of a database that cannot be reached."""
    return SinkError(
        f"database: cannot use {dialect.shown}: {said(error)}; check the address, and that this "
        "user may create tables there",
        url=dialect.shown,
    )


def _is_text(kind: pa.DataType) -> bool:
    return t.is_string(kind) or t.is_large_string(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind)


def _is_time(kind: pa.DataType) -> bool:
    return t.is_date(kind) or t.is_timestamp(kind)
