"""Running aggregates: one group per key, updated for ever.

At the end of each epoch the groups that got rows in it leave with their new values, sorted by key.
Without keys there is one group.  The state grows with the number of different keys; a window in
``groupBy`` bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.vertex import Time, Vertex
from penstock.operators.aggregates import Aggregation
from penstock.operators.base import Exchange, Hash, Kernel, Operator, Single
from penstock.operators.combine import CombineOperator
from penstock.operators.grouping import array_of, sort_by
from penstock.operators.grown import Grown
from penstock.operators.key_columns import check_names
from penstock.operators.keyed_store import KeyedStore
from penstock.operators.stateful import PartialVertex, Runs, batch_of
from penstock.operators.terms import Aggregate, Computed

__all__ = ["RunningAggregate", "RunningCombine", "RunningMerge"]


class _Running:
    def __init__(self, keys: Sequence[str], aggregates: Sequence[Aggregate | Computed]) -> None:
        self.keys = list(keys)
        self.aggregates = list(aggregates)

    @property
    def aggregation(self) -> Aggregation:
        return Aggregation(self.keys, self.aggregates)

    def partial_schema(self, schema: pa.Schema) -> pa.Schema:
        where = "groupBy"
        check_names([*self.keys, *(one.name for one in self.aggregates)], where)
        keys = self.aggregation.key_fields(schema, where)
        return pa.schema([*keys, *self.aggregation.partial_fields(schema, where)])

    def result_schema(self, partials: pa.Schema) -> pa.Schema:
        keys = [partials.field(key) for key in self.keys]
        return pa.schema([*keys, *self.aggregation.result_fields(partials)])

    def describe(self) -> str:
        by = f"by {', '.join(self.keys)}: " if self.keys else ""
        return by + self.aggregation.describe()

    def key_exchange(self) -> tuple[Exchange, ...]:
        return (Hash(tuple(self.keys)) if self.keys else Single(),)


class RunningAggregate(_Running, Operator):
    """At the end of each epoch, the groups that changed and their values, sorted by key."""

    kind = "aggregate"
    stateful = True

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        return (self.result_schema(self.partial_schema(schema)),)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return self.key_exchange()

    def combiner(self, used_ports: frozenset[int]) -> tuple[Operator, Operator] | None:
        return RunningCombine(self.keys, self.aggregates), RunningMerge(self.keys, self.aggregates)

    def vertex(self) -> Vertex:
        return RunningVertex(self.aggregation, running_kernel(self.aggregation))


class RunningCombine(_Running, CombineOperator):
    """Before the exchange: rows to partial rows."""

    kind = "aggregate_combine"

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        return (self.partial_schema(schema),)

    def kernel(self) -> Kernel:
        return running_kernel(self.aggregation)


class RunningMerge(_Running, Operator):
    """After the exchange: partial rows to results."""

    kind = "aggregate"
    stateful = True

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (partials,) = inputs
        return (self.result_schema(partials),)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return self.key_exchange()

    def vertex(self) -> Vertex:
        return RunningVertex(self.aggregation, None)


def running_kernel(aggregation: Aggregation) -> Kernel:
    """A function of a batch to its partial rows: keys, partial columns."""

    def kernel(batch: pa.RecordBatch) -> pa.RecordBatch:
        names, arrays = aggregation.prepared(batch)
        if not arrays:
            names, arrays = ["$"], [batch.column(0)]
        table = pa.Table.from_arrays(arrays, names=names)
        return batch_of(aggregation.combine(table, aggregation.keys))

    return kernel


class RunningVertex(PartialVertex):
    """Keeps one partial row per key; an epoch costs time in proportion to the keys it changes."""

    can_follow = True

    def __init__(self, aggregation: Aggregation, kernel: Kernel | None) -> None:
        super().__init__(kernel, keep_rows=False)
        self.aggregation = aggregation
        self._store = KeyedStore(aggregation.keys)

    def merged(self, partials: pa.Table) -> pa.Table:
        return self.aggregation.merge(partials, self.aggregation.keys)

    def take(self, time: Time, partials: Runs | None, rows: list[pa.RecordBatch]) -> None:
        if partials is None:
            return
        keys = self.aggregation.keys
        changed = sort_by(partials.merged(), keys)
        found = self._store.find(changed)
        known = self._store.rows(found)
        if known is not None:
            both = pa.concat_tables([known, changed]).combine_chunks()
            codes = np.concatenate([found.known, np.arange(changed.num_rows)])
            values = self.aggregation.merge_codes(codes, changed.num_rows, both)
            heads = [array_of(changed, key) for key in keys]
            changed = pa.Table.from_arrays(heads + values, schema=changed.schema)
        self._store.put(changed, found)
        columns = [array_of(changed, key) for key in keys] + self.aggregation.results(changed)
        names = [*keys, *(one.name for one in self.aggregation.aggregates)]
        self.sendBy(0, pa.RecordBatch.from_arrays(columns, names=names), time)

    def snapshot(self) -> dict[str, Grown]:
        """One table ``groups``: keys and partial columns; the last row of a key counts."""
        rows = self._store.history()
        return {} if rows is None else {"groups": rows}

    def load(self, state: Mapping[str, Any]) -> None:
        if "groups" in state:
            self._store.load(state["groups"])
        else:
            self._store.clear()
