"""Functions of the bits of integers, and of numbers written with other bases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expressions.arrays import values_of, with_nulls
from penstock.expressions.bytes import from_bytes, spread
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, strict
from penstock.expressions.lists import arrays_of
from penstock.expressions.nodes import Node
from penstock.expressions.types import is_binary, is_integer

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]


def _integer(call: Call, index: int) -> Node:
    """An argument that must be an integer, in its own type."""
    call.integer(index)
    node = call.args[index]
    return coerced(node, pa.int32()) if pa.types.is_null(node.type) else node


def _bitwise(kernel: Callable[..., Any]) -> Build:
    def build(call: Call) -> Node:
        call.arity(2)
        _integer(call, 0), _integer(call, 1)
        nodes = call.common(0, 1)
        return strict(kernel, nodes, nodes[0].type)

    return build


def _not(call: Call) -> Node:
    call.arity(1)
    node = _integer(call, 0)
    return strict(pc.bit_wise_not, [node], node.type)


def _shift(kernel: Callable[..., Any]) -> Build:
    """Shifts of an int or bigint, by the number of bits modulo the width, as Java does."""

    def build(call: Call) -> Node:
        call.arity(2)
        node = _integer(call, 0)
        if node.type != pa.int64():
            node = coerced(node, pa.int32())
        return strict(_shifted, [node, call.integer(1)], node.type, inner=kernel)

    return build


def _shifted(values: Any, bits: Any, inner: Callable[..., Any]) -> pa.Array:
    values, bits = arrays_of(values, bits)
    width = values.type.bit_width
    made = inner(values_of(values), values_of(bits).astype(np.int64) % width, width)
    return with_nulls(made, values.type, values, bits)


def _left(numbers: Any, bits: Any, width: int) -> Any:
    return np.left_shift(numbers, bits.astype(numbers.dtype))


def _right(numbers: Any, bits: Any, width: int) -> Any:
    return np.right_shift(numbers, bits.astype(numbers.dtype))


def _unsigned(numbers: Any, bits: Any, width: int) -> Any:
    kind = np.uint32 if width == 32 else np.uint64
    return np.right_shift(numbers.view(kind), bits.astype(kind)).view(numbers.dtype)


def _bit_count(call: Call) -> Node:
    call.arity(1)
    node = call.args[0]
    if pa.types.is_boolean(node.type):
        return coerced(node, pa.int32())
    return strict(_ones, [call.integer(0)], pa.int32())


def _ones(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    numbers = values_of(values).view(np.uint64)
    return with_nulls(np.bitwise_count(numbers).astype(np.int32), pa.int32(), values)


def _bit_get(call: Call) -> Node:
    call.arity(2)
    node = _integer(call, 0)
    return strict(_bit, [node, call.integer(1)], pa.int8(), fallible=True)


def _bit(values: Any, place: Any) -> pa.Array:
    values, place = arrays_of(values, place)
    width = values.type.bit_width
    at = values_of(place)
    if ((at < 0) | (at >= width)).any():
        raise DataError(f"{values.type} has bits 0 to {width - 1}")
    return with_nulls((values_of(values) >> at) & 1, pa.int8(), values, place)


def _hex(call: Call) -> Node:
    call.arity(1)
    node = call.args[0]
    if is_integer(node.type):
        return strict(_hex_number, [call.integer(0)], pa.string(), base_bits=4)
    if not is_binary(node.type):
        node = call.binary(0)
    return strict(_hex_bytes, [node], pa.string())


_DIGITS = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)


def _hex_bytes(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    data, lengths, _ = spread(values)
    pairs = np.stack([_DIGITS[data >> 4], _DIGITS[data & 15]], axis=1).ravel()
    return from_bytes(pairs, lengths * 2, values, pa.string())


def _hex_number(values: Any, base_bits: int) -> pa.Array:
    """Without leading zeros; negative numbers as 64 bits of two's complement."""
    (values,) = arrays_of(values)
    numbers = values_of(values).astype(np.int64).view(np.uint64)
    count = -(-64 // base_bits)
    shifts = np.arange(count - 1, -1, -1, dtype=np.uint64) * np.uint64(base_bits)
    digits = (numbers[:, None] >> shifts) & np.uint64((1 << base_bits) - 1)
    seen = digits != 0
    first = np.where(seen.any(axis=1), seen.argmax(axis=1), count - 1)
    shown = np.arange(count) >= first[:, None]
    return from_bytes(
        _DIGITS[digits[shown].astype(np.int64)], shown.sum(axis=1), values, pa.string()
    )


def _bin(call: Call) -> Node:
    call.arity(1)
    return strict(_hex_number, [call.integer(0)], pa.string(), base_bits=1)


def _unhex(call: Call) -> Node:
    call.arity(1)
    return strict(_from_hex, [call.text(0)], pa.binary(), fallible=True)


_VALUES = np.full(256, 255, np.uint8)
for _i, _character in enumerate(b"0123456789ABCDEF"):
    _VALUES[_character] = _VALUES[ord(chr(_character).lower())] = _i


def _from_hex(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    odd = pc.equal(pc.bit_wise_and(pc.utf8_length(values), 1), 1)
    even = pc.if_else(odd, pc.binary_join_element_wise("0", values, ""), values)
    data, lengths, rows = spread(even)
    digits = _VALUES[data]
    if (digits == 255).any():
        text = values[int(rows[int(np.flatnonzero(digits == 255)[0])])].as_py()
        raise DataError(f"{text!r} is no hexadecimal number")
    made = (digits[0::2] << 4) | digits[1::2]
    return from_bytes(made, lengths // 2, values, pa.binary())


def _conv(call: Call) -> Node:
    call.arity(3)
    bases = [call.constant_integer(1), call.constant_integer(2)]
    if not all(2 <= abs(base) <= 36 for base in bases) or bases[0] < 0:
        call.refuse("bases lie between 2 and 36")
    return strict(
        _converted, [call.text(0)], pa.string(), fallible=True, source=bases[0], to=bases[1]
    )


def _converted(values: Any, source: int, to: int) -> pa.Array:
    """Numbers of up to 64 bits from one base to another; what follows the digits is ignored."""
    (values,) = arrays_of(values)
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"[:source]
    trimmed = pc.utf8_trim(values, " ")
    found = pc.extract_regex(trimmed, rf"(?i)^(?P<s>-?)(?P<d>[{digits}]*)")
    data, lengths, rows = spread(pc.struct_field(found, "d"))
    weights = _power_values(data, lengths, rows, source)
    negative = pc.equal(pc.struct_field(found, "s"), "-").fill_null(False)
    numbers = np.where(
        negative.to_numpy(zero_copy_only=False), -weights.view(np.int64), weights.view(np.int64)
    )
    minus = (numbers < 0) & (to < 0)
    size = np.where(minus, -numbers, numbers).view(np.uint64)
    base = np.uint64(abs(to))
    columns: list[Any] = []
    while size.any() or not columns:
        columns.append((size % base).astype(np.int64))
        size = size // base
    table = np.stack(columns[::-1], axis=1)
    seen = table != 0
    first = np.where(seen.any(axis=1), seen.argmax(axis=1), len(columns) - 1)
    shown = np.arange(len(columns)) >= first[:, None]
    text = from_bytes(_DIGITS[table[shown]], shown.sum(axis=1), values, pa.string())
    empty = pc.equal(pc.utf8_length(trimmed), 0).fill_null(True)
    text = pc.if_else(empty, pa.scalar(None, pa.string()), text)
    return pc.if_else(pa.array(minus), pc.binary_join_element_wise("-", text, ""), text)


def _power_values(data: Any, lengths: Any, rows: Any, base: int) -> Any:
    """The numbers that digits make, refused past 64 bits."""
    ends = np.cumsum(lengths)
    value = np.zeros(len(lengths), np.uint64)
    digits = np.where(data >= 97, data - 87, np.where(data >= 65, data - 55, data - 48)).astype(
        np.uint64
    )
    limit = np.uint64(2**64 - 1) // np.uint64(base)
    for step in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > step)
        digit = digits[(ends - lengths)[active] + step]
        if (value[active] > limit).any():
            raise DataError("the number of conv has more than 64 bits")
        value[active] = value[active] * np.uint64(base) + digit
    return value


FUNCTIONS: dict[str, Build] = {
    "&": _bitwise(pc.bit_wise_and),
    "|": _bitwise(pc.bit_wise_or),
    "^": _bitwise(pc.bit_wise_xor),
    "~": _not,
    "bitwise_not": _not,
    "shiftleft": _shift(_left),
    "shiftright": _shift(_right),
    "shiftrightunsigned": _shift(_unsigned),
    "bit_count": _bit_count,
    "bit_get": _bit_get,
    "getbit": _bit_get,
    "hex": _hex,
    "unhex": _unhex,
    "bin": _bin,
    "conv": _conv,
}
