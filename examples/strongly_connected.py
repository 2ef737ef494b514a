"""Strongly connected components, with loops inside a loop.

Each epoch brings a graph.  The outer loop goes round with the edges that are not decided yet:

1. an inner loop gives every vertex its *colour*, the least vertex that reaches it;
2. edges between different colours can be in no component and are dropped;
3. another inner loop goes backwards from each vertex that has its own colour, within the colour:
   whatever it meets is its strongly connected component;
4. edges of vertices that have found their component are dropped, the rest goes round again.

A vertex is kept alive by an edge to itself.  Times are (epoch, outer iteration, inner iteration);
epochs and outer iterations overlap wherever nothing makes them wait.

Run it with ``python examples/strongly_connected.py``, or with
``penstock run examples/strongly_connected.py:flow``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock import Flow, Loop, Stream, Time, Vertex, localSession
from penstock.library.adjacency import Adjacency, Growing, Slots, least_per_key, scattered

VERTICES, EDGES_PER_EPOCH, EPOCHS = 400, 500, 4
EDGE = pa.schema({"src": pa.int64(), "dst": pa.int64()})
COLOUR = pa.schema({"vertex": pa.int64(), "colour": pa.int64()})


def rows_of(batches: list[pa.RecordBatch]) -> list[np.ndarray]:
    """The columns of several batches as arrays."""
    table = pa.Table.from_batches(batches)
    return [column.to_numpy() for column in table.columns]


class Spread(Vertex):
    """Spreads least colours over edges: input 0 brings colours, input 1 edges.

    ``backwards`` goes from the end of an edge to its beginning, and only from vertices whose colour
    (input 2) is their own.  What is known when the loop has converged leaves on output 1.
    """

    def __init__(self, backwards: bool) -> None:
        self.backwards = backwards
        self.arrived: dict[Time, dict[int, list[pa.RecordBatch]]] = {}
        self.graphs: dict[Time, tuple[Slots, Growing, Adjacency]] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.arrived.setdefault(time, {}).setdefault(port, []).append(batch)
        self.notifyAt(time)
        self.notifyAt(time.converged())

    def onNotify(self, time: Time) -> None:
        graph = time.left()
        if time.is_converged:
            slots, colours, _ = self.graphs.pop(graph)
            known = colours.view < NONE
            self._send(1, time, slots.ids[known], colours.view[known])
            return
        empty = (Slots(), Growing(np.int64), Adjacency())
        slots, colours, edges = self.graphs.setdefault(graph, empty)
        arrived = self.arrived.pop(time)
        if 1 in arrived:
            near, far = rows_of(arrived[1])
            if self.backwards:
                near, far = far, near
            at, new = slots.add(near)
            fresh = slots.ids[len(slots) - new :]
            colours.extend(np.full(new, NONE) if self.backwards else fresh)
            edges.add(at, far)
            if not self.backwards:
                self._send(0, time, far, colours.view[at])
        for port in (0, 2):
            if port in arrived:
                vertex, colour = rows_of(arrived[port])
                self._offered(time, slots, colours, edges, vertex, colour, start=port == 2)

    def _offered(
        self,
        time: Time,
        slots: Slots,
        colours: Growing,
        edges: Adjacency,
        vertex: np.ndarray,
        colour: np.ndarray,
        start: bool,
    ) -> None:
        if start:
            vertex, colour = vertex[vertex == colour], colour[vertex == colour]
        at = slots.find(vertex)
        better = colour < colours.view[at]
        at, colour = least_per_key(at[better], colour[better])
        colours.view[at] = colour
        which, targets, _ = edges.of(at)
        self._send(0, time, targets, colour[which])

    def _send(self, port: int, time: Time, *columns: np.ndarray) -> None:
        self.sendBy(port, pa.record_batch([pa.array(c) for c in columns], schema=COLOUR), time)


NONE = np.iinfo(np.int64).max


class Match(Vertex):
    """Edges (input 0) and colours (input 1), matched at one end once both are complete."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.arrived: dict[Time, tuple[list[pa.RecordBatch], list[pa.RecordBatch]]] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.arrived.setdefault(time, ([], []))[port].append(batch)
        self.notifyAt(time)

    def onNotify(self, time: Time) -> None:
        edges, colours = self.arrived.pop(time)
        if not edges:
            return
        columns = rows_of(edges)
        vertex, colour = rows_of(colours) if colours else (np.empty(0, np.int64),) * 2
        order = np.argsort(vertex)
        vertex, colour = vertex[order], colour[order]
        places = np.searchsorted(vertex, columns[self.end])
        padded = np.append(vertex, -1)
        found = padded[places] == columns[self.end]
        kept, rows = self.keep(columns, found, np.append(colour, -1)[places])
        for schema in self.schemas():
            out = [pa.array(column[kept]) for column in rows]
            self.sendBy(0, pa.record_batch(out, schema=schema), time)

    def schemas(self) -> Iterator[pa.Schema]:
        """The schema of the output."""
        yield EDGE

    def keep(
        self, columns: list[np.ndarray], found: np.ndarray, colour: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Which edges go on, and with which columns."""
        raise NotImplementedError


class Colour(Match):
    """Adds the colour of the beginning; at the end, keeps the edges within one colour."""

    def schemas(self) -> Iterator[pa.Schema]:
        yield EDGE.append(pa.field("colour", pa.int64())) if self.end == 0 else EDGE

    def keep(
        self, columns: list[np.ndarray], found: np.ndarray, colour: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        if self.end == 0:
            return found, [*columns, colour]
        return found & (columns[2] == colour), columns[:2]


class Undecided(Match):
    """Drops the edges whose end has found its component."""

    def keep(
        self, columns: list[np.ndarray], found: np.ndarray, colour: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        return ~found, columns


def reach(edges: Stream, outer: Loop, name: str, by: str, colours: Stream | None = None) -> Stream:
    """An inner loop: the least colour that reaches each vertex, over ``edges``."""
    flow, backwards = edges._flow, colours is not None
    loop = flow.loop(name, parent=outer)
    around = loop.variable(COLOUR)
    inputs, keys = [around, loop.enter(edges)], [["vertex"], [by]]
    if colours is not None:
        inputs.append(loop.enter(colours))
        keys.append(["vertex"])
    offered, known = flow.vertex(
        lambda: Spread(backwards), inputs, [COLOUR, COLOUR], partitionBy=keys, name=name
    )
    around.feed(offered)
    return loop.leave(known)


def match(kind: type[Match], edges: Stream, colours: Stream, by: str, name: str) -> Stream:
    """Edges matched with colours at one end."""
    end = EDGE.names.index(by)
    [schema] = kind(end).schemas()
    return edges._flow.vertex(
        lambda: kind(end), [edges, colours], [schema], partitionBy=[[by], ["vertex"]], name=name
    )[0]


def with_loops(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The edges, and one from every vertex to itself."""
    for batch in batches:
        ends = np.unique(np.concatenate([column.to_numpy() for column in batch.columns]))
        loops = pa.record_batch([pa.array(ends), pa.array(ends)], schema=EDGE)
        yield pa.concat_batches([batch, loops])


def strongly_connected(edges: Stream) -> Stream:
    """The strongly connected component (its least vertex) of every vertex of each epoch's graph."""
    outer = edges._flow.loop("undecided")
    around = outer.variable(EDGE)
    left = outer.enter(edges.mapInArrow(with_loops, EDGE)).union(around)
    colours = reach(left, outer, "forwards", "src")
    tagged = match(Colour, left, colours, "src", "colour_src")
    inside = match(Colour, tagged, colours, "dst", "colour_dst")
    found = reach(inside, outer, "backwards", "dst", colours)
    rest = match(Undecided, inside, found, "src", "undecided_src")
    around.feed(match(Undecided, rest, found, "dst", "undecided_dst"))
    return outer.leave(found)


def make_edges(offset: int, n: int) -> pa.RecordBatch:
    """Edges ``offset`` to ``offset + n - 1`` of random graphs."""
    ends = scattered(2 * offset, 2 * n) % VERTICES
    return pa.record_batch([pa.array(ends[0::2]), pa.array(ends[1::2])], schema=EDGE)


def flow() -> Flow:
    """A flow that prints the components of each epoch's graph."""
    made = Flow("strongly_connected")
    edges = made.generate(make_edges, rate=2_000, rows=4_000, shards=1)
    strongly_connected(edges).console(rows=5)
    return made


def tarjan(edges: list[tuple[int, int]]) -> dict[int, int]:
    """The least vertex of each vertex's strongly connected component, from scratch."""
    following: dict[int, list[int]] = {vertex: [] for edge in edges for vertex in edge}
    for src, dst in edges:
        following[src].append(dst)
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    result: dict[int, int] = {}
    for start in following:
        work = [] if start in index else [(start, iter(following[start]))]
        while work:
            vertex, rest = work[-1]
            if vertex not in index:
                index[vertex] = low[vertex] = len(index)
                stack.append(vertex)
            for target in rest:
                if target not in index:
                    work.append((target, iter(following[target])))
                    break
                if target not in result:
                    low[vertex] = min(low[vertex], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == index[vertex]:
                    members = stack[stack.index(vertex) :]
                    del stack[len(stack) - len(members) :]
                    result.update(dict.fromkeys(members, min(members)))
    return result


def main() -> None:
    """Push one graph per epoch, all at once, and check each."""
    made = Flow("strongly_connected")
    edges = made.memory(EDGE, "edges", manualEpochs=True)
    results = strongly_connected(edges).memory()
    spark = localSession("strongly connected", hosts=3)
    try:
        run = made.start(spark, hosts=3)
        for epoch in range(EPOCHS):
            edges.push(make_edges(epoch * EDGES_PER_EPOCH, EDGES_PER_EPOCH))
            edges.closeEpoch()
        edges.close()
        run.awaitTermination(90)
    finally:
        spark.stop()
    for epoch in range(EPOCHS):
        rows = results.epochs()[epoch]
        found = dict(zip(rows["vertex"].to_pylist(), rows["colour"].to_pylist(), strict=True))
        assert len(found) == rows.num_rows, "a vertex given twice"
        graph = make_edges(epoch * EDGES_PER_EPOCH, EDGES_PER_EPOCH).to_pydict()
        assert found == tarjan(list(zip(graph["src"], graph["dst"], strict=True))), epoch
        largest = max(np.unique(list(found.values()), return_counts=True)[1])
        print(f"epoch {epoch}: {len(set(found.values()))} components, the largest of {largest}")
    print("all components are right")


if __name__ == "__main__":
    main()
