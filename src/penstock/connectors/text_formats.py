"""CSV and JSON lines: read by blocks of lines, in the file's order and without threads."""

from __future__ import annotations

import contextlib
import csv as python_csv
import json as python_json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json

from penstock.connectors.file_format import (
    Count,
    FileFormat,
    check_names,
    described,
    ignored,
    opened,
    plain,
)
from penstock.connectors.text_lines import LineParser, RecordMode, whole_lines
from penstock.errors import CorruptFileError, SettingsError, SourceError

__all__ = ["COMPRESSED", "Csv", "JsonLines", "json_rows", "partial_record"]

_CSV_BLOCK_BYTES = 1 << 20
_JSON_BLOCK_BYTES = 4 << 20
_NO_OBJECT = re.compile(rb"^[ \t\r]*[^ \t\r\n{]", re.MULTILINE)
_BOM = b"\xef\xbb\xbf"
_WIDE = re.compile(r"utf[-_]?(16|32)", re.IGNORECASE)
COMPRESSED = re.compile(r"\.(gz|bz2|zst|lz4)\Z")
"""How the name of a compressed file ends."""
_CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}


class Csv(FileFormat):
    """CSV files: ``header``, ``sep``, ``quote``, ``escape``, ``nullValue``, ``encoding``.

    ``multiLine=True`` allows line ends inside quoted values; it reads about 40 % slower.
    Unlike Spark's, a header is expected unless ``header=False``; as in Spark, columns are then
    named ``_c0``, ``_c1`` and so on, and an empty field is null.
    """

    name = "csv"
    extensions = (".csv", ".tsv")
    options = RecordMode.options | {
        *("header", "sep", "delimiter", "quote", "escape", "nullValue", "encoding", "multiLine")
    }

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.header = flag(options.get("header", True), "header")
        self.multi_line = flag(options.get("multiLine", False), "multiLine")
        self.sep = options.get("sep", options.get("delimiter"))
        self.mode = RecordMode.of(options)
        self.encoding = str(options.get("encoding", "utf8"))
        self.by_line = not self.multi_line and not _WIDE.match(self.encoding)
        if self.mode.mode is not None and not self.by_line:
            raise SettingsError(
                "files: mode= needs records that end with their line: leave out multiLine=True, "
                "and an encoding of 16 or 32 bits"
            )

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
        return self.mode.inferred(plain(pa.schema(list(zip(names, types, strict=True)))))

    def blocks(
        self, path: str, schema: pa.Schema, exact: bool, count: Count = ignored
    ) -> Iterator[pa.RecordBatch]:
        if self.by_line:
            yield from self._lines(path, schema, exact, count)
            return
        read = self._read(column_names=None if self.header else list(schema.names))
        try:
            with self._open(path, read, self._convert(schema, exact)) as reader:
                check_names(reader.schema.names, schema, exact, path)
                yield from reader
        except pa.ArrowKeyError as error:
            check_names(self._header(path), schema, exact, path)
            raise SourceError(f"{path}: {error}", path=path) from error
        except pa.ArrowInvalid as error:
            if str(error).startswith("Empty CSV"):
                return
            names = self._header(path) if self.header else list(schema.names)
            raise self._refused(path, schema, names, error) from error

    def _lines(
        self, path: str, schema: pa.Schema, exact: bool, count: Count = ignored
    ) -> Iterator[pa.RecordBatch]:
        wanted = self.mode.without_column(schema)
        with _stream(path) as stream:
            blocks = whole_lines(stream, _CSV_BLOCK_BYTES)
            first = next(blocks, b"").removeprefix(_BOM)
            names, above = list(wanted.names), 0
            if self.header:
                title, first, above = _first_line(first)
                if not title:
                    return
                names = self._names(title, path)
                check_names(names, wanted, exact, path)
            read, parse = self._read(column_names=names), self._parse(path)
            convert = self._convert(wanted, exact)

            def parsed(block: bytes) -> pa.RecordBatch:
                if not block.strip():
                    return pa.RecordBatch.from_pylist([], schema=wanted)
                source = pa.BufferReader(block)
                return _one(arrow_csv.read_csv(source, read, parse, convert))

            yield from LineParser(
                path,
                self.mode,
                self.mode.keeps and self.mode.column in schema.names,
                parsed,
                lambda line: self._partial(line, path, wanted, names),
                lambda error, _line: self._refused(path, wanted, names, error),
                count,
                above,
            ).rows(_followed_by(first, blocks))

    def _partial(
        self, line: bytes, path: str, schema: pa.Schema, names: list[str]
    ) -> pa.RecordBatch:
        """What can be read of a malformed line: each value by itself."""
        found = dict(zip(names, self._names(line, path), strict=False))
        columns = [self._cell(found.get(field.name), field) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _cell(self, value: str | None, field: pa.Field) -> pa.Array:
        if value is None:
            return pa.nulls(1, field.type)
        quoted = '"' + value.replace('"', '""') + '"\n'
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(quoted.encode()),
                arrow_csv.ReadOptions(use_threads=False, column_names=[field.name]),
                arrow_csv.ParseOptions(newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types={field.name: field.type},
                    null_values=[self.values.get("nullValue", "")],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            return pa.nulls(1, field.type)
        return _one(table).column(0)

    def _refused(
        self, path: str, schema: pa.Schema, names: list[str], error: Exception
    ) -> Exception:
        """What to raise for a record that cannot be read."""
        column = re.search(r"In CSV column #(\d+)", str(error))
        if column is None:
            return error
        index = int(column[1])
        name = names[index] if index < len(names) else f"#{index}"
        wanted = schema.field(name).type if name in schema.names else "its type"
        return CorruptFileError(
            f"{path}: column {name!r} has a value that is not {wanted}: {error}; mend the file, "
            "give schema=... with a type that fits, or start with onCorrupt='skip'",
            path=path,
            column=name,
        )

    def _convert(self, schema: pa.Schema, exact: bool) -> Any:
        return arrow_csv.ConvertOptions(
            column_types=schema,
            null_values=[self.values.get("nullValue", "")],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            include_columns=None if exact or not self.header else list(schema.names),
        )

    def _read(self, **more: Any) -> Any:
        return arrow_csv.ReadOptions(
            use_threads=False,
            block_size=_CSV_BLOCK_BYTES,
            encoding=self.encoding,
            **more,
        )

    def _open(self, path: str, read: Any, convert: Any) -> Any:
        return arrow_csv.open_csv(
            _stream(path),
            read_options=read,
            parse_options=self._parse(path),
            convert_options=convert,
        )

    def _parse(self, path: str) -> Any:
        return arrow_csv.ParseOptions(
            delimiter=self._separator(path),
            quote_char=self.values.get("quote", '"') or False,
            escape_char=self.values.get("escape") or False,
            newlines_in_values=self.multi_line,
        )

    def _separator(self, path: str) -> str:
        return self.sep or ("\t" if COMPRESSED.sub("", path).endswith(".tsv") else ",")

    def _header(self, path: str) -> list[str]:
        with _stream(path) as stream:
            return self._names(_first_line(stream.read(1 << 16).removeprefix(_BOM))[0], path)

    def _names(self, line: bytes, path: str) -> list[str]:
        """The values of a line, as text."""
        text = line.rstrip(b"\r\n").decode(self.encoding, "replace")
        quote = self.values.get("quote", '"')
        reader = python_csv.reader(
            [text],
            delimiter=self._separator(path),
            quotechar=quote or None,
            quoting=python_csv.QUOTE_MINIMAL if quote else python_csv.QUOTE_NONE,
            escapechar=self.values.get("escape") or None,
        )
        return next(reader, [])


class JsonLines(FileFormat):
    """One JSON object a line; fields that are missing are null."""

    name = "json"
    extensions = (".json", ".jsonl", ".ndjson")
    options = RecordMode.options

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.mode = RecordMode.of(options)

    def schema(self, path: str) -> pa.Schema:
        with _stream(path) as stream:
            block = next(whole_lines(stream, _JSON_BLOCK_BYTES), b"").removeprefix(_BOM)
        if not block.strip():
            raise SourceError(
                f"{path} is empty: its columns are unknown, give schema=...", path=path
            )
        return self.mode.inferred(plain(json_rows(block, None, "infer").schema))

    def blocks(
        self, path: str, schema: pa.Schema, exact: bool, count: Count = ignored
    ) -> Iterator[pa.RecordBatch]:
        wanted = self.mode.without_column(schema)
        unexpected = "error" if exact and self.mode.mode is None else "ignore"
        with _stream(path) as stream:
            blocks = whole_lines(stream, _JSON_BLOCK_BYTES)
            first = next(blocks, b"").removeprefix(_BOM)
            yield from LineParser(
                path,
                self.mode,
                self.mode.keeps and self.mode.column in schema.names,
                lambda block: json_rows(block, wanted, unexpected),
                lambda line: partial_record(line, wanted),
                lambda error, line: self._refused(path, wanted, error, line),
                count,
            ).rows(_followed_by(first, blocks))

    def _refused(self, path: str, schema: pa.Schema, error: Exception, line: bytes) -> Exception:
        """What to raise for a record that cannot be read."""
        changed = re.search(r"Column\(/([^)/]*)[^)]*\) changed", str(error))
        if changed is not None:
            return CorruptFileError(
                f"{path}: column {changed[1]!r} does not fit [{described(schema)}]: {error}; mend "
                "the file, give schema=... with a type that fits, or start with onCorrupt='skip'",
                path=path,
                column=changed[1],
            )
        fields = python_json.loads(line) if "unexpected field" in str(error) else ()
        column = next((str(name) for name in fields if name not in schema.names), None)
        if column is None:
            return error
        return SourceError(
            f"{path}: column {column!r} does not fit [{described(schema)}]: {error}; mend the "
            "file, or give schema=... with the columns that are wanted",
            path=path,
            column=column,
        )


def partial_record(line: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """What can be read of a malformed JSON record: each field by itself, as one row."""
    try:
        record = python_json.loads(line)
    except ValueError:
        record = None
    columns = []
    for field in schema:
        value = record.get(field.name) if isinstance(record, dict) else None
        column = pa.nulls(1, field.type)
        if value is not None:
            text = python_json.dumps({field.name: value}).encode()
            with contextlib.suppress(pa.ArrowInvalid, ValueError):
                column = json_rows(text, pa.schema([field]), "ignore").column(0)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _stream(path: str) -> Any:
    """A file's contents, decompressed if its name says so."""
    found = COMPRESSED.search(path)
    file = opened(path)
    return file if found is None else pa.CompressedInputStream(file, _CODECS[found[1]])


def json_rows(block: bytes, schema: pa.Schema | None, unexpected: str) -> pa.RecordBatch:
    """The rows of some lines of JSON."""
    if not block.isascii():
        block.decode()  # Arrow does not look
    if b"null" in block and not _are_objects(block):
        raise pa.ArrowInvalid("a line is null")  # Arrow crashes, or takes it for a row
    if schema is not None and not block.strip():
        return pa.RecordBatch.from_pylist([], schema=schema)
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    parse = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    return _one(arrow_json.read_json(pa.BufferReader(block), read, parse))


def _are_objects(block: bytes) -> bool:
    """Whether every line begins with an object; quick where none is indented."""
    begun = block.count(b"\n{") + block.startswith(b"{")
    return begun == block.rstrip().count(b"\n") + 1 or _NO_OBJECT.search(block) is None


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _first_line(block: bytes) -> tuple[bytes, bytes, int]:
    """The first line that is not empty, what follows it, and the number of lines up to it."""
    lines = 0
    while block:
        line, _, block = block.partition(b"\n")
        lines += 1
        if line.strip():
            return line, block, lines
    return b"", b"", lines


def _followed_by(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def flag(value: Any, what: str) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise SettingsError(f"files: {what} must be True or False, got {value!r}")
    return value
