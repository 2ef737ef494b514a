"""Connected components and shortest paths of a growing graph, kept up to date as edges arrive.

    components = connected_components(edges)          # vertex, component
    distances = shortest_paths(edges, source=0)       # vertex, distance

Both keep the graph from epoch to epoch and give, for every epoch, the vertices whose result changed
in it.  What circulates in their loops is only what changes.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.flow import Stream
from penstock.errors import SchemaError
from penstock.library.adjacency import Integers, Values
from penstock.library.least_values import LeastValues, column, offers

__all__ = ["ConnectedComponents", "ShortestPaths", "connected_components", "shortest_paths"]


class ConnectedComponents(LeastValues):
    """Every vertex takes the least id that reaches it; edges go both ways.

    Input 1 brings edges by their first end, input 2 the same edges by their second.
    """

    def start(self, ids: Integers) -> Values:
        return ids

    def edges(self, port: int, batch: pa.RecordBatch) -> tuple[Integers, Integers, Values | None]:
        one, other = column(batch, 0), column(batch, 1)
        return (one, other, None) if port == 1 else (other, one, None)

    def worth(self, targets: Integers, values: Values) -> npt.NDArray[np.bool_]:
        return values < targets  # a vertex starts with its own id

    @staticmethod
    def results() -> pa.Schema:
        return pa.schema({"vertex": pa.int64(), "component": pa.int64()})


class ShortestPaths(LeastValues):
    """Distances from one vertex over directed edges with weights from 0 up (input 1, by source)."""

    dtype = np.float64

    def __init__(self, source: int) -> None:
        super().__init__()
        self._source = source

    def start(self, ids: Integers) -> Values:
        return np.where(ids == self._source, 0.0, np.inf)

    def edges(self, port: int, batch: pa.RecordBatch) -> tuple[Integers, Integers, Values | None]:
        return column(batch, 0), column(batch, 1), column(batch, 2)

    def worth(self, targets: Integers, values: Values) -> npt.NDArray[np.bool_]:
        return values < np.inf

    @staticmethod
    def results() -> pa.Schema:
        return pa.schema({"vertex": pa.int64(), "distance": pa.float64()})

    def shown(self, changed: pa.RecordBatch) -> pa.RecordBatch:
        return changed.filter(pc.is_finite(changed.column(1)))


def connected_components(
    edges: Stream, *, shards: int | None = None, name: str = "components"
) -> Stream:
    """The components of a growing undirected graph: ``(vertex, component)``, changes only.

    ``edges`` has two int64 columns.  A component is called by its least vertex.  Per epoch each
    vertex that is new or has come to another component is given once; the latest row of a vertex is
    its component.
    """
    first, second = _ends(edges, 2, name)
    loop = edges._flow.loop(name)
    around = loop.variable(offers(pa.int64()))
    inside = loop.enter(edges)
    offered, changed = edges._flow.vertex(
        ConnectedComponents,
        [around, inside, inside],
        [around.schema, ConnectedComponents.results()],
        partitionBy=[["vertex"], [first], [second]],
        shards=shards,
        name=name,
    )
    around.feed(offered)
    return loop.leave(changed)


def shortest_paths(
    edges: Stream, source: int, *, shards: int | None = None, name: str = "paths"
) -> Stream:
    """The distances from ``source`` in a growing directed graph: ``(vertex, distance)``.

    ``edges`` has two int64 columns (from, to) and a float64 one (weight, from 0 up).  Per epoch
    each vertex whose distance has become known or less is given once.
    """
    first, _ = _ends(edges, 3, name)
    if edges.schema.types[2] != pa.float64():
        raise SchemaError(f"{name}: the third column must be float64, not {edges.schema.types[2]}")
    loop = edges._flow.loop(name)
    around = loop.variable(offers(pa.float64()))
    offered, changed = edges._flow.vertex(
        partial(ShortestPaths, source),
        [around, loop.enter(edges)],
        [around.schema, ShortestPaths.results()],
        partitionBy=[["vertex"], [first]],
        shards=shards,
        name=name,
    )
    around.feed(offered)
    return loop.leave(changed)


def _ends(edges: Stream, columns: int, name: str) -> tuple[str, str]:
    """The names of the two columns that hold vertices."""
    schema = edges.schema
    if len(schema) != columns or any(kind != pa.int64() for kind in schema.types[:2]):
        raise SchemaError(
            f"{name}: edges need {columns} columns, the first two int64 (their ends), got "
            f"[{', '.join(f'{field.name}: {field.type}' for field in schema)}]"
        )
    return schema.names[0], schema.names[1]
