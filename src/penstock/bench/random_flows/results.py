"""Pieces of drawn flows that end in Parquet sinks, and what the sinks must hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.stream import WindowedStream
from penstock.api.vertex import Time, Vertex
from penstock.bench.random_flows.pieces import FlowPiece, Parameters
from penstock.bench.random_flows.rows import (
    KEYS,
    NULL,
    Columns,
    Difference,
    compared,
    integers,
    taken,
)
from penstock.library.graphs import connected_components

__all__ = ["RESULTS", "Result"]

NUMBER = pa.schema({"k": pa.int64(), "number": pa.int64(), "id": pa.int64()})
VERTICES = 60


class Result(FlowPiece):
    """A piece that ends in a sink; the sink's folder has the piece's name."""

    def compare(self, expected: Columns, found: pa.Table) -> Difference:
        """How the sink's rows differ from the model's."""
        return compared(expected, integers(found))


class Rows(Result):
    """The rows themselves."""

    name = "rows"
    weight = 2.0

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> None:
        inputs[0].parquet(str(folder / name), name=name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        return inputs[0]


class Totals(Result):
    """Running aggregates: the last result of each key counts, and none may come twice."""

    name = "totals"
    weight = 2.0

    def draw(self, chance: random.Random) -> Parameters:
        return {"by": chance.choice(("k", "g"))}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> None:
        aggregates = (
            F.count("*").alias("n"),
            F.sum("v").alias("s"),
            F.min("v").alias("low"),
            F.max("v").alias("high"),
        )
        totals = inputs[0].groupBy(parameters["by"]).agg(*aggregates).name(name)
        totals.parquet(str(folder / name), name=f"{name}_files")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        by, values = inputs[0][parameters["by"]], inputs[0]["v"]
        keys, group = np.unique(by, return_inverse=True)
        low, high = np.full(len(keys), 1 << 60), np.full(len(keys), -1)
        np.minimum.at(low, group, values)
        np.maximum.at(high, group, values)
        return {
            parameters["by"]: keys,
            "n": np.bincount(group, minlength=len(keys)),
            "s": np.bincount(group, values, minlength=len(keys)).astype(np.int64),
            "low": low,
            "high": high,
        }

    def compare(self, expected: Columns, found: pa.Table) -> Difference:
        by = next(iter(expected))
        return _last(expected, integers(found), by, "n")


class Windows(Result):
    """Tumbling or sliding windows, and the rows that were late: none."""

    name = "windows"
    needs_time = True
    weight = 2.0

    def draw(self, chance: random.Random) -> Parameters:
        size_ms = chance.choice((1_000, 4_000, 10_000))
        slide_ms = chance.choice((size_ms, size_ms, size_ms // 2, size_ms // 5))
        return {"size_ms": size_ms, "slide_ms": slide_ms, "late": chance.random() < 0.3}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> None:
        window = F.window("t", f"{parameters['size_ms']} ms", f"{parameters['slide_ms']} ms")
        counted = inputs[0].groupBy(window, "k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        if isinstance(counted, WindowedStream) and parameters["late"]:
            late = counted.late().select("id").name(f"{name}_late")
            late.parquet(str(folder / f"{name}_late"), name=f"{name}_late_files")
        counted.name(name).parquet(str(folder / name), name=f"{name}_files")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        size, slide = parameters["size_ms"] * 1000, parameters["slide_ms"] * 1000
        rows = inputs[0]
        firsts = rows["t"] // slide * slide
        starts = [firsts - back * slide for back in range(size // slide)]
        many = len(starts)
        start, k, v = np.concatenate(starts), np.tile(rows["k"], many), np.tile(rows["v"], many)
        groups, group = np.unique(np.stack([start, k]), axis=1, return_inverse=True)
        return {
            "start": groups[0],
            "end": groups[0] + size,
            "k": groups[1],
            "n": np.bincount(group.ravel(), minlength=groups.shape[1]),
            "s": np.bincount(group.ravel(), v, minlength=groups.shape[1]).astype(np.int64),
        }


class WindowTotals(Result):
    """How many windows a key had, and how many rows were in them: running totals of windows."""

    name = "windowTotals"
    needs_time = True

    def draw(self, chance: random.Random) -> Parameters:
        return {"size_ms": chance.choice((500, 2_000))}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> None:
        window = F.window("t", f"{parameters['size_ms']} ms")
        counted = inputs[0].groupBy(window, "g").agg(F.count("*").alias("rows")).name(f"{name}_in")
        totals = counted.groupBy("g").agg(F.count("*").alias("n"), F.sum("rows").alias("s"))
        totals.name(name).parquet(str(folder / name), name=f"{name}_files")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        rows = inputs[0]
        windows = rows["t"] // (parameters["size_ms"] * 1000)
        pairs = np.unique(np.stack([rows["g"], windows]), axis=1)
        keys, counts = np.unique(pairs[0], return_counts=True)
        sizes = np.unique(rows["g"], return_counts=True)[1]
        return {"g": keys, "n": counts, "s": sizes}

    def compare(self, expected: Columns, found: pa.Table) -> Difference:
        return _last(expected, integers(found), "g", "n")


class Sessions(Result):
    """Session windows."""

    name = "sessions"
    needs_time = True

    def draw(self, chance: random.Random) -> Parameters:
        return {"gap_ms": chance.choice((100, 400, 1_500))}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> None:
        window = F.session_window("t", f"{parameters['gap_ms']} ms")
        sessions = inputs[0].groupBy(window, "k").agg(F.count("*").alias("n")).name(name)
        sessions.parquet(str(folder / name), name=f"{name}_files")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        gap = parameters["gap_ms"] * 1000
        order = np.lexsort((inputs[0]["t"], inputs[0]["k"]))
        k, t = inputs[0]["k"][order], inputs[0]["t"][order]
        begins = np.ones(len(k), dtype=bool)
        begins[1:] = (k[1:] != k[:-1]) | (t[1:] - t[:-1] > gap)
        first = np.flatnonzero(begins)
        after = np.append(first[1:], len(k))
        return {
            "start": t[first],
            "end": t[after - 1] + gap if len(first) else t,
            "k": k[first],
            "n": after - first,
        }


class Components(Result):
    """Connected components, a loop: the last result of a vertex is the least."""

    name = "components"

    def draw(self, chance: random.Random) -> Parameters:
        return {"shards": chance.choice((None, 1, 2))}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> None:
        ends = (f"(id * 7) % {VERTICES} AS a", f"{VERTICES} + (id * 11 + v) % {VERTICES} AS b")
        edges = inputs[0].filter("v % 5 = 0").select(*ends).name(f"{name}_edges")
        found = connected_components(edges, shards=parameters["shards"], name=name)
        found.parquet(str(folder / name), name=f"{name}_files")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        rows = taken(inputs[0], inputs[0]["v"] % 5 == 0)
        one, other = rows["id"] * 7 % VERTICES, VERTICES + (rows["id"] * 11 + rows["v"]) % VERTICES
        least = np.arange(2 * VERTICES)
        while True:  # every edge lowers both its ends to the less of the two, until none does
            before = least.copy()
            lower = np.minimum(least[one], least[other])
            np.minimum.at(least, one, lower)
            np.minimum.at(least, other, lower)
            if (least == before).all():
                break
        vertices = np.unique(np.concatenate([one, other]))
        return {"vertex": vertices, "component": least[vertices]}

    def compare(self, expected: Columns, found: pa.Table) -> Difference:
        rows = integers(found)
        return _last(expected, {**rows, "n": -rows["component"]}, "vertex", "n")


class Numbering(Vertex):
    """Numbers the rows of each key in the order in which they arrive."""

    def __init__(self) -> None:
        self._numbered = np.zeros(KEYS, dtype=np.int64)

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        keys = batch["k"].to_numpy()
        order = np.argsort(keys, kind="stable")
        counts = np.bincount(keys, minlength=KEYS)
        starts = np.cumsum(counts) - counts
        numbers = np.empty(len(keys), dtype=np.int64)
        numbers[order] = np.arange(len(keys)) - starts[keys[order]] + 1
        numbers += self._numbered[keys]
        self._numbered += counts
        self.sendBy(0, pa.record_batch([batch["k"], numbers, batch["id"]], schema=NUMBER), time)


class Numbered(Result):
    """An order-sensitive stage: each row has one number, and the numbers of a key no gaps."""

    name = "numbered"

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> None:
        numbered = inputs[0].process(Numbering, NUMBER, partitionBy=["k"]).name(name)
        numbered.parquet(str(folder / name), name=f"{name}_files")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        return {"k": inputs[0]["k"], "id": inputs[0]["id"]}

    def compare(self, expected: Columns, found: pa.Table) -> Difference:
        rows = integers(found)
        outcome = compared(expected, rows)
        different = np.unique(np.stack([rows["k"], rows["number"]]), axis=1)
        repeated = len(rows["number"]) - different.shape[1]
        highest = np.zeros(KEYS, dtype=np.int64)
        np.maximum.at(highest, rows["k"], rows["number"])
        gaps = int(highest.sum()) - different.shape[1]
        return Difference(outcome.rows, max(outcome.missing, gaps), max(outcome.extra, repeated))


class LookedUp(Result):
    """Rows with what a table says of their keys, a table that another stream publishes.

    Which version a row sees is a matter of time: a count up to the last one, or none yet.
    """

    name = "lookedUp"
    inputs: ClassVar[int] = 2

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> None:
        counts = inputs[1].groupBy("k").agg(F.count("*").alias("n")).name(f"{name}_counts")
        table = counts.select("k AS key", "n").name(f"{name}_versions").toTable(name)
        seen = inputs[0].asOf(table).name(f"{name}_seen")
        found = seen.lookup(table, on={"k": "key"}, how="left", columns=["n"])
        rows = found.select("id", "v", "k", "n").name(f"{name}_found")
        rows.parquet(str(folder / name), name=f"{name}_files")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        most = np.bincount(inputs[1]["k"], minlength=KEYS)
        rows = inputs[0]
        return {"id": rows["id"], "v": rows["v"], "k": rows["k"], "most": most[rows["k"]]}

    def compare(self, expected: Columns, found: pa.Table) -> Difference:
        rows = integers(found)
        most = np.zeros(KEYS, dtype=np.int64)
        most[expected["k"]] = expected["most"]
        wrong = (rows["n"] != NULL) & ((rows["n"] < 1) | (rows["n"] > most[rows["k"]]))
        same = {name: expected[name] for name in ("id", "v", "k")}
        outcome = compared(same, rows)
        return Difference(outcome.rows, outcome.missing, outcome.extra + int(wrong.sum()))


def _last(expected: Columns, found: Columns, key: str, number: str) -> Difference:
    """Compare the row with the highest number of each key; a number that comes twice is extra."""
    order = np.lexsort((found[number], found[key]))
    rows = taken(found, order)
    keys, numbers = rows[key], rows[number]
    last = np.ones(len(keys), dtype=bool)
    last[:-1] = keys[1:] != keys[:-1]
    again = int(((keys[1:] == keys[:-1]) & (numbers[1:] == numbers[:-1])).sum())
    outcome = compared(expected, taken(rows, last))
    return Difference(len(keys), outcome.missing, outcome.extra + again)


RESULTS: tuple[Result, ...] = (
    Rows(),
    Totals(),
    Windows(),
    WindowTotals(),
    Sessions(),
    Components(),
    Numbered(),
    LookedUp(),
)
