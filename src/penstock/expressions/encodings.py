"""Functions between texts and bytes, and of single characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.bits import FUNCTIONS as BITS
from penstock.expressions.bytes import from_bytes, spread
from penstock.expressions.call import Call
from penstock.expressions.coerce import strict
from penstock.expressions.lists import arrays_of
from penstock.expressions.nodes import Node
from penstock.expressions.types import is_binary

__all__ = ["FUNCTIONS", "first_code", "text_function"]

Build = Callable[[Call], Node]
_LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)


def _bytes_function(kernel: Callable[..., Any], kind: pa.DataType, **how: Any) -> Build:
    """A function of bytes, or of a text in UTF-8."""

    def build(call: Call) -> Node:
        call.arity(1)
        return strict(kernel, [call.binary(0)], kind, **how)

    return build


def text_function(kernel: Callable[..., Any], kind: pa.DataType, **how: Any) -> Build:
    """A function of one text, or of what CAST makes one."""

    def build(call: Call) -> Node:
        call.arity(1)
        return strict(kernel, [call.text(0)], kind, **how)

    return build


def _octets(values: Any, factor: int) -> pa.Array:
    return pc.multiply(pc.binary_length(values).cast(pa.int32()), pa.scalar(factor, pa.int32()))


def first_code(values: Any) -> pa.Array:
    """The code of the first character; 0 of an empty text."""
    (values,) = arrays_of(values)
    first = pc.utf8_slice_codeunits(values, 0, 1)
    data, lengths, _ = spread(first)
    starts = np.cumsum(lengths) - lengths
    padded = np.concatenate([data, np.zeros(4, np.uint8)]).astype(np.int32)
    one, two, three, four = (padded[starts + k] for k in range(4))
    codes = np.choose(
        np.clip(lengths, 0, 4),
        [
            np.zeros(len(starts), np.int32),
            one,
            ((one & 31) << 6) | (two & 63),
            ((one & 15) << 12) | ((two & 63) << 6) | (three & 63),
            ((one & 7) << 18) | ((two & 63) << 12) | ((three & 63) << 6) | (four & 63),
        ],
    )
    return pa.array(codes, pa.int32(), mask=np.asarray(values.is_null()))


_LATIN = pa.array([chr(code) for code in range(256)])


def _character(values: Any) -> pa.Array:
    """The character of a code modulo 256; nothing below 0."""
    made = _LATIN.take(pc.bit_wise_and(values, 255))
    return pc.if_else(pc.less(values, 0), "", made)


def _chr(call: Call) -> Node:
    call.arity(1)
    return strict(_character, [call.integer(0)], pa.string())


def _base64(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    data, lengths, rows = spread(values)
    groups = -(-lengths // 3)
    padded = np.zeros(int(groups.sum()) * 3, np.uint8)
    starts = np.cumsum(lengths) - lengths
    heads = (np.cumsum(groups) - groups) * 3
    padded[heads[rows] + np.arange(len(rows)) - starts[rows]] = data
    a, b, c = padded.reshape(-1, 3).T.astype(np.int32)
    digits = [a >> 2, ((a & 3) << 4) | (b >> 4), ((b & 15) << 2) | (c >> 6), c & 63]
    text = _LETTERS[np.stack(digits, axis=1)]
    ends = np.cumsum(groups)
    for missing in (1, 2):
        last = ends[(groups * 3 - lengths == missing) & (groups > 0)] - 1
        text[last, 4 - missing :] = ord("=")
    return from_bytes(text.ravel(), groups * 4, values, pa.string())


_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[_LETTERS] = np.arange(64)


def _unbase64(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    stripped = pc.replace_substring_regex(values, r"[\r\n\t ]+", "")
    clean = pc.utf8_rtrim(stripped, "=")
    data, lengths, rows = spread(clean)
    digits = _DIGITS[data]
    if (digits == 255).any() or (lengths % 4 == 1).any():
        raise DataError("the text is not in base 64")
    groups = -(-lengths // 4)
    padded = np.zeros(int(groups.sum()) * 4, np.uint8)
    starts = np.cumsum(lengths) - lengths
    heads = (np.cumsum(groups) - groups) * 4
    padded[heads[rows] + np.arange(len(rows)) - starts[rows]] = digits
    a, b, c, d = padded.reshape(-1, 4).T
    whole = np.stack([(a << 2) | (b >> 4), (b << 4) | (c >> 2), (c << 6) | d], axis=1).ravel()
    size = lengths * 3 // 4
    row = np.repeat(np.arange(len(size)), size)
    index = np.arange(len(row)) - (np.cumsum(size) - size)[row]
    made = whole[(np.cumsum(groups) - groups)[row] * 3 + index]
    return from_bytes(made, size, values, pa.binary())


_SAFE = np.zeros(256, bool)
_SAFE[
    np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-*_ ", np.uint8)
] = True
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def _url_encode(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    data, lengths, rows = spread(values)
    safe = _SAFE[data]
    width = np.where(safe, 1, 3)
    ends = np.cumsum(width)
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    start = ends - width
    out[start] = np.where(safe, np.where(data == 32, ord("+"), data), ord("%"))
    escaped = ~safe
    out[start[escaped] + 1] = _HEX[data[escaped] >> 4]
    out[start[escaped] + 2] = _HEX[data[escaped] & 15]
    sizes = np.bincount(rows, weights=width, minlength=len(lengths)).astype(np.int64)
    return from_bytes(out, sizes, values, pa.string())


def _decode(call: Call) -> Node:
    call.arity(2)
    charset = call.constant_string(1).upper()
    if charset not in ("UTF-8", "US-ASCII"):
        call.refuse(f"the charset {charset!r} is not supported; use UTF-8 or US-ASCII", 1)
    return strict(
        _decoded, [call.binary(0)], pa.string(), fallible=True, ascii_only=charset != "UTF-8"
    )


def _decoded(values: Any, ascii_only: bool) -> pa.Array:
    text = pc.cast(values, pa.string())
    if ascii_only and pc.all(pc.string_is_ascii(text), min_count=0).as_py() is False:
        raise DataError("the bytes are no ASCII text")
    return text


def _encode(call: Call) -> Node:
    call.arity(2)
    charset = call.constant_string(1).upper()
    if charset not in ("UTF-8", "US-ASCII"):
        call.refuse(f"the charset {charset!r} is not supported; use UTF-8 or US-ASCII", 1)
    return strict(
        _encoded, [call.text(0)], pa.binary(), fallible=True, ascii_only=charset != "UTF-8"
    )


def _encoded(values: Any, ascii_only: bool) -> pa.Array:
    return pc.cast(_decoded(pc.cast(values, pa.binary()), ascii_only), pa.binary())


def _to_binary(call: Call) -> Node:
    call.arity(1, 2)
    name = str(call.constant(1, "hex")).lower()
    if name in ("utf-8", "utf8"):
        return call.binary(0)
    if name not in ("hex", "base64"):
        call.refuse("the format is 'hex', 'utf-8' or 'base64'", 1)
    del call.args[1:], call.trees[1:]
    return BITS["unhex"](call) if name == "hex" else FUNCTIONS["unbase64"](call)


def _is_valid_utf8(call: Call) -> Node:
    call.arity(1)
    if is_binary(call.args[0].type):
        call.refuse("takes texts, which are valid always; decode checks bytes", 0)
    return strict(_always, [call.string(0)], pa.bool_())


def _always(values: Any) -> Any:
    return pc.if_else(pc.is_valid(values), True, pa.scalar(None, pa.bool_()))


FUNCTIONS: dict[str, Build] = {
    "ascii": text_function(first_code, pa.int32()),
    "base64": _bytes_function(_base64, pa.string()),
    "unbase64": text_function(_unbase64, pa.binary(), fallible=True),
    "bit_length": _bytes_function(_octets, pa.int32(), factor=8),
    "octet_length": _bytes_function(_octets, pa.int32(), factor=1),
    "char": _chr,
    "chr": _chr,
    "decode": _decode,
    "encode": _encode,
    "is_valid_utf8": _is_valid_utf8,
    "to_binary": _to_binary,
    "url_encode": text_function(_url_encode, pa.string()),
}
