"""The first row of each key: distinct and dropDuplicates.

Of a key's rows the first by epoch is sent, at the end of its epoch; of those in one epoch the
smallest, comparing all columns in their order.  The rows of an epoch leave sorted.  Keys are
remembered for ever, so the state grows with the number of different keys.

``within`` bounds it: the rows sent for one key are then more than ``within`` apart in event time; a
row with one nearer than that, before or after it, is dropped, the earlier one winning within an
epoch.  Keys are forgotten when the watermark has passed them by ``within``; rows behind the
watermark cannot be judged any more.  They are counted (``rows_late``) and leave on port 1, as do
rows without event time (``rows_without_time``).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.api.vertex import Vertex
from penstock.errors import SettingsError
from penstock.operators.base import Exchange, Hash, Operator, Single
from penstock.operators.distinct_vertex import DistinctVertex
from penstock.operators.key_columns import find_key, find_time, plain_schema

__all__ = ["Distinct"]


class Distinct(Operator):
    """One row per different value of ``columns``; with a time, port 1 has the late rows."""

    kind = "distinct"
    stateful = True

    def __init__(
        self, columns: Sequence[str], within_us: int | None = None, time_column: str | None = None
    ) -> None:
        if within_us is not None and (within_us < 0 or time_column is None):
            raise SettingsError(
                f"distinct: within ({within_us} µs) must not be negative and needs a time column "
                f"(got {time_column!r}); call withWatermark first"
            )
        self.columns = list(columns)
        self.within_us = within_us
        self.time_column = time_column

    @property
    def needs_watermark(self) -> bool:
        """Whether state would grow for ever without a watermark upstream."""
        return self.within_us is not None

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        for name in self.columns:
            find_key(schema, name, "distinct")
        if self.within_us is None:
            return (plain_schema(schema),)
        find_time(schema, str(self.time_column), "distinct")
        return plain_schema(schema), plain_schema(schema)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return (Hash(tuple(self.columns)) if self.columns else Single(),)

    def vertex(self) -> Vertex:
        return DistinctVertex(self.columns, self.within_us, self.time_column)

    def describe(self) -> str:
        within = "" if self.within_us is None else f" within {self.within_us / 1e6:g} s"
        return f"{', '.join(self.columns)}{within}"
