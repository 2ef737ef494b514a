"""The flow that ``penstock chaos`` tortures, and what its tables must hold.

    events (2 shards) --+--> sharder --+--> counts     per owner and second
    probes (driver) ----+              +--> numbered   order-sensitive: 1, 2, 3 ... per owner
                                       +--> pairs      a join of some with some others
                                              +--> steps   a loop: halved until nothing is left

Events are functions of their offsets, so what every table must hold is computed independently,
with one exception: which number a row gets depends on the order of arrival.  There the numbers of
an owner must be 1, 2, 3 ... without gaps, each row must have exactly one, and rows that went the
same way must be numbered in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.api import functions as F
from penstock.api.flow import Flow, Stream
from penstock.api.vertex import Time, Vertex
from penstock.bench.probe import Probe
from penstock.engine.host.clock import now_us
from penstock.testing.held_input import release_by_file

__all__ = ["ChaosFlow", "ChaosOutcome", "ChaosTables", "difference"]

OWNERS = 50
BUCKETS = 16
VALUES = 8
ROUTES = 8
LEFT, RIGHT = 0, 1
"""Which side of the join an event is on, by its offset modulo ``ROUTES``."""
WINDOW_US = 1_000_000
BACK = 3
"""Number of rows that reach the driver for one probe."""

EVENT = pa.schema(
    {
        "id": pa.int64(),
        "pair": pa.int64(),
        "bucket": pa.int64(),
        "owner": pa.int64(),
        "route": pa.int64(),
        "value": pa.int64(),
        "time": pa.timestamp("us", tz="UTC"),
    }
)
NUMBER = pa.schema({"owner": pa.int64(), "number": pa.int64(), "id": pa.int64()})
STEP = pa.schema({"id": pa.int64(), "n": pa.int64(), "cost": pa.int64(), "steps": pa.int64()})
ECHO = pa.schema({"id": pa.int64()})
_SPREAD = np.uint64(11_400_714_819_323_198_485)

Integers = npt.NDArray[np.int64]


def _spread(ids: Integers, salt: int, below: int) -> Integers:
    mixed = ((ids.view(np.uint64) + np.uint64(salt)) * _SPREAD) >> np.uint64(32)
    return ((mixed * np.uint64(below)) >> np.uint64(32)).view(np.int64)


class ChaosEvents:
    """Makes events from offsets; travels to the hosts with the code."""

    def __init__(self, rate: float, origin_us: int) -> None:
        self.us_per_event = 1_000_000 / rate
        self.origin_us = origin_us

    def columns(self, ids: Integers) -> dict[str, Integers]:
        """All columns but the time, for non-negative ids."""
        route = ids % ROUTES
        return {
            "id": ids,
            "pair": np.where(route == RIGHT, ids - 1, ids),
            "bucket": _spread(ids, 1, BUCKETS),
            "owner": _spread(ids, 2, OWNERS),
            "route": route,
            "value": _spread(ids, 3, VALUES) + 1,
        }

    def time_us(self, ids: Integers) -> Integers:
        """Event time."""
        return self.origin_us + (ids * self.us_per_event).astype(np.int64)

    def __call__(self, offset: int, n: int, stride: int = 1) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n * stride, stride, dtype=np.int64)
        times = pa.array(self.time_us(ids)).view(EVENT.field("time").type)
        return pa.record_batch([*self.columns(ids).values(), times], schema=EVENT)


class OwnerNumbering(Vertex):
    """Numbers the rows of each owner in the order in which they arrive; probes are not kept."""

    def __init__(self) -> None:
        self._numbered = np.zeros(OWNERS + 1, dtype=np.int64)

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        owners = batch["owner"].to_numpy()
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=OWNERS + 1)
        starts = np.cumsum(counts) - counts
        numbers = np.empty(len(owners), dtype=np.int64)
        numbers[order] = np.arange(len(owners)) - starts[owners[order]] + 1
        numbers += self._numbered[owners]
        self._numbered += counts
        numbered = pa.record_batch([owners, numbers, batch["id"]], schema=NUMBER)
        probes = pa.array(batch["id"].to_numpy() < 0)
        self.sendBy(0, numbered.filter(pc.invert(probes)), time)
        self.sendBy(1, numbered.filter(probes).select(["id"]), time)


class Halving(Vertex):
    """One turn of the loop: rows meet by what they hold and lose half of it."""

    stateless = True

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        left = batch["n"].to_numpy() // 2
        steps = batch["steps"].to_numpy() + 1
        turned = pa.record_batch([batch["id"], left, batch["cost"], steps], schema=STEP)
        probes = batch["id"].to_numpy() < 0
        self.sendBy(0, turned.filter(pa.array(left > 0)), time)
        self.sendBy(1, turned.filter(pa.array((left == 0) & ~probes)), time)
        self.sendBy(2, turned.filter(pa.array((left == 0) & probes)).select(["id"]), time)


@dataclass(frozen=True)
class ChaosOutcome:
    """The published tables against what they must hold, in rows."""

    rows: int
    lost: int
    duplicated: int
    disordered: int

    @property
    def equal(self) -> bool:
        """Whether nothing is missing, double, wrong or out of order."""
        return not (self.lost or self.duplicated or self.disordered)


class ChaosTables:
    """The flow without probes, its tables and their check: the same from one driver to the next."""

    def __init__(self, rate: float, rows: int, folder: Path, origin_us: int) -> None:
        self.rows = rows
        self.folder = folder
        self.events = ChaosEvents(rate, origin_us)
        self.flow = Flow("chaos")
        made = self.flow.generate(self.events, rate=rate, rows=rows, shards=2, name="events")
        self._echo = self._build(self._arrivals(_timed(made)))

    def _arrivals(self, events: Stream) -> Stream:
        """Everything that goes into the flow."""
        return events

    def _build(self, arrivals: Stream) -> Stream:
        """Everything behind the sources; gives what comes back of a probe."""
        sharded = arrivals.keyBy("bucket", shards=2).withColumn("cost", "value * 3 + 1")
        sharded.name("sharder")
        counts = (
            sharded.filter("id >= 0")
            .groupBy(F.window("time", "1 second"), "owner")
            .agg(F.count("*").alias("events"), F.sum("cost").alias("cost"))
            .name("counts")
        )
        numbers, numbers_echo = self.flow.vertex(
            OwnerNumbering,
            [sharded],
            [NUMBER, ECHO],
            partitionBy=[["owner"]],
            shards=2,
            name="numbered",
        )
        left = sharded.filter(f"route = {LEFT}").select("pair", "id", "value", "time").name("left")
        right = (
            sharded.filter(f"route = {RIGHT}")
            .select("pair", "cost", "time AS paid_time")
            .name("right")
        )
        pairs = left.join(right, "pair", within="1 second", time=("time", "paid_time"))
        paid = pairs.select("id", "value AS n", "cost", "0L AS steps").name("pairs")
        loop = self.flow.loop("halving")
        again = loop.variable(STEP)
        back, done, done_echo = self.flow.vertex(
            Halving,
            [loop.enter(paid), again],
            [STEP, STEP, ECHO],
            partitionBy=[["n"], ["n"]],
            shards=1,  # a loop restarts as one unit, wherever its nodes are
            name="halved",
        )
        again.feed(back)
        loop.leave(done).parquet(str(self.folder / "steps"), name="steps_files")
        numbers.parquet(str(self.folder / "numbers"), name="numbers_files")
        counts.parquet(str(self.folder / "counts"), name="counts_files")
        # A filter that nothing passes: probes wait for the counts without being counted.
        counts_echo = counts.filter("owner < 0").select("owner AS id").name("counts_echo")
        return counts_echo.union(numbers_echo, loop.leave(done_echo)).name("echo")

    # -- what must have come out -----------------------------------------------------------------

    def check(self) -> ChaosOutcome:
        """Compare the published tables with the events."""
        ids = np.arange(self.rows, dtype=np.int64)
        columns = self.events.columns(ids)
        outcomes = [
            difference(self._expected_counts(ids, columns), self._counts()),
            difference(self._expected_steps(columns), self._table("steps", "id", "cost", "steps")),
            self._check_numbers(columns),
        ]
        return ChaosOutcome(*(sum(part) for part in zip(*map(_parts, outcomes), strict=True)))

    def _expected_counts(self, ids: Integers, columns: Mapping[str, Integers]) -> list[Integers]:
        ends = self.events.time_us(ids) // WINDOW_US
        first = int(ends[0]) if len(ends) else 0
        groups = (ends - first) * OWNERS + columns["owner"]
        events = np.bincount(groups)
        cost = np.bincount(groups, columns["value"] * 3 + 1).astype(np.int64)
        seen = np.flatnonzero(events)
        return [
            (seen // OWNERS + first + 1) * WINDOW_US,
            seen % OWNERS,
            events[seen],
            cost[seen],
        ]

    def _counts(self) -> list[Integers]:
        table = self._read("counts")
        ends = pc.struct_field(table["window"], "end").cast(pa.int64())
        return [ends.to_numpy(), *(table[name].to_numpy() for name in ("owner", "events", "cost"))]

    def _expected_steps(self, columns: Mapping[str, Integers]) -> list[Integers]:
        left = columns["id"][LEFT::ROUTES]
        left = left[left + 1 < self.rows]
        # Halving n until nothing is left takes as many steps as n has binary digits.
        steps = np.frexp(columns["value"][left])[1].astype(np.int64)
        return [left, columns["value"][left + 1] * 3 + 1, steps]

    def _check_numbers(self, columns: Mapping[str, Integers]) -> ChaosOutcome:
        owner, number, ids = self._table("numbers", "owner", "number", "id")
        rows = difference([columns["owner"], columns["id"]], [owner, ids])
        numbers = np.unique(np.stack([owner, number]), axis=1)
        repeated = len(number) - numbers.shape[1]
        highest = np.zeros(OWNERS, dtype=np.int64)
        np.maximum.at(highest, owner, number)
        gaps = int(highest.sum()) - numbers.shape[1]
        order = np.lexsort((number, columns["bucket"][ids], ids % 2, owner))
        way = np.stack([owner, ids % 2, columns["bucket"][ids]])[:, order]
        same_way = (way[:, 1:] == way[:, :-1]).all(axis=0)
        disordered = int((same_way & (np.diff(ids[order]) <= 0)).sum())
        return ChaosOutcome(
            rows.rows, max(rows.lost, gaps), max(rows.duplicated, repeated), disordered
        )

    def _read(self, name: str) -> pa.Table:
        path = self.folder / name
        files = sorted(str(file) for file in path.glob("epoch=*/*.parquet"))
        return ds.dataset(files, format="parquet").to_table()

    def _table(self, name: str, *columns: str) -> list[Integers]:
        table = self._read(name)
        return [table[column].to_numpy() for column in columns]


class ChaosFlow(ChaosTables):
    """One run: the flow, its probe, its tables and their check."""

    def __init__(self, rate: float, seconds: float, folder: Path) -> None:
        super().__init__(rate, int(rate * seconds), folder, now_us())
        self._valve = release_by_file(self.flow, folder / "released")
        self._back: dict[int, int] = {}
        self.probe = Probe(self._push, self._echo.subscribe(name="echoes"), self._take)

    def _arrivals(self, events: Stream) -> Stream:
        self._probes = self.flow.memory(EVENT, name="probes")
        return events.union(_timed(self._probes)).name("arrivals")

    def _push(self, number: int) -> None:
        """A pair with an id that no event has."""
        ids = np.full(2, -1 - number, dtype=np.int64)
        now = pa.array(np.full(2, now_us())).view(EVENT.field("time").type)
        routes, values = np.array([LEFT, RIGHT]), np.array([VALUES, 1])
        columns = [ids, ids, ids % BUCKETS, np.full(2, OWNERS), routes, values, now]
        self._probes.push(pa.record_batch(columns, schema=EVENT))

    def _take(self, rows: pa.Table) -> Iterable[int]:
        """A probe is back when both its rows were numbered and their pair was halved."""
        for number in (-1 - rows["id"].to_numpy()).tolist():
            self._back[number] = self._back.get(number, 0) + 1
            if self._back[number] == BACK:
                yield number

    def close(self) -> None:
        """Send no more probes; the events that are left come at once, and then the flow ends."""
        self._valve.release()
        self.probe.stop()
        self._probes.close()


def _timed(stream: Stream) -> Stream:
    # A source that is restarted has no rows for a while; the others must wait for it.
    return stream.withWatermark("time", "0 seconds", idleEpochs=1_000_000)


def difference(expected: list[Any], found: list[Any]) -> ChaosOutcome:
    """Rows that are missing and rows that are too many, of tables given as columns.

    >>> difference([np.array([1, 2, 3])], [np.array([2, 3, 3])])
    ChaosOutcome(rows=3, lost=1, duplicated=1, disordered=0)
    """
    there = len(expected[0])
    both = np.stack([np.concatenate(pair) for pair in zip(expected, found, strict=True)])
    order = np.lexsort(both)
    ordered = both[:, order]
    new = np.ones(ordered.shape[1], dtype=np.int64)
    new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    group = np.cumsum(new) - 1
    surplus = np.bincount(group, np.where(order < there, -1, 1))
    return ChaosOutcome(
        len(found[0]), int(-surplus[surplus < 0].sum()), int(surplus[surplus > 0].sum()), 0
    )


def _parts(outcome: ChaosOutcome) -> tuple[int, int, int, int]:
    return outcome.rows, outcome.lost, outcome.duplicated, outcome.disordered
