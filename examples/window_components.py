"""Connected components of a sliding window: one loop run per window, windows overlapping in time.

Edges have an event time.  Every two seconds the components of the last six seconds' edges are
wanted.  When the watermark passes the end of a window, its edges enter the loop together, in the
epoch in which that happened; the next window may enter while this one still goes round.  State is
per window and is dropped when the loop has converged for it.

Run it with ``python examples/window_components.py``, or with
``penstock run examples/window_components.py:flow``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock import Flow, Stream, Time, Vertex, localSession
from penstock.library.adjacency import Adjacency, Growing, Slots, least_per_key, scattered

VERTICES, EDGES, SECONDS = 300, 4_000, 40
SIZE_S, SLIDE_S = 6, 2
EDGE = pa.schema({"src": pa.int64(), "dst": pa.int64(), "at": pa.timestamp("us")})
WINDOW_EDGE = pa.schema({"src": pa.int64(), "dst": pa.int64(), "window": pa.int64()})
LABEL = pa.schema({"vertex": pa.int64(), "label": pa.int64(), "window": pa.int64()})
RESULT = pa.schema({"window": pa.int64(), "vertex": pa.int64(), "component": pa.int64()})


def make_edges(offset: int, n: int) -> pa.RecordBatch:
    """Edges spread evenly over the time."""
    ends = scattered(2 * offset, 2 * n) % VERTICES
    at = np.arange(offset, offset + n) * (SECONDS * 1_000_000 // EDGES)
    return pa.record_batch(
        [pa.array(ends[0::2]), pa.array(ends[1::2]), pa.array(at, pa.timestamp("us"))], schema=EDGE
    )


class Windows(Vertex):
    """Keeps edges until the watermark passes the end of a window, then sends all its edges.

    A window is called by its last slide: window w covers slides w - SIZE_S / SLIDE_S + 1 to w.
    """

    def __init__(self) -> None:
        self.slides: dict[int, list[np.ndarray]] = {}
        self.sent_up_to: int | None = None

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        rows = np.stack([column.cast(pa.int64()).to_numpy() for column in batch.columns])
        slides = rows[2] // (SLIDE_S * 1_000_000)
        for slide in np.unique(slides).tolist():
            self.slides.setdefault(slide, []).append(rows[:2, slides == slide])
        self.notifyAt(time)

    def onNotify(self, time: Time) -> None:
        self.notifyAt(time.next_epoch())  # all shards send a window in the same epoch
        watermark = self.watermark(time)
        if watermark is None or not self.slides:
            return
        covered = SIZE_S // SLIDE_S
        first = min(self.slides) if self.sent_up_to is None else self.sent_up_to + 1
        past = min(watermark // (SLIDE_S * 1_000_000), max(self.slides) + covered)
        for window in range(first, past):
            parts = [
                part
                for slide in range(window - covered + 1, window + 1)
                for part in self.slides.get(slide, ())
            ]
            if parts:
                src, dst = np.concatenate(parts, axis=1)
                named = np.full(len(src), window)
                batch = pa.record_batch([pa.array(c) for c in (src, dst, named)], WINDOW_EDGE)
                self.sendBy(0, batch, time)
            self.slides.pop(window - covered + 1, None)
            self.sent_up_to = window


class Labels(Vertex):
    """One shard of every window's graph: vertices take the least label among their neighbours."""

    def __init__(self) -> None:
        self.arrived: dict[Time, list[tuple[int, pa.RecordBatch]]] = {}
        self.windows: dict[tuple[int, int], tuple[Slots, Growing, Adjacency]] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.arrived.setdefault(time, []).append((port, batch))
        self.notifyAt(time)
        self.notifyAt(time.converged())

    def onNotify(self, time: Time) -> None:
        if time.is_converged:
            for key in [key for key in self.windows if key[0] == time.epoch]:
                slots, labels, _ = self.windows.pop(key)
                self._send(1, RESULT, time, np.full(len(slots), key[1]), slots.ids, labels.view)
            return
        for port, batch in self.arrived.pop(time):
            one, other, window = (column.to_numpy() for column in batch.columns)
            for number in np.unique(window).tolist():
                rows = window == number
                if port == 0:
                    self._offered(time, number, one[rows], other[rows])
                elif port == 1:
                    self._edges(time, number, one[rows], other[rows])
                else:
                    self._edges(time, number, other[rows], one[rows])

    def _edges(self, time: Time, window: int, src: np.ndarray, dst: np.ndarray) -> None:
        empty = (Slots(), Growing(np.int64), Adjacency())
        slots, labels, edges = self.windows.setdefault((time.epoch, window), empty)
        at, new = slots.add(src)
        labels.extend(slots.ids[len(slots) - new :])
        edges.add(at, dst)
        self._send(0, LABEL, time, dst, labels.view[at], np.full(len(dst), window))

    def _offered(self, time: Time, window: int, vertex: np.ndarray, label: np.ndarray) -> None:
        slots, labels, edges = self.windows[time.epoch, window]
        at = slots.find(vertex)
        better = label < labels.view[at]
        at, label = least_per_key(at[better], label[better])
        labels.view[at] = label
        which, targets, _ = edges.of(at)
        self._send(0, LABEL, time, targets, label[which], np.full(len(targets), window))

    def _send(self, port: int, schema: pa.Schema, time: Time, *columns: np.ndarray) -> None:
        self.sendBy(port, pa.record_batch([pa.array(c) for c in columns], schema=schema), time)


def window_components(edges: Stream) -> Stream:
    """The components of every window of (src, dst, at)."""
    flow = edges._flow
    windows = edges.withWatermark("at", 0).process(Windows, WINDOW_EDGE, partitionBy=["src"])
    loop = flow.loop("windows")
    inside, around = loop.enter(windows), loop.variable(LABEL)
    offered, found = flow.vertex(
        Labels,
        [around, inside, inside],
        [LABEL, RESULT],
        partitionBy=[["vertex", "window"], ["src", "window"], ["dst", "window"]],
        name="components",
    )
    around.feed(offered)
    return loop.leave(found)


def flow() -> Flow:
    """A flow that prints the components of each window."""
    made = Flow("window_components")
    edges = made.generate(make_edges, rate=2_000, rows=EDGES, shards=2)
    window_components(edges).console(rows=5)
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
    results = window_components(edges).memory()
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
    for window, components in sorted(found.items()):
        inside = (slides > window - covered) & (slides <= window)
        assert components == union_find([tuple(pair) for pair in pairs[inside].tolist()]), window
        parts = len(set(components.values()))
        print(
            f"window {window}: {int(inside.sum())} edges, {len(components)} vertices, {parts} parts"
        )
    print("all windows are right")


if __name__ == "__main__":
    main()
