"""Functions of strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, common, folded, strict
from penstock.expressions.membership import check_regex
from penstock.expressions.nodes import Apply, Node
from penstock.expressions.types import is_binary, is_string

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]


def _map(kernel: Callable[..., Any], **options: Any) -> Build:
    """A function of one string to a string."""

    def build(call: Call) -> Node:
        call.arity(1)
        text = call.string(0)
        return strict(kernel, [text], text.type, **options)

    return build


def _length(call: Call) -> Node:
    call.arity(1)
    node = call.args[0]
    kernel = pc.binary_length if is_binary(node.type) else pc.utf8_length
    if not is_binary(node.type):
        node = call.string(0)
    length = strict(kernel, [node], pa.int64() if "large" in str(node.type) else pa.int32())
    return coerced(length, pa.int32())


def _trim(kernel: Callable[..., Any], most: int = 1) -> Build:
    """Without blanks (spaces only) at the ends, or without the given characters."""

    def build(call: Call) -> Node:
        call.arity(1, most)
        text = call.string(0)
        characters = call.constant_string(1) if len(call.args) == 2 else " "
        return strict(kernel, [text], text.type, characters=characters)

    return build


def _substring(call: Call) -> Node:
    call.arity(2, 3)
    text, start = call.string(0), call.constant_integer(1)
    length = call.constant_integer(2) if len(call.args) == 3 else None
    begin = start - 1 if start > 0 else start
    if length is None:
        stop = None
    else:
        stop = begin + max(length, 0)
        if begin < 0 <= stop:
            stop = None
    if length is not None and length <= 0:
        begin, stop = 0, 0
    return strict(_slice, [text], text.type, start=begin, stop=stop)


def _slice(values: Any, start: int, stop: int | None) -> Any:
    return pc.utf8_slice_codeunits(values, start=start, stop=stop)


def _left(call: Call) -> Node:
    call.arity(2)
    text = call.string(0)
    return strict(_slice, [text], text.type, start=0, stop=max(call.constant_integer(1), 0))


def _right(call: Call) -> Node:
    call.arity(2)
    text, count = call.string(0), call.constant_integer(1)
    if count <= 0:
        return strict(_slice, [text], text.type, start=0, stop=0)
    return strict(_slice, [text], text.type, start=-count, stop=None)


def _test(kernel: Callable[..., Any]) -> Build:
    """contains, startswith, endswith with a constant to look for."""

    def build(call: Call) -> Node:
        call.arity(2)
        text = call.string(0)
        return strict(kernel, [text], pa.bool_(), pattern=call.constant_string(1))

    return build


def _rlike(call: Call) -> Node:
    call.arity(2)
    text, pattern = call.string(0), call.constant_string(1)
    check_regex(call.builder, pattern, call.trees[1])
    return strict(pc.match_substring_regex, [text], pa.bool_(), pattern=pattern)


def _replace(call: Call) -> Node:
    call.arity(2, 3)
    text, pattern = call.string(0), call.constant_string(1)
    replacement = call.constant_string(2) if len(call.args) == 3 else ""
    if not pattern:
        return text
    return strict(pc.replace_substring, [text], text.type, pattern=pattern, replacement=replacement)


def _concat(call: Call) -> Node:
    call.arity(1, 1000)
    parts = [_as_text(call, i) for i in range(len(call.args))]
    kind = common(parts)
    parts = [coerced(part, kind) for part in parts]
    return parts[0] if len(parts) == 1 else strict(_join, parts, kind, separator="")


def _concat_ws(call: Call) -> Node:
    call.arity(1, 1000)
    separator = call.constant_string(0)
    parts = [_as_text(call, i) for i in range(1, len(call.args))]
    if not parts:
        return coerced(call.args[0], pa.string())
    kind = common(parts)
    parts = [coerced(part, kind) for part in parts]
    return folded(Apply(_join_present, parts, kind, separator=separator))


def _as_text(call: Call, index: int) -> Node:
    """Any value as CAST to string writes it."""
    node = call.args[index]
    if pa.types.is_null(node.type):
        return coerced(node, pa.string())
    if is_string(node.type):
        return node
    return call.builder.cast(node, pa.string(), call.trees[index])


def _join(*parts: Any, separator: str) -> Any:
    return pc.binary_join_element_wise(*parts, pa.scalar(separator, parts[0].type))


def _join_present(*parts: Any, separator: str) -> Any:
    """Joined without the nulls; Arrow's own way to skip them loses rows that are all null."""
    kind = parts[0].type
    joint, empty = pa.scalar(separator, kind), pa.scalar("", kind)
    led = [pc.coalesce(_join(joint, part, separator=""), empty) for part in parts]
    return _slice(_join(*led, separator=""), len(separator), None)


def _split_part(call: Call) -> Node:
    call.arity(3)
    text, separator, part = call.string(0), call.constant_string(1), call.constant_integer(2)
    if part == 0:
        call.refuse("parts are counted from 1, or from -1 at the end", 2)
    return strict(_part, [text], text.type, separator=separator, part=part)


def _part(values: Any, separator: str, part: int) -> Any:
    if not separator:
        # Nothing to split at: the whole text is part 1 (and -1).
        return values if part in (1, -1) else pc.if_else(values.is_valid(), "", values)
    lists = pc.split_pattern(values, pattern=separator)
    offsets = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    place = offsets[:-1] + part - 1 if part > 0 else offsets[1:] + part
    outside = (place < offsets[:-1]) | (place >= offsets[1:])
    found = lists.values.take(pa.array(place, mask=outside))
    return pc.if_else(values.is_valid(), pc.coalesce(found, pa.scalar("", values.type)), values)


def _pad(kernel: Callable[..., Any]) -> Build:
    def build(call: Call) -> Node:
        call.arity(2, 3)
        text, width = call.string(0), max(call.constant_integer(1), 0)
        padding = call.constant_string(2) if len(call.args) == 3 else " "
        if len(padding) != 1:
            call.refuse("pads with a single character", 2)
        return strict(_padded, [text], text.type, inner=kernel, width=width, padding=padding)

    return build


def _padded(values: Any, inner: Callable[..., Any], width: int, padding: str) -> Any:
    return _slice(inner(values, width=width, padding=padding), 0, width)


def _repeat(call: Call) -> Node:
    call.arity(2)
    text, count = call.string(0), max(call.constant_integer(1), 0)
    return strict(_repeated, [text], text.type, count=count)


def _repeated(values: Any, count: int) -> Any:
    return pc.binary_repeat(values, count)


FUNCTIONS: dict[str, Build] = {
    "upper": _map(pc.utf8_upper),
    "ucase": _map(pc.utf8_upper),
    "lower": _map(pc.utf8_lower),
    "lcase": _map(pc.utf8_lower),
    "reverse": _map(pc.utf8_reverse),
    "trim": _trim(pc.utf8_trim),
    "btrim": _trim(pc.utf8_trim, 2),
    "ltrim": _trim(pc.utf8_ltrim),
    "rtrim": _trim(pc.utf8_rtrim),
    # TRIM(BOTH x FROM s): names with a blank cannot be written as calls.
    "trim from": _trim(pc.utf8_trim, 2),
    "ltrim from": _trim(pc.utf8_ltrim, 2),
    "rtrim from": _trim(pc.utf8_rtrim, 2),
    "length": _length,
    "len": _length,
    "char_length": _length,
    "character_length": _length,
    "substring": _substring,
    "substr": _substring,
    "left": _left,
    "right": _right,
    "contains": _test(pc.match_substring),
    "startswith": _test(pc.starts_with),
    "endswith": _test(pc.ends_with),
    "rlike": _rlike,
    "regexp": _rlike,
    "regexp_like": _rlike,
    "replace": _replace,
    "concat": _concat,
    "concat_ws": _concat_ws,
    "split_part": _split_part,
    "lpad": _pad(pc.utf8_lpad),
    "rpad": _pad(pc.utf8_rpad),
    "repeat": _repeat,
}
