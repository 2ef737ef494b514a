"""More functions of texts: places, parts, masks, formats, distances."""

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
from penstock.expressions.coerce import coerced, strict
from penstock.expressions.encodings import first_code, text_function
from penstock.expressions.lists import arrays_of, parts
from penstock.expressions.nodes import Apply, Literal, Node

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]


def _locate(call: Call, text: int, part: int, start: int | None) -> Node:
    parameters = {"part": call.string(part)}
    if start is not None and len(call.args) > start:
        parameters["start"] = call.integer(start)
    return call.applied(_place, pa.int32(), [call.text(text)], parameters)


def _place(values: Any, part: str, start: int = 1) -> pa.Array:
    """The place of a text in another, from 1; 0 if it is not there."""
    (values,) = arrays_of(values)
    if not part:
        return pc.if_else(values.is_valid(), pa.scalar(1, pa.int32()), pa.scalar(None, pa.int32()))
    if start < 1:
        return pc.if_else(values.is_valid(), pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
    tail = pc.utf8_slice_codeunits(values, start - 1) if start > 1 else values
    found = characters_before(tail, pc.find_substring(tail, part)).cast(pa.int32())
    place = pc.add(found, pa.scalar(start, pa.int32()))
    if start > 1:
        beyond = pc.less(pc.utf8_length(values).cast(pa.int32()), start - (0 if part else 1))
        found = pc.if_else(beyond, pa.scalar(-1, pa.int32()), found)
    return pc.if_else(pc.less(found, 0), pa.scalar(0, pa.int32()), place)


def _instr(call: Call) -> Node:
    call.arity(2)
    return _locate(call, 0, 1, None)


def _locate_call(call: Call) -> Node:
    call.arity(2, 3)
    return _locate(call, 1, 0, 2)


def _initcap(values: Any) -> pa.Array:
    return pc.binary_join(_capitalized(pc.split_pattern(values, " ")), " ")


def _capitalized(words: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(
        words.offsets, pc.utf8_capitalize(words.values), mask=words.is_null()
    )


def _overlay(call: Call) -> Node:
    call.arity(3, 4)
    text, other = call.string(0), call.string(1)
    parameters = {"start": call.integer(2)}
    if len(call.args) == 4:
        parameters["size"] = call.integer(3)
    return call.applied(_overlaid, text.type, [text, other], parameters)


def _overlaid(values: Any, other: Any, start: int, size: int = -1) -> pa.Array:
    values, other = arrays_of(values, other)
    head = pc.utf8_slice_codeunits(values, 0, max(start - 1, 0)) if start > 0 else values
    if start <= 0:
        raise DataError("overlay counts from 1")
    if size >= 0:
        tail = pc.utf8_slice_codeunits(values, start - 1 + size)
        return pc.binary_join_element_wise(head, other, tail, "")
    lengths = np.asarray(pc.fill_null(pc.utf8_length(other), 0))
    tails = pa.nulls(len(values), values.type)
    for length in np.unique(lengths):
        cut = pc.utf8_slice_codeunits(values, start - 1 + int(length))
        tails = pc.if_else(pa.array(lengths == length), cut, tails)
    return pc.binary_join_element_wise(head, other, tails, "")


def _substring_index(call: Call) -> Node:
    call.arity(3)
    text = call.string(0)
    parameters = {"separator": call.string(1), "count": call.integer(2)}
    return call.applied(_until, text.type, [text], parameters)


def _until(values: Any, separator: str, count: int) -> pa.Array:
    (values,) = arrays_of(values)
    if not separator or count == 0:
        return pc.if_else(values.is_valid(), "", values)
    most = abs(count)
    pieces = parts(pc.split_pattern(values, separator, reverse=False))
    place = pieces.positions if count > 0 else (pieces.lengths[pieces.rows] - 1 - pieces.positions)
    chosen = place < most
    lengths = np.bincount(pieces.rows[chosen], minlength=len(values))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    kept = pieces.values.filter(pa.array(chosen))
    lists = pa.ListArray.from_arrays(pa.array(offsets), kept, mask=values.is_null())
    return pc.binary_join(lists, separator)


def _translate(call: Call) -> Node:
    call.arity(3)
    text = call.string(0)
    pair = call.constant_string(1), call.constant_string(2)
    return strict(_translated, [text], text.type, source=pair[0], target=pair[1])


def _translated(values: Any, source: str, target: str) -> Any:
    """By way of characters for private use, so that nothing is replaced twice."""
    seen = dict.fromkeys(source)
    for i, character in enumerate(seen):
        values = pc.replace_substring(values, character, chr(0xF0000 + i))
    for i, character in enumerate(seen):
        at = source.index(character)
        values = pc.replace_substring(values, chr(0xF0000 + i), target[at : at + 1])
    return values


def _mask(call: Call) -> Node:
    call.arity(1, 5)
    marks = [call.constant(i, default) for i, default in ((1, "X"), (2, "x"), (3, "n"))]
    other = call.constant(4) if len(call.args) == 5 else None
    text = call.string(0)
    return strict(_masked, [text], text.type, marks=tuple(marks), other=other)


def _masked(values: Any, marks: tuple[str, str, str], other: str | None) -> Any:
    kinds = (r"\p{Lu}", r"\p{Ll}", r"\p{Nd}")
    if other is not None:
        values = pc.replace_substring_regex(values, r"[^\p{Lu}\p{Ll}\p{Nd}]", chr(0xF0003))
    for i, kind in enumerate(kinds):
        values = pc.replace_substring_regex(values, kind, chr(0xF0000 + i))
    for i, mark in enumerate((*marks, other)):
        if mark is not None:
            values = pc.replace_substring(values, chr(0xF0000 + i), mark)
    return values


def _quote(values: Any) -> pa.Array:
    inner = pc.replace_substring(values, "'", "\\'")
    return pc.binary_join_element_wise("'", inner, "'", "")


def _elt(call: Call) -> Node:
    call.arity(2, 100)
    texts = [call.text(i) for i in range(1, len(call.args))]
    texts = [coerced(text, texts[0].type) for text in texts]
    return _text_at(call.integer(0), texts)


def _text_at(index: Node, texts: list[Node]) -> Node:
    """The text of a number, from 1; null of the other texts does not matter."""
    return Apply(_chosen, [index, *texts], texts[0].type, fallible=True)


def _chosen(index: Any, *texts: Any) -> pa.Array:
    index, *columns = arrays_of(index, *texts)
    known = index.is_valid().to_numpy(zero_copy_only=False)
    place = np.asarray(pc.fill_null(index, 1))
    if ((place < 1) | (place > len(columns))).any():
        raise DataError(f"elt has {len(columns)} texts, counted from 1")
    at = (place - 1) * len(index) + np.arange(len(index))
    return pa.concat_arrays(columns).take(pa.array(at, mask=~known))


def _find_in_set(call: Call) -> Node:
    call.arity(2)
    return strict(_member, [call.string(0), call.string(1)], pa.int32())


def _member(word: Any, words: Any) -> pa.Array:
    word, words = arrays_of(word, words)
    lists = parts(pc.split_pattern(words, ","))
    hits = np.flatnonzero(pc.equal(lists.values, word.take(pa.array(lists.rows))).fill_null(False))
    place = np.zeros(len(word), np.int32)
    place[lists.rows[hits][::-1]] = lists.positions[hits][::-1] + 1
    return pa.array(place, mask=np.asarray(pc.or_(word.is_null(), words.is_null())))


_FORMAT = re.compile(r"%(?:(-?)(0?)(\d*)(?:\.(\d+))?([sdf%]))|%")


def _format_string(call: Call) -> Node:
    """``%s``, ``%d`` and ``%.2f`` with widths; anything else is refused."""
    call.arity(1, 100)
    text, last, used = call.constant_string(0), 0, 0
    nodes: list[Node] = []
    for found in _FORMAT.finditer(text):
        if found.start() > last:
            nodes.append(Literal(pa.scalar(text[last : found.start()])))
        last = found.end()
        if found[5] == "%":
            nodes.append(Literal(pa.scalar("%")))
            continue
        used += 1
        if found[5] is None or used >= len(call.args):
            call.refuse(
                f"the format {text!r} is not supported: use %s, %d and %.2f, one a value", 0
            )
        nodes.append(_formatted(call, used, found))
    if last < len(text):
        nodes.append(Literal(pa.scalar(text[last:])))
    return strict(_together, nodes, pa.string()) if nodes else Literal(pa.scalar(""))


def _formatted(call: Call, index: int, found: re.Match[str]) -> Node:
    left, zero, width, digits, letter = found.groups()
    node = call.args[index]
    if letter == "f":
        scale = int(digits or 6)
        node = call.builder.cast(node, pa.decimal128(38, scale), call.trees[index])
    elif letter == "d":
        node = call.integer(index)
    text = call.builder.cast(node, pa.string(), call.trees[index])
    made = strict(
        _shown, [text], pa.string(), width=int(width or 0), left=bool(left), zero=bool(zero)
    )
    pad = str.ljust if left else str.rjust
    return Apply(
        pc.coalesce,
        [made, Literal(pa.scalar(pad("null"[: int(digits) if digits else None], int(width or 0))))],
        pa.string(),
    )


def _shown(values: Any, width: int, left: bool, zero: bool) -> Any:
    pad = pc.utf8_rpad if left else pc.utf8_lpad
    if not zero:
        return pad(values, width)
    negative = pc.starts_with(values, "-")
    digits = pc.utf8_ltrim(values, "-")
    minus = pc.binary_join_element_wise("-", pc.utf8_lpad(digits, max(width - 1, 0), "0"), "")
    return pc.if_else(negative, minus, pc.utf8_lpad(digits, width, "0"))


def _together(*values: Any) -> Any:
    return pc.binary_join_element_wise(*values, "")


def _ilike(kind: str) -> Build:
    def build(call: Call) -> Node:
        from sqlglot import exp

        call.arity(2, 3)
        tree = {"like": exp.Like, "ilike": exp.ILike}[kind](
            this=call.trees[0], expression=call.trees[1]
        )
        if len(call.args) == 3:
            tree = exp.Escape(this=tree, expression=call.trees[2])
        return call.builder.build(tree)

    return build


def _soundex(values: Any) -> pa.Array:
    """A letter and three digits for how an English word sounds; other texts stay as they are."""
    (values,) = arrays_of(values)
    upper = pc.utf8_upper(values)
    first = pc.utf8_slice_codeunits(upper, 0, 1)
    coded = upper
    for letters, digit in (
        ("BFPV", "1"),
        ("CGJKQSXZ", "2"),
        ("DT", "3"),
        ("L", "4"),
        ("MN", "5"),
        ("R", "6"),
    ):
        coded = pc.replace_substring_regex(coded, f"[{letters}]", digit)
    coded = pc.replace_substring_regex(coded, "[HW]", "")
    for digit in "123456":
        coded = pc.replace_substring_regex(coded, f"{digit}+", digit)
    tail = pc.replace_substring_regex(pc.utf8_slice_codeunits(coded, 1), "[^1-6]", "")
    made = pc.binary_join_element_wise(
        first, pc.utf8_slice_codeunits(pc.utf8_rpad(tail, 3, "0"), 0, 3), ""
    )
    plain = pc.match_substring_regex(upper, "^[A-Z]")
    return pc.if_else(plain, made, values)


def _levenshtein(call: Call) -> Node:
    call.arity(2, 3)
    limit = call.constant(2) if len(call.args) == 3 else None
    return strict(_distance, [call.text(0), call.text(1)], pa.int32(), limit=limit)


def _points(values: pa.Array) -> tuple[Any, Any]:
    """Each text as a row of code points, and how many there are."""
    filled = pc.fill_null(values, "")
    lengths = np.asarray(pc.utf8_length(filled)).astype(np.int64)
    longest = int(lengths.max(initial=0))
    columns = [first_code(pc.utf8_slice_codeunits(filled, i, i + 1)) for i in range(longest)]
    table = (
        np.stack([np.asarray(one) for one in columns], axis=1)
        if columns
        else np.zeros((len(values), 0), int)
    )
    return table, lengths


def _distance(one: Any, other: Any, limit: int | None) -> pa.Array:
    """The edits between two texts, all rows one step of the table at a time."""
    one, other = arrays_of(one, other)
    (a, n), (b, m) = _points(one), _points(other)
    rows = np.arange(len(one))
    line = np.tile(np.arange(b.shape[1] + 1), (len(one), 1))
    result = np.where(n == 0, m, 0)
    for i in range(a.shape[1]):
        before, line = line, np.empty_like(line)
        line[:, 0] = i + 1
        for j in range(b.shape[1]):
            swap = before[:, j] + (a[:, i] != b[:, j])
            line[:, j + 1] = np.minimum(np.minimum(before[:, j + 1], line[:, j]) + 1, swap)
        done = n == i + 1
        result[done] = line[rows[done], m[done]]
    if limit is not None:
        result = np.where(result > limit, -1, result)
    return pa.array(result, pa.int32(), mask=np.asarray(pc.or_(one.is_null(), other.is_null())))


FUNCTIONS: dict[str, Build] = {
    "elt": _elt,
    "find_in_set": _find_in_set,
    "format_string": _format_string,
    "printf": _format_string,
    "ilike": _ilike("ilike"),
    "like": _ilike("like"),
    "initcap": text_function(_initcap, pa.string()),
    "instr": _instr,
    "levenshtein": _levenshtein,
    "locate": _locate_call,
    "position": _locate_call,
    "mask": _mask,
    "overlay": _overlay,
    "quote": text_function(_quote, pa.string()),
    "soundex": text_function(_soundex, pa.string()),
    "substring_index": _substring_index,
    "translate": _translate,
}
