"""Pieces of drawn flows that make rows of events of rows of events.

A piece builds stages from its parameters, and its model says what leaves them, computed from whole
columns: without keys, epochs, watermarks or state.  Every stream has the columns of ``EVENT``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.api.flow import Flow, Stream
from penstock.bench.random_flows.rows import (
    EVENT,
    KEYS,
    US_PER_ROW,
    Columns,
    Integers,
    MadeRows,
    taken,
)

__all__ = ["EVENT_PIECES", "FlowPiece", "Parameters", "SourcePiece"]

Parameters = dict[str, Any]
JITTERS_MS = (0, 500, 6_000)


class FlowPiece(ABC):
    """A named part of a flow."""

    name: ClassVar[str]
    inputs: ClassVar[int] = 1
    timed: ClassVar[bool] = True
    """Whether windows may follow if they may precede: rows do not become late here."""
    needs_time: ClassVar[bool] = False
    needs_one_way: ClassVar[bool] = False
    """Whether it must find the one ``withWatermark`` before it."""
    weight: ClassVar[float] = 1.0

    def draw(self, chance: random.Random) -> Parameters:
        """Parameters: numbers and texts, as JSON has them."""
        return {}

    @abstractmethod
    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream | None:
        """The stages; gives what leaves them, if anything does."""

    @abstractmethod
    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        """What leaves them, or what the sink must hold."""


class SourcePiece(FlowPiece):
    """Rows of a generator, with a watermark that no row is late for."""

    name = "source"
    inputs = 0

    def draw(self, chance: random.Random) -> Parameters:
        return {
            "salt": chance.randrange(1 << 16),
            "jitter_ms": chance.choice(JITTERS_MS),
            "repeats": chance.choice((5, 1_000_000)),
            "rate": (rate := chance.choice((300, 600, 1200))),
            "rows": round(rate * chance.uniform(1.5, 3.0)),
            "shards": chance.choice((1, 1, 2, 2, 3)),
            "idle_epochs": chance.choice((None, None, 1_000_000)),
        }

    @staticmethod
    def rows(parameters: Parameters) -> MadeRows:
        """What makes its rows."""
        jitter_us = 1 + parameters["jitter_ms"] * 1000
        return MadeRows(parameters["number"], parameters["salt"], jitter_us, parameters["repeats"])

    def add(self, flow: Flow, name: str, parameters: Parameters) -> Stream:
        """Build it: there is no stream yet to build on."""
        made = self.rows(parameters)
        wanted = {key: parameters[key] for key in ("rate", "rows", "shards")}
        stream = flow.generate(made, **wanted, name=name)
        idle = parameters["idle_epochs"]
        options = {} if idle is None else {"idleEpochs": idle}
        return stream.withWatermark("t", f"{made.delay_us // 1000} ms", **options)

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        raise NotImplementedError("sources are added to a flow")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        return self.rows(parameters).columns(np.arange(parameters["rows"], dtype=np.int64))


class KeyByPiece(FlowPiece):
    """An exchange by key."""

    name = "keyBy"
    weight = 3.0

    def draw(self, chance: random.Random) -> Parameters:
        return {"by": chance.choice(("k", "g", "pair", "v")), "shards": chance.choice((None, 1, 2))}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        return inputs[0].keyBy(parameters["by"], shards=parameters["shards"]).name(name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        return inputs[0]


class FilterPiece(FlowPiece):
    """Some of the rows."""

    name = "filter"

    def draw(self, chance: random.Random) -> Parameters:
        return {"column": chance.choice(("v", "k", "id")), "modulus": chance.randint(2, 5)}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        condition = f"{parameters['column']} % {parameters['modulus']} <> 0"
        return inputs[0].filter(condition).name(name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        left = np.remainder(inputs[0][parameters["column"]], parameters["modulus"])
        return taken(inputs[0], left != 0)


class WithColumnPiece(FlowPiece):
    """Another value."""

    name = "withColumn"

    def draw(self, chance: random.Random) -> Parameters:
        return {"times": chance.randint(2, 5), "plus": chance.randint(1, 9)}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        value = f"v * {parameters['times']} + {parameters['plus']}"
        return inputs[0].withColumn("v", value).select(*EVENT.names).name(name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        values = inputs[0]["v"] * parameters["times"] + parameters["plus"]
        return {**inputs[0], "v": values}


class SelectPiece(FlowPiece):
    """Columns made of others."""

    name = "select"

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        return inputs[0].select("id", "pair", "k", "k + g AS g", "v", "t").name(name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        return {**inputs[0], "g": inputs[0]["g"] + inputs[0]["k"]}


class LookupPiece(FlowPiece):
    """A small fixed table; keys that it lacks are dropped."""

    name = "lookup"

    def draw(self, chance: random.Random) -> Parameters:
        return {"first": chance.randint(0, KEYS // 4)}

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        known = list(range(parameters["first"], KEYS))
        table = pa.table({"key": known, "w": [key * 3 for key in known]})
        found = inputs[0].lookup(table, on={"k": "key"}, columns=["w"])
        return found.select("id", "pair", "k", "g", "v + w AS v", "t").name(name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        kept = taken(inputs[0], inputs[0]["k"] >= parameters["first"])
        return {**kept, "v": kept["v"] + 3 * kept["k"]}


class UnionPiece(FlowPiece):
    """All rows of two streams."""

    name = "union"
    inputs = 2

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        return inputs[0].union(inputs[1]).name(name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        return {name: np.concatenate([one[name] for one in inputs]) for name in EVENT.names}


class DistinctPiece(FlowPiece):
    """Each row once, kept for ever."""

    name = "distinct"

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        return inputs[0].distinct().name(name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        rows = np.stack([inputs[0][name] for name in EVENT.names])
        return dict(zip(EVENT.names, np.unique(rows, axis=1), strict=True))


class DistinctWithinPiece(DistinctPiece):
    """Each row once, kept for a while: copies have the same event time."""

    name = "distinctWithin"
    needs_time = True
    needs_one_way = True

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        within = f"{60 * US_PER_ROW // 1000} ms"
        return inputs[0].distinct(within=within).name(name)


class PersistPiece(FlowPiece):
    """A durable edge."""

    name = "persist"

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        return inputs[0].persist(name=name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        return inputs[0]


class JoinPiece(FlowPiece):
    """Rows of two streams with the same ``pair`` and event times not far apart."""

    name = "join"
    inputs = 2
    timed = False
    needs_time = True
    weight = 2.0

    def draw(self, chance: random.Random) -> Parameters:
        return {
            "within_ms": chance.choice((100, 2_000, 20_000)),
            "how": chance.choice(("inner", "inner", "left")),
        }

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        right = inputs[1].select("pair", "id AS rid", "v AS rv", "t AS rt").name(f"{name}_right")
        joined = inputs[0].join(
            right,
            "pair",
            parameters["how"],
            within=f"{parameters['within_ms']} ms",
            time=("t", "rt"),
        )
        both = ("coalesce(id + rid * 3, id) AS id", "pair", "k", "g", "coalesce(v + rv, v) AS v")
        return joined.name(f"{name}_pairs").select(*both, "t").name(name)

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        left, right = inputs
        order = np.argsort(right["pair"], kind="stable")
        pairs = right["pair"][order]
        first, last = (np.searchsorted(pairs, left["pair"], side) for side in ("left", "right"))
        counts = last - first
        ours = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        theirs = order[np.repeat(first - starts, counts) + np.arange(len(ours))]
        near = np.abs(left["t"][ours] - right["t"][theirs]) <= parameters["within_ms"] * 1000
        ours, theirs = ours[near], theirs[near]
        found = taken(left, ours)
        found["id"] = found["id"] + 3 * right["id"][theirs]
        found["v"] = found["v"] + right["v"][theirs]
        if parameters["how"] == "inner":
            return found
        alone = taken(left, np.setdiff1d(np.arange(len(counts)), ours))
        return {name: np.concatenate([found[name], alone[name]]) for name in EVENT.names}


class LoopPiece(FlowPiece):
    """A loop: values are divided until they are 1 or less; each step leaves, or the last one."""

    name = "loop"
    timed = False
    weight = 1.5

    def draw(self, chance: random.Random) -> Parameters:
        return {
            "by": chance.choice(("v", "k", None)),
            "divisor": chance.randint(2, 4),
            "last": chance.choice((True, False)),
        }

    def build(
        self, name: str, inputs: Sequence[Stream], parameters: Parameters, folder: Path
    ) -> Stream:
        divided = f"cast(v / {parameters['divisor']} AS bigint)"

        def body(stream: Stream) -> tuple[Stream, Stream]:
            keyed = stream if parameters["by"] is None else stream.keyBy(parameters["by"])
            turned = keyed.filter("v > 1").withColumn("v", divided).select(*EVENT.names)
            return turned, turned.filter("v <= 1") if parameters["last"] else turned

        return inputs[0].iterate(body, name=name).select(*EVENT.names).name(f"{name}_left")

    def model(self, inputs: Sequence[Columns], parameters: Parameters) -> Columns:
        turns: list[Columns] = []
        rows = inputs[0]
        while len(rows["v"]):
            rows = taken(rows, rows["v"] > 1)
            rows = {**rows, "v": rows["v"] // parameters["divisor"]}
            turns.append(taken(rows, rows["v"] <= 1) if parameters["last"] else rows)
        return {
            name: np.concatenate([_none(), *(turn[name] for turn in turns)]) for name in EVENT.names
        }


def _none() -> Integers:
    return np.empty(0, dtype=np.int64)


EVENT_PIECES: tuple[FlowPiece, ...] = (
    KeyByPiece(),
    FilterPiece(),
    WithColumnPiece(),
    SelectPiece(),
    LookupPiece(),
    UnionPiece(),
    DistinctPiece(),
    DistinctWithinPiece(),
    PersistPiece(),
    JoinPiece(),
    LoopPiece(),
)
