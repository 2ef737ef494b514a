"""``penstock bench selective``: what it costs when state is not kept apart by time.

Sums per user in short windows, under the regime Lazy.  One shard of the source is late: every few
seconds it holds its rows and the end of its epoch back for 400 ms, as in Gog, Isard and Abadi
(2021), Section 5.4.  With *selective* rollback the rows that others send of later epochs are worked
on meanwhile, because what was done for one epoch can be undone without another's; without it they
have to wait for their turn.  Response is from the end of a window to its result on the driver; both
kinds run in turn, and every sum is checked.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.api import functions as F
from penstock.api.flow import Flow
from penstock.api.regimes import Lazy
from penstock.bench.ysb import LEAD_S
from penstock.connectors.base import Position, Reader, SourceContext
from penstock.connectors.generate import Generate
from penstock.demos.ysb import Ysb, percentiles
from penstock.engine.spark.session import local_session
from penstock.errors import InvariantError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["LateSource", "bench_selective"]

HOSTS = 4
SOURCES = 2
SUMMERS = 2
USERS = 2_000
WINDOW_US = 100_000
EPOCH = "20 ms"
EVERY_S = 5.0
LATE_S = 0.4
RUN_S_MAX = 300.0


class PurchaseEvents:
    """User and amount are functions of the offset; event time follows the wall clock."""

    def __init__(self, rate: float, origin_us: int) -> None:
        self.us_per_event = 1e6 / rate
        self.origin_us = origin_us

    def __call__(self, offset: int, n: int, stride: int = 1) -> pa.RecordBatch:
        offsets = np.arange(offset, offset + n * stride, stride, dtype=np.int64)
        return pa.record_batch(
            {
                "user": (offsets * 7919) % USERS,
                "amount": offsets % 100,
                "at": pa.array(self.at_us(offsets)).view(pa.timestamp("us", tz="UTC")),
            }
        )

    def at_us(self, offsets: Any) -> Any:
        """Event time of offsets (µs)."""
        return self.origin_us + (offsets * self.us_per_event).astype(np.int64)


class LateSource(Generate):
    """Generates rows; its shard 0 is late now and then."""

    def open(self, context: SourceContext) -> Reader:
        reader = super().open(context)
        return _LateReader(reader, self.start_us or 0) if context.shard == 0 else reader


class _LateReader(Reader):
    """Holds rows and the end of the epoch back for 400 ms, every five seconds."""

    def __init__(self, reader: Reader, start_us: int) -> None:
        self._reader = reader
        self._start_us = start_us
        self._late = False

    def read(self, rows_max: int, now_us: int, until: Position = None) -> pa.RecordBatch | None:
        since_s = (now_us - self._start_us) / 1e6
        self._late = until is None and since_s > EVERY_S and since_s % EVERY_S < LATE_S
        return None if self._late else self._reader.read(rows_max, now_us, until)

    def read_again(self, rows: int) -> pa.RecordBatch | None:
        return self._reader.read_again(rows)

    def epoch_ended(self) -> bool | None:
        return False if self._late else None

    def position(self) -> Position:
        return self._reader.position()

    def journal(self) -> Any | None:
        return self._reader.journal()

    def exhausted(self) -> bool:
        return self._reader.exhausted()

    def wait_s(self, now_us: int) -> float:
        return 0.005 if self._late else self._reader.wait_s(now_us)


class Sums:
    """One run."""

    def __init__(self, rate: float, seconds: float, selective: bool) -> None:
        origin = Ysb.soon(LEAD_S)
        self.rows = int(rate * seconds)
        self.events = PurchaseEvents(rate, round(origin.timestamp() * 1e6))
        self.flow = Flow("sums")
        source = LateSource(
            self.events,
            rate=rate,
            rows=self.rows,
            shards=SOURCES,
            start_us=self.events.origin_us,
        )
        keyed = (
            self.flow.source(source, "events")
            .withWatermark("at", "0 seconds")
            .keyBy("user", shards=SUMMERS)
            .name("keyed")
        )
        sums = (
            keyed.groupBy(F.window("at", f"{WINDOW_US} us"), "user")
            .agg(F.sum("amount").alias("amount"))
            .name("sums")
            .withRegime(Lazy(every="1 second", selective=selective))
        )
        self.out = sums.subscribe(name="results")
        self.results: list[tuple[int, pa.Table]] = []

    def collect(self) -> None:
        """Take results until the flow ends."""
        for epoch, rows in self.out:
            self.results.append((self.out.received_ns[epoch], rows))

    def responses_ms(self) -> tuple[float, ...]:
        """Per window: from its end to its last result."""
        latest: dict[int, int] = {}
        for arrived_ns, rows in self.results:
            for end_us in self._ends(rows).tolist():
                latest[end_us] = max(arrived_ns, latest.get(end_us, 0))
        last_us = self.events.origin_us + int(self.rows * self.events.us_per_event)
        return tuple(
            (arrived_ns / 1000 - end_us) / 1000
            for end_us, arrived_ns in sorted(latest.items())
            if end_us <= last_us
        )

    @staticmethod
    def _ends(rows: pa.Table) -> Any:
        ends = pa.compute.struct_field(rows["window"], "end").cast(pa.int64())
        return np.unique(ends.to_numpy())

    def wrong(self) -> int:
        """How many users' sums differ from what the generator made."""
        got = np.zeros(USERS, dtype=np.int64)
        for _, rows in self.results:
            np.add.at(got, rows["user"].to_numpy(), rows["amount"].to_numpy())
        wanted = np.zeros(USERS, dtype=np.int64)
        for first in self._chunks():
            offsets = np.arange(first, min(first + (1 << 20), self.rows), dtype=np.int64)
            np.add.at(wanted, (offsets * 7919) % USERS, offsets % 100)
        return int((got != wanted).sum())

    def _chunks(self) -> Iterator[int]:
        return iter(range(0, self.rows, 1 << 20))


def bench_selective(rate: float, seconds: float, rounds: int) -> dict[str, Any]:
    """Both kinds in turn; response times with and without."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    spark = local_session("penstock bench selective", hosts=HOSTS)
    try:
        for number in range(rounds):
            for kind in found:
                stderr.print(f"round {number + 1} of {rounds}: {kind}", highlight=False)
                found[kind] += _run(spark, rate, seconds, kind == "with")
    finally:
        spark.stop()
    return {
        "response_ms": {kind: _summary(values) for kind, values in found.items()},
        "rate": rate,
        "seconds": seconds,
        "rounds": rounds,
        "late_ms": LATE_S * 1000,
        "every_s": EVERY_S,
        "window_ms": WINDOW_US / 1000,
    }


def _summary(values: list[float]) -> dict[str, float]:
    return percentiles(tuple(values)) | {"mean": round(float(np.mean(values)), 3)}


def _run(spark: SparkSession, rate: float, seconds: float, selective: bool) -> tuple[float, ...]:
    sums = Sums(rate, seconds, selective)
    query = sums.flow.start(spark, hosts=HOSTS, epochInterval=EPOCH)
    collector = threading.Thread(target=sums.collect, daemon=True)
    collector.start()
    try:
        query.awaitTermination(RUN_S_MAX)
    finally:
        query.stop()
    collector.join(5)
    if sums.wrong():
        raise InvariantError(f"selective={selective}: {sums.wrong()} users' sums are wrong")
    return sums.responses_ms()
