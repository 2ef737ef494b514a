"""Connected components of a sliding window: one loop run per window, windows overlapping in time.

Edges have an event time.  Every two seconds the components of the last six seconds' edges are
wanted; how that is done is in ``penstock.library.window_graphs``.

Run it with ``python examples/window_components.py``, or with
``penstock run examples/window_components.py:flow``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock import Flow, Stream, localSession
from penstock.library.adjacency import scattered
from penstock.library.window_graphs import window_components

VERTICES, EDGES, SECONDS = 300, 4_000, 40
SIZE_S, SLIDE_S = 6, 2
EDGE = pa.schema({"src": pa.int64(), "dst": pa.int64(), "at": pa.timestamp("us")})


def make_edges(offset: int, n: int) -> pa.RecordBatch:
    """Edges spread evenly over the time."""
    ends = scattered(2 * offset, 2 * n) % VERTICES
    at = np.arange(offset, offset + n) * (SECONDS * 1_000_000 // EDGES)
    return pa.record_batch(
        [pa.array(ends[0::2]), pa.array(ends[1::2]), pa.array(at, pa.timestamp("us"))], schema=EDGE
    )


def components(edges: Stream) -> Stream:
    """The components of every window."""
    return window_components(
        edges.withWatermark("at", 0), f"{SIZE_S} seconds", f"{SLIDE_S} seconds"
    )


def flow() -> Flow:
    """A flow that prints the components of each window."""
    made = Flow("window_components")
    edges = made.generate(make_edges, rate=2_000, rows=EDGES, shards=2)
    components(edges).console(rows=5)
    return made


def union_find(pairs: list[tuple[int, int]]) -> dict[int, int]:
    """The least vertex of each vertex's component."""
    parents: dict[int, int] = {vertex: vertex for pair in pairs for vertex in pair}

    def root(vertex: int) -> int:
        while parents[vertex] != vertex:
            vertex = parents[vertex]
        return vertex

    for one, other in pairs:
        one, other = root(one), root(other)
        parents[max(one, other)] = min(one, other)
    return {vertex: root(vertex) for vertex in parents}


def main() -> None:
    """Run to the end and check every window."""
    made = Flow("window_components")
    edges = made.generate(make_edges, rate=4_000, rows=EDGES, shards=2)
    results = components(edges).memory()
    spark = localSession("window components", hosts=3)
    try:
        made.start(spark, hosts=3, epochInterval="50 ms").awaitTermination(60)
    finally:
        spark.stop()
    found: dict[int, dict[int, int]] = {}
    for row in results.toPylist():
        assert row["vertex"] not in found.setdefault(row["window"], {}), "a vertex given twice"
        found[row["window"]][row["vertex"]] = row["component"]
    rows = make_edges(0, EDGES)
    slides = rows["at"].cast(pa.int64()).to_numpy() // (SLIDE_S * 1_000_000)
    pairs = np.stack([rows["src"].to_numpy(), rows["dst"].to_numpy()], axis=1)
    covered = SIZE_S // SLIDE_S
    assert sorted(found) == list(range(SECONDS // SLIDE_S + covered - 1)), sorted(found)
    for window, parts_of in sorted(found.items()):
        inside = (slides > window - covered) & (slides <= window)
        assert parts_of == union_find([tuple(pair) for pair in pairs[inside].tolist()]), window
        parts = len(set(parts_of.values()))
        print(
            f"window {window}: {int(inside.sum())} edges, {len(parts_of)} vertices, {parts} parts"
        )
    print("all windows are right")


if __name__ == "__main__":
    main()
