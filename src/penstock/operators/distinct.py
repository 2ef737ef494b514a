"""The first row of each key: distinct and dropDuplicates."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.operators.base import Exchange, Hash, Operator, Single
from penstock.operators.key_columns import find_key, find_time
from penstock.vertex import Vertex

__all__ = ["Distinct"]


class Distinct(Operator):
    """One row per different value of ``columns``."""

    kind = "distinct"
    stateful = True

    def __init__(
        self, columns: Sequence[str], within_us: int | None = None, time_column: str | None = None
    ) -> None:
        self.columns = list(columns)
        self.within_us = within_us
        self.time_column = time_column

    @property
    def needs_watermark(self) -> bool:
        return self.within_us is not None

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        for name in self.columns:
            find_key(schema, name, "distinct")
        if self.within_us is not None:
            find_time(schema, str(self.time_column), "distinct")
        return (schema,)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return (Hash(tuple(self.columns)) if self.columns else Single(),)

    def vertex(self) -> Vertex:
        from penstock.operators.distinct_vertex import DistinctVertex

        return DistinctVertex(self.columns, self.within_us, self.time_column)

    def describe(self) -> str:
        within = "" if self.within_us is None else f" within {self.within_us / 1e6:g} s"
        return f"{', '.join(self.columns)}{within}"
