"""Folds that keep values: sorted lists of all or of the different ones, and the row of an extreme.

Values are kept sorted, so that the same rows give the same list in whatever order they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.ordering import bits, canonical, group_codes, leaves, sort_keys

__all__ = ["collected", "extreme", "joined", "list_of", "owners"]


def list_of(kind: pa.DataType) -> pa.DataType:
    """The list type that collected values have."""
    return pa.list_(pa.field("element", kind))


def owners(lists: pa.Array) -> tuple[Any, pa.Array]:
    """For each element of some lists the number of its list, and the elements."""
    lengths = np.asarray(lists.value_lengths().fill_null(0))
    return np.repeat(np.arange(len(lists)), lengths), lists.flatten()


def collected(codes: Any, groups: int, values: pa.Array, *, distinct: bool) -> pa.Array:
    """Per group its values without nulls as a sorted list, each once if ``distinct``."""
    if values.null_count:
        codes = codes[values.is_valid().to_numpy(zero_copy_only=False)]
        values = values.drop_null()
    values = canonical(values)
    if distinct and len(values):
        _, first = group_codes(
            [pa.array(codes), *(bits(leaf) for leaf in leaves(values))], len(codes)
        )
        codes, values = codes[first], values.take(pa.array(first))
    order = _order(codes, sort_keys(values))
    offsets = np.zeros(groups + 1, np.int32)
    np.cumsum(np.bincount(codes, minlength=groups), out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets), values.take(order), type=list_of(values.type)
    )


def joined(codes: Any, groups: int, lists: pa.Array, *, distinct: bool) -> pa.Array:
    """Per group its lists as one."""
    owner, values = owners(lists)
    return collected(codes[owner], groups, values, distinct=distinct)


def extreme(codes: Any, groups: int, pairs: pa.Array, *, greatest: bool) -> pa.Array:
    """Per group the pair with the greatest (or least) first field; of equal ones the value decides.

    Pairs whose first field is null do not count.
    """
    known = pc.is_valid(pc.struct_field(pairs, 0))
    codes, pairs = codes[known.to_numpy(zero_copy_only=False)], pairs.filter(known)
    keys = [key for field in pairs.flatten() for key in sort_keys(field)]
    order = np.asarray(_order(codes, keys))
    ends = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=groups), out=ends[1:])
    place = ends[1:] - 1 if greatest else ends[:-1]
    empty = ends[1:] == ends[:-1]
    at = np.where(empty, 0, place)
    rows = order[at] if len(order) else np.zeros(groups, np.int64)
    return pairs.take(pa.array(rows, pa.int64(), mask=empty))


def _order(codes: Any, keys: Sequence[pa.Array]) -> pa.Array:
    names = [str(number) for number in range(len(keys) + 1)]
    table = pa.Table.from_arrays([pa.array(codes), *keys], names=names)
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
