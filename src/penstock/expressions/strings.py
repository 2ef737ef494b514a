"""Functions of strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, common, folded, strict
from penstock.expressions.membership import check_regex
from penstock.expressions.nodes import Apply, Literal, Node
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


def _trim(kernel: Callable[..., Any], *, first: bool = True) -> Build:
    """Without blanks (spaces only) at the ends, or without the given characters.

    These come ``first``, as in Spark's ``trim(characters, text)``, or behind the text.
    """

    def build(call: Call) -> Node:
        call.arity(1, 2)
        if len(call.args) == 1:
            text = call.string(0)
            return strict(kernel, [text], text.type, characters=" ")
        text = call.string(1 if first else 0)
        characters = {"characters": call.string(0 if first else 1)}
        return call.applied(kernel, text.type, [text], characters)

    return build


def _substring(call: Call) -> Node:
    call.arity(2, 3)
    parameters = {"start": call.integer(1)}
    if len(call.args) == 3:
        parameters["length"] = call.integer(2)
    if is_binary(call.args[0].type):
        return call.applied(_cut_bytes, call.args[0].type, [call.args[0]], parameters)
    text = call.string(0)
    return call.applied(_cut, text.type, [text], parameters)


def _bounds(start: int, length: int | None) -> tuple[int, int | None]:
    """From a place counted from 1 (or from -1 at the end) to a slice."""
    begin = start - 1 if start > 0 else start
    if length is None:
        return begin, None
    if length <= 0:
        return 0, 0
    stop = begin + length
    return begin, None if begin < 0 <= stop else stop


def _cut(values: Any, start: int, length: int | None = None) -> Any:
    return _slice(values, *_bounds(start, length))


def _cut_bytes(values: Any, start: int, length: int | None = None) -> Any:
    begin, stop = _bounds(start, length)
    return pc.binary_slice(values, start=begin, stop=stop)


def _slice(values: Any, start: int, stop: int | None) -> Any:
    return pc.utf8_slice_codeunits(values, start=start, stop=stop)


def _left(call: Call) -> Node:
    call.arity(2)
    text = call.string(0)
    return call.applied(_first, text.type, [text], {"count": call.integer(1)})


def _first(values: Any, count: int) -> Any:
    return _slice(values, 0, max(count, 0))


def _right(call: Call) -> Node:
    call.arity(2)
    text = call.string(0)
    return call.applied(_last, text.type, [text], {"count": call.integer(1)})


def _last(values: Any, count: int) -> Any:
    return _slice(values, 0, 0) if count <= 0 else _slice(values, -count, None)


def _test(kernel: Callable[..., Any]) -> Build:
    """contains, startswith, endswith."""

    def build(call: Call) -> Node:
        call.arity(2)
        text = call.string(0)
        return call.applied(kernel, pa.bool_(), [text], {"pattern": call.string(1)})

    return build


def _rlike(call: Call) -> Node:
    call.arity(2)
    text, pattern = call.string(0), call.constant_string(1)
    check_regex(call.builder, pattern, call.trees[1])
    return strict(pc.match_substring_regex, [text], pa.bool_(), pattern=pattern)


def _replace(call: Call) -> Node:
    call.arity(2, 3)
    text = call.string(0)
    parameters = {"pattern": call.string(1)}
    if len(call.args) == 3:
        parameters["replacement"] = call.string(2)
    return call.applied(_replaced, text.type, [text], parameters)


def _replaced(values: Any, pattern: str, replacement: str = "") -> Any:
    if not pattern:
        return values
    return pc.replace_substring(values, pattern=pattern, replacement=replacement)


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
    text = call.string(0)
    if isinstance(call.args[2], Literal) and call.constant(2) == 0:
        call.refuse("parts are counted from 1, or from -1 at the end", 2)
    parameters = {"separator": call.string(1), "part": call.integer(2)}
    return call.applied(_part, text.type, [text], parameters, fallible=True)


def _part(values: Any, separator: str, part: int) -> Any:
    if part == 0:
        raise DataError("parts are counted from 1, or from -1 at the end, not 0")
    if not separator:
        # Nothing to split at: the whole text is part 1 (and -1).
        return values if part in (1, -1) else pc.if_else(values.is_valid(), "", values)
    lists = pc.split_pattern(values, pattern=separator)
    offsets = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    place = offsets[:-1] + part - 1 if part > 0 else offsets[1:] + part
    outside = (place < offsets[:-1]) | (place >= offsets[1:])
    found = lists.values.take(pa.array(place, mask=outside))
    return pc.if_else(values.is_valid(), pc.coalesce(found, pa.scalar("", values.type)), values)


def _pad(*, left: bool) -> Build:
    def build(call: Call) -> Node:
        call.arity(2, 3)
        text = call.string(0)
        parameters = {"width": call.integer(1)}
        if len(call.args) == 3:
            parameters["padding"] = call.string(2)
        return call.applied(_padded, text.type, [text], parameters, left=left)

    return build


def _padded(values: Any, width: int, padding: str = " ", *, left: bool) -> Any:
    cut = _slice(values, 0, max(width, 0))
    if not padding or width <= 0:
        return cut
    fill = (padding * (width // len(padding) + 1))[:width]
    missing = pc.subtract(width, pc.cast(pc.utf8_length(cut), pa.int64()))
    fills = pa.array([fill[:size] for size in range(width + 1)], cut.type).take(missing)
    return _join(fills, cut, separator="") if left else _join(cut, fills, separator="")


def _repeat(call: Call) -> Node:
    call.arity(2)
    text = call.string(0)
    return strict(_repeated, [text, call.integer(1)], text.type)


def _repeated(values: Any, count: Any) -> Any:
    return pc.binary_repeat(values, pc.max_element_wise(count, 0, skip_nulls=False))


FUNCTIONS: dict[str, Build] = {
    "upper": _map(pc.utf8_upper),
    "ucase": _map(pc.utf8_upper),
    "lower": _map(pc.utf8_lower),
    "lcase": _map(pc.utf8_lower),
    "reverse": _map(pc.utf8_reverse),
    "trim": _trim(pc.utf8_trim),
    "btrim": _trim(pc.utf8_trim, first=False),
    "ltrim": _trim(pc.utf8_ltrim),
    "rtrim": _trim(pc.utf8_rtrim),
    # TRIM(BOTH x FROM s): names with a blank cannot be written as calls.
    "trim from": _trim(pc.utf8_trim, first=False),
    "ltrim from": _trim(pc.utf8_ltrim, first=False),
    "rtrim from": _trim(pc.utf8_rtrim, first=False),
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
    "lpad": _pad(left=True),
    "rpad": _pad(left=False),
    "repeat": _repeat,
}
