"""File formats: a file's schema, and its rows from any row on, a block at a time.

Memory stays flat whatever the file's size: Parquet is read by row group and page, CSV and JSON
lines by block, always in the file's order and without threads.

A file either fits the schema or is refused by the name of the column.  A schema that the user gave
is a projection: other columns are left out and types are cast where nothing is lost.  A schema that
was inferred must be every file's.  What Arrow cannot read at all (an ``ArrowException`` or an
``OSError``) is left to the caller: it may be told to skip such files.
"""

from __future__ import annotations

import csv as python_csv
import json as python_json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as pq

from penstock.errors import SettingsError, SourceError

__all__ = ["FORMATS", "FileFormat", "SparkParquet", "format_of"]

_BATCH_ROWS = 65_536
_CSV_BLOCK_BYTES = 1 << 20
_JSON_BLOCK_BYTES = 4 << 20
_COMPRESSED = re.compile(r"\.(gz|bz2|zst|lz4)\Z")


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
    def blocks(self, path: str, schema: pa.Schema, exact: bool) -> Iterator[pa.RecordBatch]:
        """Every row, in the file's order, with at least the schema's columns."""

    def batches(
        self, path: str, schema: pa.Schema, exact: bool, skip: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows after the first ``skip``, with exactly the schema."""
        for block in self.blocks(path, schema, exact):
            if skip >= block.num_rows:
                skip -= block.num_rows
                continue
            yield _conform(block.slice(skip), schema, exact, path)
            skip = 0


class Parquet(FileFormat):
    """Parquet files."""

    name = "parquet"
    extensions = (".parquet", ".parq")
    int96_unit: ClassVar[str | None] = None
    """The unit of timestamps in the old form with 96 bits, if it is known."""

    def schema(self, path: str) -> pa.Schema:
        return _plain(pq.read_schema(path))

    def blocks(self, path: str, schema: pa.Schema, exact: bool) -> Iterator[pa.RecordBatch]:
        return self.batches(path, schema, exact, 0)

    def batches(
        self, path: str, schema: pa.Schema, exact: bool, skip: int
    ) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(
            path,
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit=self.int96_unit,
        ) as file:
            _check_names(file.schema_arrow.names, schema, exact, path)
            columns = None if exact else list(schema.names)
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if skip >= rows:
                    skip -= rows
                    continue
                for batch in file.iter_batches(
                    batch_size=_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
                ):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield _conform(batch.slice(skip), schema, exact, path)
                    skip = 0


class SparkParquet(Parquet):
    """Parquet files that Spark wrote, whose timestamps are microseconds in 96 bits by default."""

    int96_unit = "us"


class Csv(FileFormat):
    """CSV files: ``header``, ``sep``, ``quote``, ``escape``, ``nullValue``, ``encoding``.

    ``multiLine=True`` allows line ends inside quoted values; it reads about 40 % slower.
    Unlike Spark's, a header is expected unless ``header=False``; as in Spark, columns are then
    named ``_c0``, ``_c1`` and so on, and an empty field is null.
    """

    name = "csv"
    extensions = (".csv", ".tsv")
    options = frozenset(
        {"header", "sep", "delimiter", "quote", "escape", "nullValue", "encoding", "multiLine"}
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.header = _flag(options.get("header", True), "header")
        self.multi_line = _flag(options.get("multiLine", False), "multiLine")
        self.sep = options.get("sep", options.get("delimiter"))

    def schema(self, path: str) -> pa.Schema:
        try:
            read = self._read(autogenerate_column_names=not self.header)
            with self._open(path, read, arrow_csv.ConvertOptions()) as reader:
                names = list(reader.schema.names)
                types = list(reader.schema.types)
        except pa.ArrowInvalid as error:
            if str(error).startswith("Empty CSV"):
                raise SourceError(
                    f"{path} is empty: its columns are unknown, give schema=...", path=path
                ) from error
            raise
        if not self.header:
            names = [f"_c{index}" for index in range(len(names))]
        return _plain(pa.schema(list(zip(names, types, strict=True))))

    def blocks(self, path: str, schema: pa.Schema, exact: bool) -> Iterator[pa.RecordBatch]:
        null = self.values.get("nullValue", "")
        convert = arrow_csv.ConvertOptions(
            column_types=schema,
            null_values=[null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            include_columns=None if exact or not self.header else list(schema.names),
        )
        read = self._read(column_names=None if self.header else list(schema.names))
        try:
            with self._open(path, read, convert) as reader:
                _check_names(reader.schema.names, schema, exact, path)
                yield from reader
        except pa.ArrowKeyError as error:
            _check_names(self._header(path), schema, exact, path)
            raise SourceError(f"{path}: {error}", path=path) from error
        except pa.ArrowInvalid as error:
            text = str(error)
            if text.startswith("Empty CSV"):
                return
            column = re.match(r"In CSV column #(\d+)", text)
            if column is None:
                raise
            names = self._header(path) if self.header else list(schema.names)
            index = int(column[1])
            name = names[index] if index < len(names) else f"#{index}"
            _check_names(names, schema, exact, path)
            wanted = schema.field(name).type if name in schema.names else "its type"
            raise SourceError(
                f"{path}: column {name!r} has a value that is not {wanted}: {text}; mend the file, "
                "or give schema=... with a type that fits",
                path=path,
                column=name,
            ) from error

    def _read(self, **more: Any) -> Any:
        return arrow_csv.ReadOptions(
            use_threads=False,
            block_size=_CSV_BLOCK_BYTES,
            encoding=self.values.get("encoding", "utf8"),
            **more,
        )

    def _open(self, path: str, read: Any, convert: Any) -> Any:
        quote, escape = self.values.get("quote", '"'), self.values.get("escape")
        parse = arrow_csv.ParseOptions(
            delimiter=self._separator(path),
            quote_char=quote or False,
            escape_char=escape or False,
            newlines_in_values=self.multi_line,
        )
        stream = pa.input_stream(path, compression="detect")
        return arrow_csv.open_csv(
            stream, read_options=read, parse_options=parse, convert_options=convert
        )

    def _separator(self, path: str) -> str:
        return self.sep or ("\t" if _COMPRESSED.sub("", path).endswith(".tsv") else ",")

    def _header(self, path: str) -> list[str]:
        with pa.input_stream(path, compression="detect") as stream:
            line = stream.read(1 << 16).decode("utf-8", "replace").splitlines()[0]
        quote = self.values.get("quote", '"') or '"'
        return next(python_csv.reader([line], delimiter=self._separator(path), quotechar=quote))


class JsonLines(FileFormat):
    """One JSON object a line; fields that are missing are null."""

    name = "json"
    extensions = (".json", ".jsonl", ".ndjson")

    def schema(self, path: str) -> pa.Schema:
        try:
            with self._open(path, None, "infer") as reader:
                return _plain(reader.schema)
        except pa.ArrowInvalid as error:
            if str(error).startswith("Empty JSON"):
                raise SourceError(
                    f"{path} is empty: its columns are unknown, give schema=...", path=path
                ) from error
            raise

    def blocks(self, path: str, schema: pa.Schema, exact: bool) -> Iterator[pa.RecordBatch]:
        try:
            with self._open(path, schema, "error" if exact else "ignore") as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            text = str(error)
            if text.startswith("Empty JSON"):
                return
            changed = re.search(r"Column\(/([^)/]*)[^)]*\) changed", text)
            column = changed[1] if changed else None
            if column is None and "unexpected field" in text:
                column = self._unexpected(path, schema)
            if column is None:
                raise
            raise SourceError(
                f"{path}: column {column!r} does not fit [{_describe(schema)}]: {text}; mend the "
                "file, or give schema=... with the columns that are wanted",
                path=path,
                column=column,
            ) from error

    def _open(self, path: str, schema: pa.Schema | None, unexpected: str) -> Any:
        return arrow_json.open_json(
            pa.input_stream(path, compression="detect"),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=_JSON_BLOCK_BYTES),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior=unexpected
            ),
        )

    def _unexpected(self, path: str, schema: pa.Schema) -> str | None:
        """The first field that the schema does not have; only asked when there is one."""
        with pa.input_stream(path, compression="detect") as stream:
            lines = stream.read(64 << 20).splitlines()
        for line in lines:
            try:
                fields = python_json.loads(line)
            except ValueError:
                continue
            for name in fields if isinstance(fields, dict) else ():
                if name not in schema.names:
                    return str(name)
        return None


FORMATS: dict[str, type[FileFormat]] = {kind.name: kind for kind in (Parquet, Csv, JsonLines)}


def format_of(path: str) -> str | None:
    """The format that a file's name speaks of, compressed or not.

    >>> format_of("a/b.jsonl.gz"), format_of("README")
    ('json', None)
    """
    bare = _COMPRESSED.sub("", path.lower())
    for name, kind in FORMATS.items():
        if bare.endswith(kind.extensions):
            return name
    return None


def _conform(batch: pa.RecordBatch, schema: pa.Schema, exact: bool, path: str) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    _check_names(batch.schema.names, schema, exact, path)
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


def _check_names(names: list[str], schema: pa.Schema, exact: bool, path: str) -> None:
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
                f"{path}: column {name!r} is not in the first file, [{_describe(schema)}]; give "
                "schema=... with the columns that are wanted",
                path=path,
                column=name,
            )


def _plain(schema: pa.Schema) -> pa.Schema:
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


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _flag(value: Any, what: str) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise SettingsError(f"files: {what} must be True or False, got {value!r}")
    return value
