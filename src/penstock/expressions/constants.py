"""Python values as constants of SQL, with the types that PySpark's ``lit`` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from penstock.errors import SchemaError

__all__ = ["constant_tree"]


def constant_tree(value: Any) -> Any:
    """The syntax tree of a constant."""
    from sqlglot import exp

    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return exp.Null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, int):
        number = exp.Literal.number(abs(value))
        return exp.Neg(this=number) if value < 0 else number
    if isinstance(value, float):
        return _cast(str(value).replace("inf", "Infinity"), "double")
    if isinstance(value, Decimal):
        scale = max(-int(value.as_tuple().exponent), 0)
        return _cast(f"{value:f}", f"decimal({max(len(value.as_tuple().digits), scale)}, {scale})")
    if isinstance(value, bytes | bytearray):
        return exp.HexString(this=value.hex())
    if isinstance(value, datetime):
        return _cast(value.isoformat(sep=" "), "timestamp")
    if isinstance(value, date):
        return _cast(value.isoformat(), "date")
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
        unit = exp.Var(this="MICROSECOND")
        return exp.Interval(this=exp.Literal.string(str(micros)), unit=unit)
    return _nested(value)


def _cast(text: str, kind: str) -> Any:
    from sqlglot import exp

    from penstock.expressions.ddl import type_tree

    return exp.Cast(this=exp.Literal.string(text), to=type_tree(kind, "lit"))


def _nested(value: Any) -> Any:
    from sqlglot import exp

    if isinstance(value, list | tuple | np.ndarray):
        items = [constant_tree(item) for item in value]
        return exp.Anonymous(this="array", expressions=items)
    if isinstance(value, Mapping):
        items = [constant_tree(part) for pair in value.items() for part in pair]
        return exp.Anonymous(this="map", expressions=items)
    raise SchemaError(f"lit: {type(value).__name__} {value!r} is no constant of SQL")
