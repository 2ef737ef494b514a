"""Checks of columns that operators share: does it exist, exactly once, and can it be a key."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.expressions.suggest import nearest
from penstock.wire.hashing import is_hashable

__all__ = ["identity", "require_column", "require_hashable"]


def require_column(schema: pa.Schema, name: str, what: str) -> pa.Field:
    """The field of the one column with exactly this name."""
    if not isinstance(name, str):
        raise SchemaError(f"{what}: a column is named by a string, got {name!r}")
    places = schema.get_all_field_indices(name)
    if len(places) == 1:
        return schema.field(places[0])
    listed = f"columns: [{', '.join(schema.names)}]"
    if places:
        raise SchemaError(
            f"{what}: {len(places)} columns are named {name!r}; rename them apart first; {listed}",
            column=name,
        )
    raise SchemaError(
        f"{what}: no column {name!r}{nearest(name, schema.names)} {listed}", column=name
    )


def require_hashable(field: pa.Field, what: str) -> None:
    """Refuse a key whose type has no stable hash."""
    if not is_hashable(field.type):
        raise SchemaError(
            f"{what}: column {field.name!r} of type {field.type} cannot be a key; use a column of "
            "numbers, strings, binary, booleans, dates or timestamps, or a struct of those",
            column=field.name,
            type=field.type,
        )


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself."""
    return batch
