"""Shortest paths from one vertex in a growing weighted graph, kept right after every epoch.

Run it with ``python examples/shortest_paths.py``, or with
``penstock run examples/shortest_paths.py:flow`` to see the changes on the console.
"""

from __future__ import annotations

import heapq

import numpy as np
import pyarrow as pa

from penstock import Flow, localSession
from penstock.library.adjacency import scattered
from penstock.library.graphs import shortest_paths

VERTICES, EDGES_PER_EPOCH, EPOCHS, SOURCE = 1_000, 250, 16, 0
SCHEMA = pa.schema({"src": pa.int64(), "dst": pa.int64(), "weight": pa.float64()})


def make_edges(offset: int, n: int) -> pa.RecordBatch:
    """Edges ``offset`` to ``offset + n - 1``; whole weights, so that sums are exact."""
    mixed = scattered(3 * offset, 3 * n)
    ends = mixed % VERTICES
    weights = mixed[2::3] % 100 + 1.0
    return pa.record_batch(
        [pa.array(ends[0::3]), pa.array(ends[1::3]), pa.array(weights)], schema=SCHEMA
    )


def flow() -> Flow:
    """A flow that prints the vertices whose distance changes as edges arrive."""
    made = Flow("shortest_paths")
    edges = made.generate(make_edges, rate=1_000, rows=4_000, shards=1)
    shortest_paths(edges, SOURCE).console(rows=5)
    return made


def dijkstra(edges: pa.RecordBatch) -> np.ndarray:
    """The distances from the source, from scratch."""
    outgoing: dict[int, list[tuple[int, float]]] = {}
    for src, dst, weight in zip(*(column.to_pylist() for column in edges.columns), strict=True):
        outgoing.setdefault(src, []).append((dst, weight))
    distances = np.full(VERTICES, np.inf)
    distances[SOURCE] = 0.0
    heap = [(0.0, SOURCE)]
    while heap:
        distance, vertex = heapq.heappop(heap)
        if distance > distances[vertex]:
            continue
        for target, weight in outgoing.get(vertex, ()):
            if distance + weight < distances[target]:
                distances[target] = distance + weight
                heapq.heappush(heap, (distance + weight, target))
    return distances


def main() -> None:
    """Push the edges epoch by epoch and check the distances after each."""
    made = Flow("shortest_paths")
    edges = made.memory(SCHEMA, "edges", manualEpochs=True)
    changes = shortest_paths(edges, SOURCE).memory()
    spark = localSession("shortest paths", hosts=3)
    try:
        run = made.start(spark, hosts=3)
        for epoch in range(EPOCHS):
            edges.push(make_edges(epoch * EDGES_PER_EPOCH, EDGES_PER_EPOCH))
            edges.closeEpoch()
        edges.close()
        run.awaitTermination(60)
    finally:
        spark.stop()
    results = changes.epochs()
    distances = np.full(VERTICES, np.inf)
    distances[SOURCE] = 0.0
    for epoch in range(EPOCHS):
        if epoch in results:
            rows = results[epoch]
            distances[rows["vertex"].to_numpy()] = rows["distance"].to_numpy()
        expected = dijkstra(make_edges(0, (epoch + 1) * EDGES_PER_EPOCH))
        assert np.array_equal(distances, expected), f"epoch {epoch}"
        print(f"epoch {epoch}: {int(np.isfinite(distances).sum())} vertices can be reached")
    print("all distances are right")


if __name__ == "__main__":
    main()
