"""Dates and times as texts, by Java's patterns, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions import times
from penstock.expressions.arrays import values_of, with_nulls
from penstock.expressions.call import Call
from penstock.expressions.coerce import strict
from penstock.expressions.dates import (
    MONTH_NAMES,
    MONTHS,
    WEEKDAYS,
    month_index,
    named_by,
    timestamp_argument,
    weekday_of,
)
from penstock.expressions.lists import arrays_of
from penstock.expressions.nodes import Node
from penstock.expressions.types import is_string

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]
_DATE, _TIMESTAMP, _NAIVE = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")


def _pieces(call: Call, text: str, index: int) -> list[tuple[str, int]]:
    """A pattern as (letter, count) and (text, 0)."""
    made: list[tuple[str, int]] = []
    i = 0
    while i < len(text):
        letter = text[i]
        if letter == "'":
            end = text.find("'", i + 1)
            if end < 0:
                call.refuse(f"the pattern {text!r} has an open quote", index)
            made.append((text[i + 1 : end] or "'", 0))
            i = end + 1
        elif letter.isascii() and letter.isalpha():
            count = len(text) - i - len(text[i:].lstrip(letter))
            if (letter, count) not in _SHOWN and letter not in "S":
                call.refuse(f"{letter * count!r} in the pattern {text!r} is not supported", index)
            made.append((letter, count))
            i += count
        else:
            made.append((letter, 0))
            i += 1
    return made


_SHOWN = {
    ("y", 1), ("y", 2), ("y", 4), ("M", 1), ("M", 2), ("M", 3), ("M", 4), ("d", 1), ("d", 2),
    ("H", 1), ("H", 2), ("h", 1), ("h", 2), ("m", 1), ("m", 2), ("s", 1), ("s", 2), ("a", 1),
    ("E", 1), ("E", 3), ("E", 4), ("D", 1), ("D", 3), ("Q", 1), ("X", 1), ("X", 3), ("z", 1),
}  # fmt: skip


def _date_format(call: Call) -> Node:
    call.arity(2)
    pieces = _pieces(call, call.constant_string(1), 1)
    return strict(_shown, [timestamp_argument(call, 0)], pa.string(), pieces=tuple(pieces))


def _from_unixtime(call: Call) -> Node:
    call.arity(1, 2)
    pattern = call.constant(1, "yyyy-MM-dd HH:mm:ss")
    pieces = _pieces(call, str(pattern), 1)
    stamp = call.builder.cast(call.integer(0), _TIMESTAMP, call.tree)
    return strict(_shown, [stamp], pa.string(), fallible=stamp.fallible, pieces=tuple(pieces))


def _shown(values: Any, pieces: tuple[tuple[str, int], ...]) -> pa.Array:
    (values,) = arrays_of(values)
    if not pieces:
        return pc.if_else(values.is_valid(), "", pa.scalar(None, pa.string()))
    columns = [_text_of(values, letter, count) for letter, count in pieces]
    return pc.binary_join_element_wise(*columns, "")


def _text_of(values: pa.Array, letter: str, count: int) -> Any:
    if not count:
        return pc.if_else(values.is_valid(), letter, pa.scalar(None, pa.string()))
    if letter == "S":
        micros = pc.add(pc.multiply(pc.millisecond(values), 1000), pc.microsecond(values))
        digits = pc.utf8_lpad(micros.cast(pa.string()), 6, "0")
        return pc.utf8_slice_codeunits(pc.utf8_rpad(digits, count, "0"), 0, count)
    if letter in "Xz":
        return _text_of(values, "UTC" if letter == "z" else "Z", 0)
    if letter in "aEMQ" and (letter, count) not in {("M", 1), ("M", 2), ("Q", 1)}:
        return _word_of(values, letter, count)
    if (letter, count) == ("y", 2):
        number = pc.subtract(
            pc.year(values), pc.multiply(pc.floor(pc.divide(pc.year(values), 100)), 100)
        )
    else:
        number = _NUMBERS[letter](values)
    text = number.cast(pa.int64()).cast(pa.string())
    return pc.utf8_lpad(text, count, "0")


def _hour_of_12(values: Any) -> Any:
    return pc.add(
        pc.subtract(
            pc.add(pc.hour(values), 11), pc.multiply(12, pc.divide(pc.add(pc.hour(values), 11), 12))
        ),
        1,
    )


_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "y": pc.year, "M": pc.month, "d": pc.day, "H": pc.hour, "h": _hour_of_12, "m": pc.minute,
    "s": pc.second, "D": pc.day_of_year, "Q": pc.quarter,
}  # fmt: skip


def _word_of(values: pa.Array, letter: str, count: int) -> pa.Array:
    if letter == "a":
        return pc.if_else(pc.less(pc.hour(values), 12), "AM", "PM")
    days = pc.cast(values.cast(_NAIVE), _DATE)
    if letter == "M":
        return named_by(days, tuple(MONTHS if count == 3 else MONTH_NAMES), month_index)
    names = [name.capitalize() for name in WEEKDAYS]
    return named_by(days, tuple(names if count == 4 else [name[:3] for name in names]), weekday_of)


def _read(kind: pa.DataType, *, attempt: bool = False) -> Build:
    """to_timestamp and the like, with or without a pattern."""

    def build(call: Call) -> Node:
        call.arity(1, 2)
        if len(call.args) == 1 or not is_string(call.args[0].type):
            return call.builder.cast(call.args[0], kind, call.tree, attempt=attempt)
        return times.read_time(call, kind, attempt=attempt)

    return build


def _to_unix(call: Call) -> Node:
    call.arity(1, 2)
    if is_string(call.args[0].type):
        pattern = call.constant(1, "yyyy-MM-dd HH:mm:ss") if len(call.args) == 2 else None
        node = (
            call.builder.cast(call.args[0], _TIMESTAMP, call.tree)
            if pattern is None
            else times.read_time(call, _TIMESTAMP)
        )
        return strict(_seconds, [node], pa.int64(), fallible=node.fallible)
    return times.truncated_seconds(Call(call.builder, call.name, call.trees[:1], call.tree))


def _seconds(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    micros = values.cast(pa.int64())
    return with_nulls(values_of(micros) // 1_000_000, pa.int64(), micros)


FUNCTIONS: dict[str, Build] = {
    "date_format": _date_format,
    "from_unixtime": _from_unixtime,
    "to_date": _read(_DATE),
    "to_timestamp": _read(_TIMESTAMP),
    "to_timestamp_ltz": _read(_TIMESTAMP),
    "to_timestamp_ntz": _read(_NAIVE),
    "try_to_date": _read(_DATE, attempt=True),
    "try_to_timestamp": _read(_TIMESTAMP, attempt=True),
    "to_unix_timestamp": _to_unix,
    "unix_timestamp": _to_unix,
}
