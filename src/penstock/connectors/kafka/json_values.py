"""JSON in Arrow columns: one object a value, both ways, without Python for each row.

Reading joins the values with line ends and lets Arrow parse the whole.  That must give a row for
each value, so what is joined is checked first: every value begins with ``{`` and ends with ``}``.
At the end of such a value Arrow's parser is outside of any object, or it fails: what follows a
``}`` inside an object is a comma or a closing bracket, never ``{``.  So no value can lend a part of
itself to the next, each gives one row at least, and a total of as many rows as values means one
each.  A batch that fails is halved until the values at fault are alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.connectors.text_formats import json_rows, partial_record
from penstock.errors import SchemaError

__all__ = ["Bad", "json_of", "objects", "parsed"]

Bad = tuple[int, Exception]
"""A value that does not parse: its place, and why."""

_EMPTY = pa.scalar(b"{}", pa.binary())
_CONTROLS = [(chr(code), f"\\u{code:04x}") for code in range(0x20)]


# -- reading ---------------------------------------------------------------------------------------


def objects(values: pa.Array, schema: pa.Schema) -> tuple[pa.RecordBatch, list[Bad]]:
    """A row for each value, and what was wrong; a null is a row of nulls.

    >>> rows, bad = objects(pa.array([b'{"a": 1}', None, b'{"a": }']), pa.schema({"a": pa.int64()}))
    >>> rows.to_pydict(), [place for place, _ in bad]
    ({'a': [1, None, None]}, [2])
    """
    values = pc.fill_null(values.cast(pa.binary()), _EMPTY)
    found: list[pa.RecordBatch] = []
    bad: list[Bad] = []
    for start, batch, error in _halved(values, 0, schema):
        if error is not None:
            bad.append((start, error))
            batch = partial_record(values[start].as_py(), schema)
        found.append(batch)
    if len(found) == 1:
        return found[0], bad
    return pa.concat_batches(found) if found else _none(schema), bad


def _halved(
    values: pa.Array, first: int, schema: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch, Exception | None]]:
    if not len(values):
        return
    try:
        yield first, parsed(values, schema), None
    except (pa.ArrowInvalid, ValueError) as error:
        if len(values) == 1:
            yield first, _none(schema), error
            return
        middle = len(values) // 2
        yield from _halved(values.slice(0, middle), first, schema)
        yield from _halved(values.slice(middle), first + middle, schema)


def parsed(values: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of values that are all good; raises ``ValueError`` if one is not."""
    block = _joined(values)
    if block.count(b"\n") != len(values) - 1:  # outside of strings they mean nothing
        values = pc.replace_substring(values, "\n", " ")
        block = _joined(values)
    if not pc.all(_are_objects(values)).as_py():
        raise ValueError("it is no JSON object")
    batch = json_rows(block, schema, "ignore")
    if batch.num_rows != len(values):
        raise ValueError("it is more than one JSON object")
    return batch


def _joined(values: pa.Array) -> bytes:
    offsets = pa.array([0, len(values)], pa.int32())
    lines = pc.binary_join(pa.ListArray.from_arrays(offsets, values), b"\n")
    return bytes(lines[0].as_buffer())


def _are_objects(values: pa.Array) -> pa.Array:
    """Which values begin and end as an object does; quick where none is indented."""
    plain = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if pc.all(plain).as_py():
        return plain
    return pc.match_substring_regex(values, r"(?s)^[ \t\r\n]*\{.*\}[ \t\r\n]*$")


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


# -- writing ---------------------------------------------------------------------------------------


def json_of(batch: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object; as in Spark's ``to_json``, fields that are null are left out.

    >>> json_of(pa.record_batch({"a": [1, None], "b": ['x"', "y"]})).to_pylist()
    ['{"a":1,"b":"x\\\\""}', '{"b":"y"}']
    """
    return _object(batch.columns, batch.schema, batch.num_rows)


def check_encodable(schema: pa.Schema) -> None:
    """Refuse columns that JSON has no form for."""
    for field in schema:
        try:
            _text(pa.array([], field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, SchemaError) as error:
            raise SchemaError(
                f"kafka: column {field.name!r} of type {field.type} has no form in JSON; cast it, "
                "or leave it out with select(...)",
                column=field.name,
            ) from error


def _object(columns: Sequence[pa.Array], fields: pa.Schema | pa.StructType, rows: int) -> pa.Array:
    # Not joined by commas with nulls skipped: where all are null Arrow 26 gives no rows then.
    parts = [
        pc.fill_null(
            pc.binary_join_element_wise(f",{_quoted_name(field.name)}:", _text(column), ""), ""
        )
        for field, column in zip(fields, columns, strict=True)
    ]
    if not parts:
        return pa.repeat(pa.scalar("{}"), rows)
    inner = pc.ascii_ltrim(pc.binary_join_element_wise(*parts, ""), ",")
    return pc.binary_join_element_wise("{", inner, "}", "")


def _text(array: pa.Array) -> pa.Array:
    """Values as JSON; null where they are, and where JSON has no such number."""
    kind = array.type
    if t.is_dictionary(kind):
        return _text(array.cast(kind.value_type))
    if t.is_floating(kind):
        finite = pc.is_finite(array)
        return pc.if_else(finite, array, pa.scalar(None, kind)).cast(pa.string())
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_decimal(kind):
        return array.cast(pa.string())
    if t.is_string(kind) or t.is_large_string(kind):
        return _quoted(array.cast(pa.string()))
    if t.is_timestamp(kind):
        return _quoted(pc.replace_substring(array.cast(pa.string()), " ", "T"))
    if t.is_date(kind) or t.is_time(kind):
        return _quoted(array.cast(pa.string()))
    if t.is_struct(kind):
        text = _object(
            [pc.struct_field(array, i) for i in range(kind.num_fields)], kind, len(array)
        )
        return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))
    if t.is_list(kind) or t.is_large_list(kind):
        return _list(array)
    if t.is_null(kind):
        return array.cast(pa.string())
    raise SchemaError(f"there is no JSON for {kind}")


def _list(array: pa.Array) -> pa.Array:
    items = pc.fill_null(_text(pc.list_flatten(array)), "null")
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = np.concatenate(([0], np.cumsum(lengths.to_numpy(zero_copy_only=False)))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items)
    text = pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))


def _quoted(array: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(array, r'["\\\x00-\x1f]')).as_py():
        array = pc.replace_substring(array, "\\", "\\\\")
        array = pc.replace_substring(array, '"', '\\"')
        for code, escaped in _CONTROLS:
            if pc.any(pc.match_substring(array, code)).as_py():
                array = pc.replace_substring(array, code, escaped)
    return pc.binary_join_element_wise('"', array, '"', "")


def _quoted_name(name: str) -> str:
    return str(_quoted(pa.array([name]))[0].as_py())
