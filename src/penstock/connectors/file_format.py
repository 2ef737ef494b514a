"""What a file format is: a file's schema, and its rows from any row on, a block at a time.

A file either fits the schema or is refused by the name of the column.  A schema that the user gave
is a projection: other columns are left out and types are cast where nothing is lost.  A schema that
was inferred must be every file's.  What Arrow cannot read at all (an ``ArrowException`` or an
``OSError``) is left to the caller: it may be told to skip such files.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from penstock.errors import SourceError

__all__ = [
    "Count",
    "FileFormat",
    "check_names",
    "conform",
    "described",
    "ignored",
    "opened",
    "plain",
]

Count = Callable[[int], None]
"""Told how many records were malformed."""


def ignored(number: int) -> None:
    """Ignore a count of bad rows."""


class FileFormat(ABC):
    """How files of one format are read; ``options`` are the user's."""

    name: ClassVar[str]
    extensions: ClassVar[tuple[str, ...]]
    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.values = dict(options)

    @abstractmethod
    def schema(self, path: str) -> pa.Schema:
        """What the file itself says, or what its first block looks like."""

    @abstractmethod
    def blocks(
        self, path: str, schema: pa.Schema, exact: bool, count: Count = ignored
    ) -> Iterator[pa.RecordBatch]:
        """Every row, in the file's order, with at least the schema's columns.

        ``count`` is told of malformed records.
        """

    def batches(
        self, path: str, schema: pa.Schema, exact: bool, skip: int, count: Count = ignored
    ) -> Iterator[pa.RecordBatch]:
        """The rows after the first ``skip``, with exactly the schema."""
        for block in self.blocks(path, schema, exact, count):
            if skip >= block.num_rows:
                skip -= block.num_rows
                continue
            yield conform(block.slice(skip), schema, exact, path)
            skip = 0


def opened(path: str) -> Any:
    """A file; its name need not be UTF-8, on which Arrow insists for text."""
    return pa.OSFile(os.fsencode(path))


def conform(batch: pa.RecordBatch, schema: pa.Schema, exact: bool, path: str) -> pa.RecordBatch:
    """A batch with exactly the columns of a schema, or a refusal that names the column."""
    if batch.schema.equals(schema):
        return batch
    check_names(batch.schema.names, schema, exact, path)
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            column = _cast(column, field, exact, path)
        if not field.nullable and column.null_count:
            raise SourceError(
                f"{path}: column {field.name!r} has nulls, which the schema forbids",
                path=path,
                column=field.name,
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, exact: bool, path: str) -> pa.Array:
    decoded = pa.types.is_dictionary(column.type) and column.type.value_type == field.type
    if not exact or decoded:
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = f" ({error})"
    else:
        reason = ""
    raise SourceError(
        f"{path}: column {field.name!r} is {column.type}, expected {field.type}{reason}; mend the "
        "file, or give schema=... with a type that fits all files",
        path=path,
        column=field.name,
    )


def check_names(names: list[str], schema: pa.Schema, exact: bool, path: str) -> None:
    """Refuse a file that lacks a column, or has one that no other has."""
    for name in schema.names:
        if name not in names:
            raise SourceError(
                f"{path}: column {name!r} is missing; the file has [{', '.join(names)}]",
                path=path,
                column=name,
            )
    for name in names if exact else ():
        if name not in schema.names:
            raise SourceError(
                f"{path}: column {name!r} is not in the first file, [{described(schema)}]; give "
                "schema=... with the columns that are wanted",
                path=path,
                column=name,
            )


def plain(schema: pa.Schema) -> pa.Schema:
    """A schema for a whole directory: without metadata, dictionaries, and types without values."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif pa.types.is_null(kind):
            kind = pa.string()
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def described(schema: pa.Schema) -> str:
    """Columns and types, for messages."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
