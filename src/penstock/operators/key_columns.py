"""Key and event-time columns: found by name, checked by type, with errors that help.

An event-time column is read as microseconds, whatever unit it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.expressions.ordering import is_sortable, value_type
from penstock.operators.columns import require_column

__all__ = [
    "check_grid",
    "check_names",
    "find_key",
    "find_time",
    "from_micros",
    "micros",
    "plain_schema",
]

_US_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def find_key(schema: pa.Schema, name: str, where: str) -> pa.Field:
    """A column to group or match by; nested values have no order and are refused."""
    field = require_column(schema, name, where)
    if not is_sortable(value_type(field.type)):
        raise SchemaError(
            f"{where}: column {name!r} of type {field.type} cannot be a key; take one of its parts "
            "with select, or turn it into a string",
            column=name,
            type=str(field.type),
        )
    return field


def find_time(schema: pa.Schema, name: str, where: str) -> pa.Field:
    """An event-time column: a timestamp of any unit, with or without a time zone."""
    field = require_column(schema, name, where)
    if not pa.types.is_timestamp(field.type):
        raise SchemaError(
            f"{where}: event time needs a timestamp, but column {name!r} is {field.type}; turn it "
            f"into one first, e.g. withColumn({name!r}, 'CAST({name} AS TIMESTAMP)')",
            column=name,
            type=str(field.type),
        )
    return field


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse an output with two columns of one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SchemaError(
                f"{where}: two output columns are called {name!r}; rename one with alias(...)",
                column=name,
            )
        seen.add(name)


def check_grid(kind: pa.DataType, spans_us: Sequence[int], where: str) -> None:
    """Refuse windows whose bounds the event-time column's unit cannot express."""
    unit = _US_PER_UNIT[kind.unit]
    if any(span % unit for span in spans_us):
        raise SchemaError(
            f"{where}: windows of {max(spans_us)} µs do not fall on whole units of {kind}; use "
            "longer windows or a finer timestamp",
            type=str(kind),
        )


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with dictionaries as plain values: their codes depend on the order of arrival."""
    return pa.schema([one.with_type(value_type(one.type)) for one in schema])


def micros(times: pa.Array) -> Any:
    """A timestamp column as an int64 array of microseconds; nulls become 0, ns are cut."""
    kind = times.type
    numbers = times.view(pa.int64())
    if numbers.null_count:
        numbers = pc.fill_null(numbers, 0)
    values = numbers.to_numpy(zero_copy_only=False)
    if kind.unit == "us":
        return values
    if kind.unit == "ns":
        return values // 1_000
    return values * _US_PER_UNIT[kind.unit]


def from_micros(values: Any, kind: pa.DataType) -> pa.Array:
    """The inverse: a column of type ``kind`` from microseconds (a list or an int64 array)."""
    numbers = np.asarray(values, dtype=np.int64)
    if kind.unit == "ns":
        numbers = numbers * 1_000
    elif kind.unit != "us":
        numbers = numbers // _US_PER_UNIT[kind.unit]
    return pa.array(numbers, pa.int64()).view(kind)
