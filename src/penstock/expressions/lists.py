"""Lists as values and lengths: the ground that the functions of arrays and maps stand on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.nodes import as_array
from penstock.expressions.ordering import bits, group_codes, leaves, sort_keys
from penstock.expressions.parameters import rows_of

__all__ = ["Elements", "arrays_of", "equal", "list_type", "made_list", "parts", "sorted_rows"]


def list_type(element: pa.DataType) -> pa.DataType:
    """The type of an array of elements, with the name that Spark gives them."""
    return pa.list_(pa.field("element", element))


class Elements(NamedTuple):
    """Lists taken apart: all elements in one array, and which belong to which row."""

    values: pa.Array
    lengths: Any
    starts: Any
    rows: Any
    """For each element, the row that it belongs to."""
    valid: Any

    @property
    def positions(self) -> Any:
        """For each element, its place in its list, from 0."""
        return np.arange(len(self.rows)) - self.starts[self.rows]


def arrays_of(*values: Any) -> list[pa.Array]:
    """Arrays and scalars as arrays of one length."""
    rows = rows_of(values)
    return [as_array(value, rows) for value in values]


def parts(lists: pa.Array) -> Elements:
    """Take lists (or maps, as lists of entries) apart."""
    if pa.types.is_map(lists.type):
        lists = lists.cast(pa.list_(pa.struct([lists.type.key_field, lists.type.item_field])))
    valid = lists.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    return Elements(
        lists.flatten(), lengths, starts, np.repeat(np.arange(len(lists)), lengths), valid
    )


def made_list(
    values: pa.Array, lengths: Any, valid: Any = None, kind: pa.DataType | None = None
) -> pa.Array:
    """Lists of the given lengths; null where not ``valid`` (such lists must be of length 0)."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = None if valid is None or np.all(valid) else pa.array(~np.asarray(valid))
    target = list_type(values.type) if kind is None else kind
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=target, mask=mask)


def kept(lists: Elements, chosen: Any, valid: Any = None) -> pa.Array:
    """The lists with those elements only for which ``chosen`` is true."""
    lengths = np.bincount(lists.rows[chosen], minlength=len(lists.lengths))
    values = lists.values.filter(pa.array(chosen))
    return made_list(values, lengths, lists.valid if valid is None else valid)


def codes_of(*columns: pa.Array) -> Any:
    """A number for each row of some columns, the same for equal rows."""
    found = [bits(leaf) for column in columns for leaf in leaves(column)]
    return group_codes(found, len(columns[0]))[0]


def equal(one: pa.Array, other: pa.Array) -> Any:
    """Whether values are equal, NaN to NaN and null to null."""
    both = codes_of(pa.concat_arrays([one, other]))
    return both[: len(one)] == both[len(one) :]


def sorted_rows(rows: Any, values: pa.Array, *, descending: bool, nulls_first: bool) -> pa.Array:
    """The order of elements within their rows."""
    way = "descending" if descending else "ascending"
    keys = [pa.array(rows), pc.xor(values.is_null(), nulls_first), *sort_keys(values)]
    names = [str(i) for i in range(len(keys))]
    ways = ["ascending", "ascending", *[way] * (len(keys) - 2)]
    return pc.sort_indices(
        pa.Table.from_arrays(keys, names=names), sort_keys=list(zip(names, ways, strict=True))
    )
