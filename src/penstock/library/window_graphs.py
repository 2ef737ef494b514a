"""Connected components of sliding windows: one run of the loop per window, windows overlapping.

    found = window_components(mentions, "6 seconds", "2 seconds")     # window, vertex, component

When the watermark passes the end of a window its edges enter the loop together, in the epoch in
which that happened; the next window may enter while this one still goes round.  What the loop keeps
is per window and goes when it has converged for that window.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from penstock.api.flow import Stream
from penstock.api.vertex import Time, Vertex
from penstock.durations import Duration, duration_us
from penstock.errors import SchemaError, SettingsError
from penstock.library.adjacency import Adjacency, Growing, Integers, Slots, least_per_key

__all__ = ["WindowEdges", "WindowLabels", "window_components"]

EDGE = pa.schema({"src": pa.int64(), "dst": pa.int64(), "window": pa.int64()})
LABEL = pa.schema({"vertex": pa.int64(), "label": pa.int64(), "window": pa.int64()})
RESULT = pa.schema({"window": pa.int64(), "vertex": pa.int64(), "component": pa.int64()})


class WindowEdges(Vertex):
    """Keeps edges (src, dst, event time) until a window ends, then sends the window's edges.

    A window is called by its last slide: window w covers the ``covered`` slides up to w.
    """

    orderSensitive = False

    def __init__(self, slide_us: int, covered: int) -> None:
        self._slide_us = slide_us
        self._covered = covered
        self._slides: dict[int, list[Integers]] = {}
        self._sent: int | None = None

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        rows = np.stack([column.cast(pa.int64()).to_numpy() for column in batch.columns])
        slides = rows[2] // self._slide_us
        for slide in np.unique(slides).tolist():
            self._slides.setdefault(slide, []).append(rows[:2, slides == slide])
        self.notifyAt(time)

    def onNotify(self, time: Time) -> None:
        self.notifyAt(time.next_epoch())  # all shards send a window in the same epoch
        watermark = self.watermark(time)
        if watermark is None or not self._slides:
            return
        first = min(self._slides) if self._sent is None else self._sent + 1
        past = min(watermark // self._slide_us, max(self._slides) + self._covered)
        for window in range(first, past):
            self._send(window, time)
            self._slides.pop(window - self._covered + 1, None)
            self._sent = window

    def _send(self, window: int, time: Time) -> None:
        slides = range(window - self._covered + 1, window + 1)
        parts = [part for slide in slides for part in self._slides.get(slide, ())]
        if parts:
            # Each edge once, in an order that does not depend on the order of arrival.
            src, dst = np.unique(np.concatenate(parts, axis=1), axis=1)
            named = np.full(len(src), window)
            self.sendBy(0, _batch(EDGE, src, dst, named), time)


class WindowLabels(Vertex):
    """One shard of every window's graph: vertices take the least label among their neighbours.

    Input 0 brings labels, inputs 1 and 2 the edges by either end; output 0 gives labels, output 1
    the components of a window when it has converged.
    """

    orderSensitive = False

    def __init__(self) -> None:
        self._arrived: dict[Time, list[tuple[int, pa.RecordBatch]]] = {}
        self._windows: dict[tuple[int, int], tuple[Slots, Growing, Adjacency]] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self._arrived.setdefault(time, []).append((port, batch))
        self.notifyAt(time)
        self.notifyAt(time.converged())

    def onNotify(self, time: Time) -> None:
        if time.is_converged:
            for key in sorted(key for key in self._windows if key[0] == time.epoch):
                slots, labels, _ = self._windows.pop(key)
                named = np.full(len(slots), key[1])
                self.sendBy(1, _batch(RESULT, named, slots.ids, labels.view), time)
            return
        for port, batch in self._arrived.pop(time):
            one, other, window = (column.to_numpy() for column in batch.columns)
            for number in np.unique(window).tolist():
                rows = window == number
                if port == 0:
                    self._offered(time, number, one[rows], other[rows])
                elif port == 1:
                    self._edges(time, number, one[rows], other[rows])
                else:
                    self._edges(time, number, other[rows], one[rows])

    def _edges(self, time: Time, window: int, src: Integers, dst: Integers) -> None:
        empty = (Slots(), Growing(np.int64), Adjacency())
        slots, labels, edges = self._windows.setdefault((time.epoch, window), empty)
        at, new = slots.add(src)
        labels.extend(slots.ids[len(slots) - new :])
        edges.add(at, dst)
        self._offer(time, window, dst, labels.view[at])

    def _offered(self, time: Time, window: int, vertex: Integers, label: Integers) -> None:
        slots, labels, edges = self._windows[time.epoch, window]
        at = slots.find(vertex)
        better = label < labels.view[at]
        at, label = least_per_key(at[better], label[better])
        labels.view[at] = label
        which, targets, _ = edges.of(at)
        self._offer(time, window, targets, label[which])

    def _offer(self, time: Time, window: int, targets: Integers, labels: Integers) -> None:
        worth = labels < targets  # a vertex starts with its own id
        targets, labels = targets[worth], labels[worth]
        named = np.full(len(targets), window)
        self.sendBy(0, _batch(LABEL, targets, labels, named), time)


def window_components(
    edges: Stream,
    windowDuration: Duration,
    slideDuration: Duration,
    *,
    shards: int | None = None,
    name: str = "components",
) -> Stream:
    """The components of the graph in every sliding window: ``(window, vertex, component)``.

    ``edges`` has two int64 columns and an event time (``withWatermark``).  A component is called by
    its least vertex, window w by its last slide: it ends at event time ``(w + 1) * slideDuration``.
    """
    size, slide = duration_us(windowDuration, "window"), duration_us(slideDuration, "slide")
    if slide <= 0 or size <= 0 or size % slide:
        raise SettingsError(
            f"{name}: the window ({windowDuration!r}) must be a multiple of its slide "
            f"({slideDuration!r})"
        )
    kinds = edges.schema.types
    ends = len(kinds) == 3 and kinds[0] == kinds[1] == pa.int64()
    if not ends or not pa.types.is_timestamp(kinds[2]) or kinds[2].unit != "us":
        raise SchemaError(
            f"{name}: edges need two int64 columns (their ends) and a timestamp in microseconds, "
            f"got [{', '.join(f'{field.name}: {field.type}' for field in edges.schema)}]"
        )
    flow = edges._flow
    windows = edges.process(
        partial(WindowEdges, slide, size // slide),
        EDGE,
        partitionBy=[edges.schema.names[0]],
        shards=shards,
    ).name(f"{name}_windows")
    loop = flow.loop(name)
    inside, around = loop.enter(windows), loop.variable(LABEL)
    offered, found = flow.vertex(
        WindowLabels,
        [around, inside, inside],
        [LABEL, RESULT],
        partitionBy=[["vertex", "window"], ["src", "window"], ["dst", "window"]],
        shards=shards,
        name=name,
    )
    around.feed(offered)
    return loop.leave(found)


def _batch(schema: pa.Schema, *columns: Integers) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column) for column in columns], schema=schema)
