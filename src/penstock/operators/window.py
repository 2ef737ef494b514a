"""Aggregates per event-time window: tumbling, sliding, and sessions.

When a row counts.  A row of epoch ``t`` is late for a window if the window's end plus the allowed
lateness is at or before the watermark *before* epoch ``t``.  A row that is late for all its windows
goes to output port 1 unchanged and is counted (``rows_late``); a row whose event time is null
belongs to no window and is counted (``rows_without_time``).

When a result leaves.  At the end of the first epoch whose watermark reaches a window's end, one row
per key, sorted by window and key.  Rows that come after that, within the allowed lateness, send the
rows they change once more, at the end of their epoch.  The state of a window is freed as soon as
the watermark passes its end plus the allowed lateness.

The output on port 0: a struct ``window`` of ``start`` and ``end``, the keys, the aggregates.

The operator can be split at its exchange: :class:`WindowCombine` turns each batch into one small
batch of partial rows, :class:`WindowMerge` merges them.  Late rows cannot be had back from partial
rows, so there is no split when port 1 is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.api.vertex import Vertex
from penstock.operators.aggregates import Aggregation
from penstock.operators.base import Exchange, Hash, Kernel, Operator, Single
from penstock.operators.combine import CombineOperator
from penstock.operators.key_columns import check_grid, check_names, find_time, plain_schema
from penstock.operators.pane_windows import PANE, PaneVertex, pane_kernel
from penstock.operators.session import LAST, START, SessionVertex, session_kernel
from penstock.operators.terms import Aggregate, Computed, Window
from penstock.operators.window_assign import Panes

__all__ = ["WindowAggregate", "WindowCombine", "WindowMerge"]


class _Windowed:
    """What the three operators share: the definition, and what follows from it."""

    def __init__(
        self,
        window: Window,
        keys: Sequence[str],
        aggregates: Sequence[Aggregate | Computed],
        lateness_us: int = 0,
    ) -> None:
        self.window = window
        self.keys = list(keys)
        self.aggregates = list(aggregates)
        self.lateness_us = lateness_us

    @property
    def aggregation(self) -> Aggregation:
        return Aggregation(self.keys, self.aggregates)

    @property
    def panes(self) -> Panes:
        return Panes(self.window.size_us, self.window.slide_us, self.window.start_us)

    def partial_schema(self, schema: pa.Schema) -> pa.Schema:
        where = f"groupBy({self.window.name})"
        time = find_time(schema, self.window.column, where)
        if self.window.gap_us is None:
            check_grid(time.type, (self.window.size_us, self.window.slide_us), where)
            check_grid(time.type, (self.window.start_us, self.window.size_us), where)
            heads = [pa.field(PANE, time.type)]
        else:
            check_grid(time.type, (self.window.gap_us,), where)
            heads = [pa.field(START, time.type), pa.field(LAST, time.type)]
        keys = self.aggregation.key_fields(schema, where)
        partials = self.aggregation.partial_fields(schema, where)
        check_names([self.window.name, *self.keys, *(one.name for one in self.aggregates)], where)
        return pa.schema([*heads, *keys, *partials])

    def result_schema(self, partials: pa.Schema) -> pa.Schema:
        bound = partials.field(0).type
        window = pa.struct([pa.field("start", bound), pa.field("end", bound)])
        keys = [partials.field(key) for key in self.keys]
        return pa.schema(
            [pa.field(self.window.name, window), *keys, *self.aggregation.result_fields(partials)]
        )

    def kernel(self) -> Kernel:
        if self.window.gap_us is None:
            return pane_kernel(self.window.column, self.panes, self.aggregation)
        return session_kernel(self.window.column, self.window.gap_us, self.aggregation)

    def window_vertex(self, kernel: Kernel | None) -> Vertex:
        kind: Any = (self.panes, PaneVertex)
        if self.window.gap_us is not None:
            kind = (self.window.gap_us, SessionVertex)
        shape, vertex = kind
        return vertex(
            shape, self.aggregation, self.lateness_us, self.window.name, self.window.column, kernel
        )

    def describe(self) -> str:
        window = self.window
        if window.gap_us is not None:
            shape = f"sessions of {window.column}, gap {window.gap_us / 1e6:g} s"
        elif window.size_us == window.slide_us:
            shape = f"windows of {window.column}, {window.size_us / 1e6:g} s"
        else:
            shape = (
                f"windows of {window.column}, {window.size_us / 1e6:g} s "
                f"every {window.slide_us / 1e6:g} s"
            )
        by = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"{shape}{by}: {self.aggregation.describe()}"

    def cut_grid_us(self) -> int | None:
        return self.panes.grid_us() if self.window.gap_us is None else None

    def key_exchange(self) -> tuple[Exchange, ...]:
        return (Hash(tuple(self.keys)) if self.keys else Single(),)


class WindowAggregate(_Windowed, Operator):
    """Aggregates per window and key, from rows; port 1 has the late rows."""

    kind = "window"
    stateful = True
    needs_watermark = True

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        return self.result_schema(self.partial_schema(schema)), plain_schema(schema)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return self.key_exchange()

    def combiner(self, used_ports: frozenset[int]) -> tuple[Operator, Operator] | None:
        if 1 in used_ports:
            return None
        arguments = (self.window, self.keys, self.aggregates, self.lateness_us)
        return WindowCombine(*arguments), WindowMerge(*arguments)

    def vertex(self) -> Vertex:
        return self.window_vertex(self.kernel())


class WindowCombine(_Windowed, CombineOperator):
    """Before the exchange: rows to partial rows."""

    kind = "window_combine"

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        return (self.partial_schema(schema),)

    def kernel(self) -> Kernel:
        return _Windowed.kernel(self)

    def cut_grid_us(self) -> int | None:
        return None


class WindowMerge(_Windowed, Operator):
    """After the exchange: partial rows to results.  Port 1 stays empty."""

    kind = "window"
    stateful = True
    needs_watermark = True

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (partials,) = inputs
        return (self.result_schema(partials),)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return self.key_exchange()

    def vertex(self) -> Vertex:
        return self.window_vertex(None)
