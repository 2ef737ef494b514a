"""Connected components of a growing graph: state is kept from epoch to epoch, changes circulate.

Run it with ``python examples/growing_components.py``, or with
``penstock run examples/growing_components.py:flow`` to see the changes on the console.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock import Flow, localSession
from penstock.library.adjacency import scattered
from penstock.library.graphs import connected_components

VERTICES, EDGES_PER_EPOCH, EPOCHS = 2_000, 100, 20
SCHEMA = pa.schema({"src": pa.int64(), "dst": pa.int64()})


def make_edges(offset: int, n: int) -> pa.RecordBatch:
    """Edges ``offset`` to ``offset + n - 1`` of an endless random graph."""
    ends = scattered(2 * offset, 2 * n) % VERTICES
    return pa.record_batch([pa.array(ends[0::2]), pa.array(ends[1::2])], schema=SCHEMA)


def flow() -> Flow:
    """A flow that prints the vertices whose component changes as edges arrive."""
    made = Flow("growing_components")
    edges = made.generate(make_edges, rate=500, rows=5_000, shards=1)
    connected_components(edges).console(rows=5)
    return made


def union_find(edges: np.ndarray, vertices: int) -> np.ndarray:
    """The least vertex of each vertex's component, computed one edge at a time."""
    parents = list(range(vertices))

    def root(vertex: int) -> int:
        while parents[vertex] != vertex:
            parents[vertex] = parents[parents[vertex]]
            vertex = parents[vertex]
        return vertex

    for one, other in edges.tolist():
        one, other = root(one), root(other)
        parents[max(one, other)] = min(one, other)
    return np.array([root(vertex) for vertex in range(vertices)])


def main() -> None:
    """Push the edges epoch by epoch and check the components after each."""
    made = Flow("growing_components")
    edges = made.memory(SCHEMA, "edges", manualEpochs=True)
    changes = connected_components(edges).memory()
    made.explain()
    spark = localSession("growing components", hosts=3)
    try:
        run = made.start(spark, hosts=3)
        for epoch in range(EPOCHS):
            edges.push(make_edges(epoch * EDGES_PER_EPOCH, EDGES_PER_EPOCH))
            edges.closeEpoch()
        edges.close()
        run.awaitTermination(60)
    finally:
        spark.stop()
    pushed = make_edges(0, EPOCHS * EDGES_PER_EPOCH)
    ends = np.stack([pushed["src"].to_numpy(), pushed["dst"].to_numpy()], axis=1)
    components = np.arange(VERTICES)
    for epoch, rows in changes.epochs().items():
        components[rows["vertex"].to_numpy()] = rows["component"].to_numpy()
        expected = union_find(ends[: (epoch + 1) * EDGES_PER_EPOCH], VERTICES)
        assert np.array_equal(components, expected), f"epoch {epoch}"
        print(
            f"epoch {epoch}: {rows.num_rows} vertices changed, {len(np.unique(components))} parts"
        )
    print("all components are right")


if __name__ == "__main__":
    main()
