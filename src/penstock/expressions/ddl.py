"""Spark's DDL type strings (first version)."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import SchemaError

_T = {
    "bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "double": pa.float64(),
    "boolean": pa.bool_(), "timestamp": pa.timestamp("us", "UTC"), "long": pa.int64(),
}  # fmt: skip


def parse_schema(schema: pa.Schema | str, what: str = "schema") -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    fields = []
    for part in schema.split(","):
        name, _, kind = part.strip().partition(" ")
        if kind.strip().lower() not in _T:
            raise SchemaError(f"{what}: cannot read {part!r}")
        fields.append(pa.field(name, _T[kind.strip().lower()]))
    return pa.schema(fields)
