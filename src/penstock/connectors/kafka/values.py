"""The stages beside Kafka's: messages into columns, and columns into messages.

They keep nothing between batches, so what does not decode is dealt with as in any such stage:
``onError("stop")`` ends the flow with the place of the message, ``onError("skip")`` sends it to
``errors()``, a dead letter.  ``mode`` does what it does for files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from penstock.api.vertex import Time, Vertex
from penstock.connectors.kafka.json_values import Bad, check_encodable, json_of, objects
from penstock.connectors.text_lines import RecordMode
from penstock.errors import DataError, SchemaError, SettingsError
from penstock.operators.base import Operator
from penstock.operators.columns import require_column

__all__ = ["VALUES", "DecodeMessages", "EncodeMessages"]

VALUES = ("binary", "string", "json")
"""What the value of a message can be."""
_SHOWN_MAX = 200


class DecodeMessages(Operator):
    """Turns the values of messages into columns; the messages' other columns follow them."""

    kind = "decode"
    calls_for_rows = True

    def __init__(self, key: str, value: str, schema: pa.Schema | None, mode: RecordMode) -> None:
        for what, form, forms in (("key", key, VALUES[:2]), ("value", value, VALUES)):
            if form not in forms:
                raise SettingsError(
                    f"kafka: {what} is {' or '.join(map(repr, forms))}, got {form!r}"
                )
        if (value == "json") != (schema is not None):
            raise SettingsError(
                "kafka: value='json' and schema=... go together: a schema says which fields are "
                "wanted, such as 'id BIGINT, name STRING'"
            )
        if mode.mode is not None and value != "json":
            raise SettingsError("kafka: mode is for value='json'; see also onError")
        self.key, self.value, self.mode = key, value, mode
        self.wanted = None if schema is None else mode.without_column(schema)
        self.keeps = schema is not None and mode.keeps and mode.column in schema.names

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        fields = []
        for field in schema:
            form = {"key": self.key, "value": self.value}.get(field.name, "binary")
            if form == "string":
                field = field.with_type(pa.string())
            if field.name != "value" or self.wanted is None:
                fields.append(field)
        if self.wanted is None:
            return (pa.schema(fields),)
        require_column(schema, "value", "kafka")
        columns = [*self.wanted]
        if self.keeps:
            columns.append(pa.field(self.mode.column, pa.string()))
        both = {field.name for field in fields} & {field.name for field in columns}
        if both:
            name = min(both)
            raise SchemaError(
                f"kafka: {name!r} is a column of the schema and of Kafka's own: leave Kafka's out "
                "with columns=['value', ...]",
                column=name,
            )
        return (pa.schema([*columns, *fields]),)

    def vertex(self) -> Vertex:
        return _DecodeVertex(self)

    def describe(self) -> str:
        return self.value if self.wanted is None else f"json: {', '.join(self.wanted.names)}"

    def rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """The rows of some messages, and how many were malformed."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, form in (("key", self.key), ("value", self.value)):
            if form == "string" and name in columns:
                columns[name] = _strings(columns[name], name, batch)
        if self.wanted is None:
            return pa.record_batch(columns), 0
        values = columns.pop("value")
        decoded, bad = objects(values, self.wanted)
        if bad and self.mode.mode in (None, "FAILFAST"):
            raise _refused(bad[0], values, batch)
        found = dict(zip(decoded.schema.names, decoded.columns, strict=True))
        if self.keeps:
            found[self.mode.column] = _texts(values, bad)
        made = pa.record_batch(found | columns)
        if bad and not self.mode.keeps:
            good = [True] * made.num_rows
            for place, _ in bad:
                good[place] = False
            made = made.filter(pa.array(good))
        return made, len(bad)


class _DecodeVertex(Vertex):
    stateless = True

    def __init__(self, decode: DecodeMessages) -> None:
        self._decode = decode

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        rows, malformed = self._decode.rows(batch)
        if malformed:
            self.count("rows_malformed", malformed)
        self.sendBy(0, rows, time)


class EncodeMessages(Operator):
    """Makes messages of rows: a JSON object of all columns, and a key, if one is named."""

    kind = "encode"
    calls_for_rows = True

    def __init__(self, key: str | None) -> None:
        self.key = key

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        check_encodable(schema)
        fields = [pa.field("value", pa.string())]
        if self.key is not None:
            require_column(schema, self.key, "kafka")
            kind = schema.field(self.key).type
            if t.is_nested(kind):
                raise SchemaError(
                    f"kafka: column {self.key!r} of type {kind} cannot be a key; make a string "
                    "of it before",
                    column=self.key,
                )
            fields.insert(0, pa.field("key", kind if t.is_binary(kind) else pa.string()))
        return (pa.schema(fields),)

    def vertex(self) -> Vertex:
        return _EncodeVertex(self.key)

    def describe(self) -> str:
        return "json" if self.key is None else f"json, by {self.key}"


class _EncodeVertex(Vertex):
    stateless = True

    def __init__(self, key: str | None) -> None:
        self._key = key

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        columns: dict[str, pa.Array] = {}
        if self._key is not None:
            key = batch.column(batch.schema.get_field_index(self._key))
            columns["key"] = key if t.is_binary(key.type) else key.cast(pa.string())
        columns["value"] = json_of(batch)
        self.sendBy(0, pa.record_batch(columns), time)


def _strings(values: pa.Array, name: str, batch: pa.RecordBatch) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DataError(
            f"kafka: a {name} is not UTF-8 ({_where(batch, 0)} and the {batch.num_rows - 1} "
            f"messages after it): read it as 'binary', or say onError('skip')"
        ) from error


def _texts(values: pa.Array, bad: Sequence[Bad]) -> pa.Array:
    """The text of malformed values, null for the others."""
    texts: list[str | None] = [None] * len(values)
    for place, _ in bad:
        texts[place] = values[place].as_py().decode("utf-8", "replace")
    return pa.array(texts, pa.string())


def _refused(bad: Bad, values: pa.Array, batch: pa.RecordBatch) -> DataError:
    place, error = bad
    shown = values[place].as_py()[:_SHOWN_MAX].decode("utf-8", "replace")
    return DataError(
        f"kafka: a value is malformed ({_where(batch, place)}): {' '.join(str(error).split())}: "
        f"{shown!r}; say onError('skip') and read errors(), or mode='PERMISSIVE' or "
        "'DROPMALFORMED'"
    )


def _where(batch: pa.RecordBatch, place: int) -> str:
    """Which message it is, as far as its columns say."""
    known: list[Any] = [
        f"{name} {batch.column(name)[place].as_py()}"
        for name in ("topic", "partition", "offset")
        if name in batch.schema.names
    ]
    return ", ".join(known) or f"row {place} of a batch"
