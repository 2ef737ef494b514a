"""Functions with regular expressions: RE2's, which knows no lookaround and no backreferences.

All matches of a text are found by one replacement that puts marks around them; the marks are
control characters that the texts do not contain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.bytes import characters_before
from penstock.expressions.call import Call
from penstock.expressions.lists import arrays_of, list_type, made_list, parts
from penstock.expressions.membership import check_regex
from penstock.expressions.nodes import Literal, Node

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]
_GROUP = re.compile(r"\\.|\[(?:\\.|[^\]\\])+\]|\((?!\?)|\(\?P?<[A-Za-z]\w*>")


def _pattern(call: Call, index: int) -> dict[str, Node]:
    """The pattern as a parameter, checked now if it is constant."""
    node = call.string(index)
    if isinstance(node, Literal) and not node.is_null:
        check_regex(call.builder, str(node.value.as_py()), call.trees[index])
    return {"pattern": node}


def _group(call: Call, index: int, default: int = 1) -> int:
    group = int(call.constant(index, default))
    pattern = call.args[1]
    if isinstance(pattern, Literal) and not pattern.is_null:
        count = len(_groups(str(pattern.value.as_py())))
        if not 0 <= group <= count:
            call.refuse(f"the pattern has {count} group(s), there is no group {group}", index)
    return group


def _groups(pattern: str) -> list[int]:
    """Where the capturing groups of a pattern begin."""
    found = _GROUP.finditer(pattern)
    return [one.start() for one in found if one.group().startswith("(")]


def _capturing(pattern: str, group: int) -> str:
    """The pattern with the one group named ``g``, all others not capturing; 0 is the whole."""
    starts, made, last = _groups(pattern), "", 0
    for number, start in enumerate(starts, 1):
        end = start + len(_GROUP.match(pattern, start).group())  # type: ignore[union-attr]
        made += pattern[last:start] + ("(?P<g>" if number == group else "(?:")
        last = end
    made += pattern[last:]
    return f"(?P<g>{made})" if group == 0 else made


def _extract(call: Call) -> Node:
    call.arity(2, 3)
    group = _group(call, 2)
    text = call.string(0)
    return call.applied(_extracted, text.type, [text], _pattern(call, 1), group=group)


def _extracted(values: Any, pattern: str, group: int) -> pa.Array:
    """The group of the first match; without a match an empty text."""
    (values,) = arrays_of(values)
    found = pc.struct_field(pc.extract_regex(values, _capturing(pattern, group)), "g")
    return pc.if_else(values.is_valid(), pc.fill_null(found, ""), values)


def _substring(call: Call) -> Node:
    call.arity(2)
    text = call.string(0)
    return call.applied(_first_match, text.type, [text], _pattern(call, 1))


def _first_match(values: Any, pattern: str) -> pa.Array:
    return pc.struct_field(pc.extract_regex(values, _capturing(pattern, 0)), "g")


def _extract_all(call: Call) -> Node:
    call.arity(2, 3)
    group = _group(call, 2)
    text = call.string(0)
    kind = list_type(text.type)
    return call.applied(_all_matches, kind, [text], _pattern(call, 1), fallible=True, group=group)


_MARKS = ("\x01", "\x02")


def _all_matches(values: Any, pattern: str, group: int) -> pa.Array:
    (values,) = arrays_of(values)
    if any(pc.any(pc.match_substring(values, mark)).as_py() for mark in _MARKS):
        raise DataError("regexp_extract_all takes no texts with the control characters 1 and 2")
    # One capturing group only: around the whole match if that is wanted, else the wanted one.
    marked = pc.replace_substring_regex(
        values, pattern=_capturing(pattern, group), replacement=rf"{_MARKS[0]}\1{_MARKS[1]}"
    )
    pieces = parts(pc.split_pattern(marked, pattern=_MARKS[0]))
    chosen = pieces.positions > 0
    found = pc.list_element(pc.split_pattern(pieces.values.filter(pa.array(chosen)), _MARKS[1]), 0)
    return made_list(found, np.maximum(pieces.lengths - 1, 0), pieces.valid)


def _count(call: Call) -> Node:
    call.arity(2)
    return call.applied(_counted, pa.int32(), [call.string(0)], _pattern(call, 1))


def _counted(values: Any, pattern: str) -> pa.Array:
    return pc.count_substring_regex(values, pattern=pattern).cast(pa.int32())


def _position(call: Call) -> Node:
    call.arity(2, 3)
    return call.applied(_place, pa.int32(), [call.string(0)], _pattern(call, 1))


def _place(values: Any, pattern: str) -> pa.Array:
    (values,) = arrays_of(values)
    place = pc.find_substring_regex(values, pattern=pattern)
    return pc.add(characters_before(values, place).cast(pa.int32()), pa.scalar(1, pa.int32()))


def _replace(call: Call) -> Node:
    call.arity(3, 4)
    if call.constant(3, 1) != 1:
        call.refuse("replaces from the beginning on only", 3)
    text = call.string(0)
    parameters = {**_pattern(call, 1), "replacement": call.string(2)}
    return call.applied(_replaced, text.type, [text], parameters)


def _replaced(values: Any, pattern: str, replacement: str) -> Any:
    """Java writes groups as ``$1`` and takes a backslash as an escape; RE2 writes ``\\1``."""
    made, escaped = "", False
    for character in replacement:
        if escaped:
            made, escaped = made + ("\\\\" if character == "\\" else character), False
        elif character == "\\":
            escaped = True
        else:
            made += "\\" if character == "$" else character
    return pc.replace_substring_regex(values, pattern=pattern, replacement=made)


def _split(call: Call) -> Node:
    call.arity(2, 3)
    text = call.string(0)
    limit = int(call.constant(2, -1))
    kind = list_type(text.type)
    return call.applied(_pieces, kind, [text], _pattern(call, 1), limit=limit, target=kind)


def _pieces(values: Any, pattern: str, limit: int, target: pa.DataType) -> pa.Array:
    (values,) = arrays_of(values)
    if not pattern:
        return _characters(values, limit, target)
    most = limit - 1 if limit > 0 else None
    plain = re.sub(r"\\(.)", r"\1", pattern) if re.fullmatch(r"\\[^\w\s]", pattern) else pattern
    if re.fullmatch(r"[^\\^$.|?*+()\[\]{}]+", pattern) or plain != pattern:
        made = pc.split_pattern(values, pattern=plain, max_splits=most)
    else:
        # Without captures: Arrow splits at the whole match.
        made = pc.split_pattern_regex(values, pattern=_without_captures(pattern), max_splits=most)
    return pc.cast(made, target)


def _without_captures(pattern: str) -> str:
    return _capturing(pattern, -1)


def _characters(values: pa.Array, limit: int, target: pa.DataType) -> pa.Array:
    """Each character by itself, the last piece with the rest if there is a limit."""
    longest = pc.max(pc.utf8_length(values)).as_py() or 0
    count = min(longest, limit) if limit > 0 else longest
    columns = [pc.utf8_slice_codeunits(values, i, i + 1) for i in range(count)]
    if 0 < limit <= longest:
        columns[limit - 1] = pc.utf8_slice_codeunits(values, limit - 1)
    rows = len(values)
    lengths = np.asarray(pc.fill_null(pc.utf8_length(values), 0)).astype(np.int64)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    wanted = np.where(valid, np.maximum(np.minimum(lengths, count), 1), 0)
    if not columns:
        return made_list(values.drop_null(), wanted, valid, target)
    order = np.arange(count * rows).reshape(count, rows).T
    shown = np.arange(count)[None, :] < wanted[:, None]
    flat = pa.concat_arrays(columns).take(pa.array(order[shown]))
    return made_list(flat, wanted, valid, target)


FUNCTIONS: dict[str, Build] = {
    "regexp_extract": _extract,
    "regexp_extract_all": _extract_all,
    "regexp_substr": _substring,
    "regexp_count": _count,
    "regexp_instr": _position,
    "regexp_replace": _replace,
    "split": _split,
}
