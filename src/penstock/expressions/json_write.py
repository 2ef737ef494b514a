"""Columns as JSON texts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.expressions import texts
from penstock.expressions.lists import made_list, parts
from penstock.expressions.maps import entries_of
from penstock.expressions.types import is_float, is_string

__all__ = ["json_of", "quoted"]


def json_of(values: pa.Array) -> pa.Array:
    """Each value as JSON; null stays null, for what is around it to leave out or write."""
    kind = values.type
    if t.is_struct(kind):
        return _object(values)
    if t.is_map(kind):
        lists, keys, items = entries_of(values)
        names = quoted(keys if is_string(keys.type) else keys.cast(pa.string()))
        text = pc.fill_null(json_of(items), "null")
        pairs = pc.binary_join_element_wise(names, text, ":")
        return _wrapped(made_list(pairs, lists.lengths, lists.valid), "{", "}")
    if t.is_list(kind):
        lists = parts(values)
        items = pc.fill_null(json_of(lists.values), "null")
        return _wrapped(made_list(items, lists.lengths, lists.valid), "[", "]")
    if is_string(kind):
        return quoted(values)
    if is_float(kind):
        text = texts.from_float(values, pa.string())
        odd = pc.invert(pc.is_finite(values))
        return pc.if_else(odd, pc.binary_join_element_wise('"', text, '"', ""), text)
    if t.is_timestamp(kind):
        return _time(values)
    text = values.cast(pa.string())
    return pc.binary_join_element_wise('"', text, '"', "") if t.is_date32(kind) else text


def _object(values: pa.Array) -> pa.Array:
    """Fields that are null are left out."""
    pieces = []
    for i in range(values.type.num_fields):
        head = quoted(pa.array([values.type.field(i).name]))[0].as_py() + ":"
        text = json_of(pc.struct_field(values, i))
        pieces.append(pc.binary_join_element_wise(",", head, text, ""))
    joined: Any = pc.fill_null(pieces[0], "")
    for piece in pieces[1:]:
        joined = pc.binary_join_element_wise(joined, pc.fill_null(piece, ""), "")
    made = pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")
    return pc.if_else(values.is_valid(), made, pa.scalar(None, pa.string()))


def _wrapped(lists: pa.Array, start: str, end: str) -> pa.Array:
    return pc.binary_join_element_wise(start, pc.binary_join(lists, ","), end, "")


_ESCAPES = (
    ("\\", "\\\\"), ('"', '\\"'), ("\b", "\\b"), ("\f", "\\f"), ("\n", "\\n"), ("\r", "\\r"),
    ("\t", "\\t"), *((chr(i), f"\\u{i:04X}") for i in range(32) if chr(i) not in "\b\f\n\r\t"),
)  # fmt: skip


def quoted(values: pa.Array) -> pa.Array:
    """Texts in quotes, escaped where they must be."""
    special = pc.match_substring_regex(values, r'[\x00-\x1f"\\]').fill_null(False)
    if pc.any(special).as_py():
        made = values.filter(special)
        for character, escape in _ESCAPES:
            made = pc.replace_substring(made, character, escape)
        values = pc.replace_with_mask(values, special, made)
    return pc.binary_join_element_wise('"', values, '"', "")


def _time(values: pa.Array) -> pa.Array:
    naive = (
        values.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        if values.type.tz
        else values
    )
    text = pc.replace_substring(
        naive.cast(pa.timestamp("ms"), safe=False).cast(pa.string()), " ", "T"
    )
    return pc.binary_join_element_wise('"', text, "Z" if values.type.tz else "", '"', "")
