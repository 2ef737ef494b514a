"""Equality and order of all values as Spark has them: functions of the values alone.

Equal values have one form: plain, one zero, one NaN, which equals itself and is greater than every
number.  What groups, sorts or compares elements of lists goes through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "bits", "canonical", "group_codes", "is_sortable", "leaves", "ordered", "sort_keys",
    "unordered", "value_type",
]  # fmt: skip


def canonical(values: pa.Array) -> pa.Array:
    """The same values in the one form that equal keys share: plain, one zero, one NaN."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_floating(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 becomes 0.0
        nan = pa.scalar(float("nan"), values.type)
        values = pc.if_else(pc.is_nan(values), nan, values)
    return values


def bits(values: pa.Array) -> pa.Array:
    """Floats as integers of the same bits, so that NaN equals NaN."""
    if pa.types.is_float64(values.type):
        return values.view(pa.int64())
    if pa.types.is_float32(values.type):
        return values.view(pa.int32())
    if pa.types.is_float16(values.type):
        return values.view(pa.int16())
    return values


def group_codes(columns: Sequence[pa.Array], rows: int) -> tuple[Any, Any]:
    """Number the groups of equal rows: each row's group, and each group's first row.

    Groups are numbered by first appearance.

    >>> codes, first = group_codes([pa.array(["b", "a", None, "b"])], 4)
    >>> codes.tolist(), first.tolist()
    ([0, 1, 2, 0], [0, 1, 2])
    """
    if not columns:
        return np.zeros(rows, np.int64), np.zeros(min(rows, 1), np.int64)
    codes, groups = _codes(columns[0])
    for column in columns[1:]:
        more, count = _codes(column)
        codes, groups = _codes(pa.array(codes * count + more))
    first = np.empty(groups, np.int64)
    first[codes[::-1]] = np.arange(rows - 1, -1, -1)  # the last to write is the first row
    return codes, first


def _codes(values: pa.Array) -> tuple[Any, int]:
    encoded = bits(values).dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values: a dictionary's values, else the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_sortable(kind: pa.DataType) -> bool:
    """Whether values of this type have an order that Arrow can sort by."""
    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_temporal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


def ordered(values: pa.Array) -> pa.Array:
    """Floats as integers in the same order, NaN last: least and greatest do not depend on order."""
    return _flipped(bits(canonical(values)))


def unordered(values: pa.Array, kind: Any) -> pa.Array:
    """The inverse, for temporal types as well."""
    return (_flipped(values) if pa.types.is_floating(kind) else values).view(kind)


def _flipped(values: pa.Array) -> pa.Array:
    """Sign and magnitude to two's complement, or back."""
    kind = values.type
    magnitude = pa.scalar((1 << (kind.bit_width - 1)) - 1, kind)
    negative = pc.less(values, pa.scalar(0, kind))
    return pc.if_else(negative, pc.bit_wise_xor(values, magnitude), values)


def leaves(values: pa.Array) -> list[pa.Array]:
    """Columns that differ where the values do: a struct's fields, and whether it is null."""
    values = canonical(values)
    if pa.types.is_struct(values.type):
        parts = [part for field in values.flatten() for part in leaves(field)]
        return [values.is_valid(), *parts] if values.null_count else parts
    if is_sortable(value_type(values.type)) or pa.types.is_null(values.type):
        return [values]
    # Lists and maps have no order of their own: their text does. Slow, but the same every time.
    return [pa.array([repr(value) for value in values.to_pylist()], pa.string())]


def sort_keys(values: pa.Array) -> list[pa.Array]:
    """Columns to sort by, the most important one first."""
    return [ordered(key) if pa.types.is_floating(key.type) else key for key in leaves(values)]
