"""Connected components and shortest paths of growing graphs against computations from scratch."""

from __future__ import annotations

import heapq

import numpy as np
import pyarrow as pa
import pytest

from penstock import Flow
from penstock.library.graphs import connected_components, shortest_paths
from penstock.testing.local import run_local

EDGES = pa.schema({"src": pa.int64(), "dst": pa.int64()})
WEIGHTED = EDGES.append(pa.field("weight", pa.float64()))


def union_find(edges: list[list[int]]) -> dict[int, int]:
    parents: dict[int, int] = {vertex: vertex for edge in edges for vertex in edge}

    def root(vertex: int) -> int:
        while parents[vertex] != vertex:
            vertex = parents[vertex]
        return vertex

    for one, other in edges:
        one, other = root(one), root(other)
        parents[max(one, other)] = min(one, other)
    return {vertex: root(vertex) for vertex in parents}


def dijkstra(edges: list[tuple[int, int, float]], source: int) -> dict[int, float]:
    distances, heap = {source: 0.0}, [(0.0, source)]
    while heap:
        distance, vertex = heapq.heappop(heap)
        for src, dst, weight in edges:
            if src == vertex and distance + weight < distances.get(dst, np.inf):
                distances[dst] = distance + weight
                heapq.heappush(heap, (distances[dst], dst))
    return distances


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shards", [1, 3])
def test_components_are_right_after_every_epoch(seed: int, shards: int) -> None:
    generator = np.random.default_rng(seed)
    # Epochs of various sizes, an empty one and one with a path that takes many iterations.
    sizes = [1, 30, 0, 5, 60, 2]
    epochs = [generator.integers(-20, 80, (size, 2)).tolist() for size in sizes]
    epochs.append([[100 + n, 101 + n] for n in range(40)])
    epochs.append([[140, -50]])
    flow = Flow("components")
    edges = flow.memory(EDGES, manualEpochs=True)
    changes = connected_components(edges, shards=shards).memory()
    for rows in epochs:
        edges.push({"src": [row[0] for row in rows], "dst": [row[1] for row in rows]})
        edges.closeEpoch()
    edges.close()
    run_local(flow)
    components: dict[int, int] = {}
    results = changes.epochs()
    for number in range(len(epochs)):
        if number in results:
            rows = results[number].to_pydict()
            changed = dict(zip(rows["vertex"], rows["component"], strict=True))
            assert len(changed) == results[number].num_rows
            assert all(components.get(vertex) != now for vertex, now in changed.items())
            components |= changed
        assert components == union_find([edge for rows in epochs[: number + 1] for edge in rows])


def test_distances_are_right_after_every_epoch() -> None:
    generator = np.random.default_rng(5)
    epochs = [
        [(int(a), int(b), float(w)) for a, b, w in generator.integers(0, 40, (size, 3))]
        for size in (10, 40, 1, 80, 20)
    ]
    flow = Flow("paths")
    edges = flow.memory(WEIGHTED, manualEpochs=True)
    changes = shortest_paths(edges, 3).memory()
    for rows in epochs:
        edges.push(dict(zip(WEIGHTED.names, map(list, zip(*rows, strict=True)), strict=True)))
        edges.closeEpoch()
    edges.close()
    run_local(flow)
    distances = {3: 0.0}
    results = changes.epochs()
    for number in range(len(epochs)):
        if number in results:
            rows = results[number].to_pydict()
            distances |= dict(zip(rows["vertex"], rows["distance"], strict=True))
        assert distances == dijkstra([edge for rows in epochs[: number + 1] for edge in rows], 3)
