"""Equi-join of two streams, of rows whose event times are at most ``within`` apart.

Pairs leave at the end of the epoch that brings their second row, sorted by all columns.  Null keys
match nothing.  A left join sends rows of the left that found no partner, with nulls, when the
watermark has passed their event time plus ``within``.

A row is kept until the watermark is more than ``within`` past it.  A row that comes when it would
be gone already (its event time is more than ``within`` behind the watermark before its epoch) is
late: it is counted (``rows_late``) and leaves on port 1 (left) or 2 (right), as does one without
event time (``rows_without_time``).  A row that is behind the watermark, but not as far, is joined
with what is still kept.  Some of its partners may be gone, so it is counted (``rows_behind``).

The output: the keys, the left's other columns, the right's other columns; dictionaries as plain
values.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.api.vertex import Vertex
from penstock.errors import SchemaError, SettingsError
from penstock.expressions.ordering import value_type
from penstock.operators.base import Exchange, Hash, Operator
from penstock.operators.join_vertex import JoinVertex
from penstock.operators.key_columns import find_key, find_time, plain_schema

__all__ = ["Join"]

_KINDS = ("inner", "left")


class Join(Operator):
    """Pairs of rows with equal keys and event times at most ``within_us`` apart.

    Ports 1 and 2 have the late rows of the left and of the right.
    """

    kind = "join"
    stateful = True
    needs_watermark = True

    def __init__(
        self, on: Sequence[str], how: str, within_us: int, left_time: str, right_time: str
    ) -> None:
        if how not in _KINDS:
            raise SettingsError(f"join: how={how!r} is not offered; use one of {', '.join(_KINDS)}")
        if within_us < 0:
            raise SettingsError(f"join: within must not be negative, got {within_us} µs")
        if not on:
            raise SchemaError("join: name at least one column in on=...")
        self.on = list(on)
        self.how = how
        self.within_us = within_us
        self.left_time = left_time
        self.right_time = right_time
        self._right: pa.Schema | None = None  # for the nulls of a left join

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        left, right = inputs
        keys = []
        for name in self.on:
            ours, theirs = (find_key(side, name, "join") for side in inputs)
            if value_type(ours.type) != value_type(theirs.type):
                raise SchemaError(
                    f"join: column {name!r} is {ours.type} on the left and {theirs.type} on the "
                    "right; cast one of them with withColumn so that both are the same",
                    column=name,
                )
            keys.append(pa.field(name, value_type(ours.type)))
        find_time(left, self.left_time, "join (left)")
        find_time(right, self.right_time, "join (right)")
        ours = [one for one in plain_schema(left) if one.name not in self.on]
        theirs = [one.with_nullable(True) for one in plain_schema(right) if one.name not in self.on]
        clash = [one.name for one in theirs if one.name in {other.name for other in ours}]
        if clash:
            raise SchemaError(
                f"join: both sides have a column {clash[0]!r} that is not in on={self.on}; rename "
                f"one side's, e.g. select(..., '{clash[0]} AS right_{clash[0]}')",
                column=clash[0],
            )
        self._right = pa.schema([*keys, *theirs])
        joined = pa.schema([*keys, *ours, *theirs])
        return joined, plain_schema(left), plain_schema(right)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return Hash(tuple(self.on)), Hash(tuple(self.on))

    def vertex(self) -> Vertex:
        times = (self.left_time, self.right_time)
        return JoinVertex(self.on, self.how, self.within_us, times, self._right)

    def describe(self) -> str:
        return f"{self.how} on {', '.join(self.on)} within {self.within_us / 1e6:g} s"
