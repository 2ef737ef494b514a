"""Values of JSON as columns of Spark's types; what does not fit is null."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.expressions import texts
from penstock.expressions.bytes import spread
from penstock.expressions.casts import cast_kernel
from penstock.expressions.json_index import ARRAY, OBJECT, SCALAR, STRING, JsonIndex
from penstock.expressions.json_write import quoted
from penstock.expressions.lists import made_list
from penstock.expressions.maps import made_map
from penstock.expressions.types import is_decimal, is_float, is_integer, is_string

__all__ = ["as_text", "can_read", "read", "unescaped"]


def can_read(kind: pa.DataType) -> bool:
    """Whether values of this type can be read."""
    if t.is_struct(kind):
        return all(can_read(kind.field(i).type) for i in range(kind.num_fields))
    if t.is_map(kind):
        return is_string(kind.key_type) and can_read(kind.item_type)
    if t.is_list(kind):
        return can_read(kind.value_type)
    return not (t.is_binary(kind) or t.is_duration(kind) or t.is_null(kind))


def read(index: JsonIndex, nodes: Any, kind: pa.DataType) -> pa.Array:
    """The values as a column; null where there is none or it does not fit."""
    kinds = index.kinds(nodes)
    if t.is_struct(kind):
        return _structs(index, np.where(kinds == OBJECT, nodes, -1), kind)
    if t.is_map(kind):
        there = kinds == OBJECT
        members, sizes = index.children(np.where(there, nodes, -1))
        made = read(index, members, kind.item_type)
        good = there & ~_spoilt(index, members, sizes, made)
        kept = np.repeat(good, sizes)
        members, made = members[kept], made.filter(pa.array(kept))
        keys = unescaped(index.spans(index.key_start[members], index.key_stop[members]))
        return made_map(keys, made, sizes * good, good)
    if t.is_list(kind):
        there = kinds == ARRAY
        members, sizes = index.children(np.where(there, nodes, -1))
        made = read(index, members, kind.value_type)
        good = there & ~_spoilt(index, members, sizes, made)
        if not good.all():
            made = made.filter(pa.array(np.repeat(good, sizes)))
        return made_list(made, sizes * good, good, kind)
    if is_string(kind):
        return as_text(index, nodes).cast(kind)
    return _scalars(index, nodes, kinds, kind)


def _spoilt(index: JsonIndex, members: Any, sizes: Any, made: pa.Array) -> Any:
    """The containers with an element that is no null and became one: they do not fit."""
    misfit = made.is_null().to_numpy(zero_copy_only=False)
    if misfit.any():
        misfit &= pc.not_equal(index.texts(members), "null").to_numpy(zero_copy_only=False)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return np.bincount(owner[misfit], minlength=len(sizes)) > 0


def _structs(index: JsonIndex, nodes: Any, kind: Any) -> pa.Array:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    columns = [read(index, index.child(nodes, field.name), field.type) for field in fields]
    missing = pa.array(nodes < 0)
    return pa.StructArray.from_arrays(columns, fields=fields, mask=missing)


def _scalars(index: JsonIndex, nodes: Any, kinds: Any, kind: pa.DataType) -> pa.Array:
    """Numbers, booleans, dates and times; a quoted one counts where Spark takes it."""
    scalar = index.texts(np.where(kinds == SCALAR, nodes, -1))
    scalar = pc.if_else(pc.equal(scalar, "null"), pa.scalar(None, pa.string()), scalar)
    if t.is_boolean(kind):
        known = pc.if_else(pc.match_substring_regex(scalar, "^(true|false)$"), scalar, _none())
        return pc.equal(known, "true")
    number = pc.if_else(pc.match_substring_regex(scalar, "^[-+0-9NI]"), scalar, _none())
    if is_integer(kind):
        whole = pc.if_else(pc.match_substring_regex(number, "^-?[0-9]+$"), number, _none())
        return texts.to_integer(whole, kind, attempt=True)
    text = index.texts(np.where(kinds == STRING, nodes, -1), inner=True)
    if is_float(kind):
        named = pc.match_substring_regex(text, r"^(NaN|[+-]?INF|[+-]?Infinity)$")
        named = pc.if_else(named, text, _none())
        return pc.coalesce(_cast(number, kind), _cast(named, kind))
    if is_decimal(kind):
        return _cast(pc.coalesce(number, text), kind)
    if t.is_timestamp(kind) and kind.tz:
        whole = pc.if_else(pc.match_substring_regex(number, "^-?[0-9]+$"), number, _none())
        seconds = texts.to_integer(whole, pa.int64(), attempt=True)
        made, _, options = cast_kernel(pa.int64(), kind, attempt=True) or (None, None, {})
        return pc.coalesce(made(seconds, **options), _cast(text, kind))  # type: ignore[misc]
    return _cast(text, kind)


def _none() -> pa.Scalar:
    return pa.scalar(None, pa.string())


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    found = cast_kernel(pa.string(), kind, attempt=True)
    assert found is not None
    return found[0](values, **found[2])


def as_text(index: JsonIndex, nodes: Any) -> pa.Array:
    """Texts without quotes, anything else as it is written, without blanks; null of a null."""
    kinds = index.kinds(nodes)
    text = unescaped(index.texts(np.where(kinds == STRING, nodes, -1), inner=True))
    scalar = index.texts(np.where(kinds == SCALAR, nodes, -1))
    scalar = _canonical(pc.if_else(pc.equal(scalar, "null"), _none(), scalar))
    containers = np.where((kinds == OBJECT) | (kinds == ARRAY), nodes, -1)
    if (containers < 0).all():
        return pc.coalesce(text, scalar)
    return pc.coalesce(text, scalar, _rewritten(index, containers))


def _canonical(values: pa.Array) -> pa.Array:
    """Fractions as Java writes doubles; other scalars as they are."""
    odd = pc.match_substring_regex(values, "[NI]").fill_null(False)
    if pc.any(odd).as_py():
        names = values.filter(odd)
        for short, long in (("INF", "Infinity"), ("+", "")):
            names = pc.replace_substring(names, short, long)
        named = pc.binary_join_element_wise('"', names, '"', "")
        values = pc.replace_with_mask(values, odd, named)
    fraction = pc.match_substring_regex(values, r"^-?[0-9].*[.eE]").fill_null(False)
    if not pc.any(fraction).as_py():
        return values
    numbers = pc.cast(values.filter(fraction), pa.float64())
    return pc.replace_with_mask(values, fraction, texts.from_float(numbers, pa.string()))


def _rewritten(index: JsonIndex, nodes: Any) -> pa.Array:
    """Containers as Spark writes them: no blanks, and scalars in the one form they have."""
    starts, ends, new = _replacements(index)
    kept = index.solid.copy()
    covered = np.zeros(len(kept) + 1, np.int8)
    covered[starts] += 1
    covered[ends] -= 1
    kept &= np.cumsum(covered[:-1]) == 0
    inserted, lengths, _ = spread(new)
    place = np.concatenate([[0], np.cumsum(kept)])
    data = np.insert(index.data[kept], np.repeat(place[starts], lengths), inserted)
    added = np.zeros(len(kept) + 1, np.int64)
    added[starts] = lengths
    place = place + np.cumsum(added) - added
    there = nodes >= 0
    first, last = (np.append(one, 0)[nodes] for one in (index.start, index.stop))
    first, last = (np.where(there, place[one], 0) for one in (first, last))
    return index.spans(first, last, ~there, data)


def _replacements(index: JsonIndex) -> tuple[Any, Any, pa.Array]:
    """The parts of the data that have another form: fractions, and strings with escapes."""
    scalars = np.flatnonzero(index.kind == SCALAR)
    old = index.texts(scalars)
    fraction = pc.match_substring_regex(old, r"[0-9.][eE.]|[NI]").to_numpy(zero_copy_only=False)
    scalars, numbers = scalars[fraction], _canonical(old.filter(pa.array(fraction)))
    starts = np.concatenate([index.start[index.kind == STRING] + 1, index.key_start])
    stops = np.concatenate([index.stop[index.kind == STRING] - 1, index.key_stop])
    starts, stops = starts[starts >= 0], stops[starts >= 0]
    slashes = np.concatenate([[0], np.cumsum((index.data == 92) | (index.data < 32))])
    escaped = slashes[stops] > slashes[starts]
    starts, stops = starts[escaped], stops[escaped]
    strings = quoted(unescaped(index.spans(starts, stops)))
    starts = np.concatenate([index.start[scalars], starts - 1])
    stops = np.concatenate([index.stop[scalars], stops + 1])
    order = np.argsort(starts)
    new = pa.concat_arrays([numbers, strings]).take(pa.array(order))
    return starts[order], stops[order], new


_SIMPLE = (
    ('\\"', '"'),
    ("\\/", "/"),
    ("\\b", "\b"),
    ("\\f", "\f"),
    ("\\n", "\n"),
    ("\\r", "\r"),
    ("\\t", "\t"),
)
_HIDDEN = chr(0xF0000)


def unescaped(values: pa.Array) -> pa.Array:
    """Texts with their escapes replaced; only those that have any cost something."""
    some = pc.match_substring(values, "\\").fill_null(False)
    if not pc.any(some).as_py():
        return values
    made = pc.replace_substring(values.filter(some), "\\\\", _HIDDEN)
    for escape, character in _SIMPLE:
        made = pc.replace_substring(made, escape, character)
    made = _without_codes(made)
    made = pc.replace_substring(made, _HIDDEN, "\\")
    return pc.replace_with_mask(values, some, made)


def _without_codes(values: pa.Array) -> pa.Array:
    r"""Texts without ``\u00e9`` and the like: one replacement for each different code."""
    codes = pc.match_substring(values, "\\u").fill_null(False)
    if not pc.any(codes).as_py():
        return values
    import re

    whole = pc.binary_join(pa.array([values.filter(codes).to_pylist()]), "\n")[0].as_py()
    found = set(re.findall(r"(?:\\u[0-9a-fA-F]{4})+", whole))
    for escape in sorted(found, key=len, reverse=True):
        units = bytes.fromhex(escape.replace("\\u", ""))
        values = pc.replace_substring(values, escape, units.decode("utf-16-be", "replace"))
    return values
