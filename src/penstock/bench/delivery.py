"""``penstock bench delivery``: what each promise costs, and each way to keep it.

Tuples go through two operators, divided anew before each, with as many hosts as replicas; the sink
checks that every one of them came once.  Nothing fails.  Figures are per 100,000 tuples: seconds at
full speed; messages between nodes of all kinds, however many travel together, and what replicas of
a stage send each other, both at one rate for all: ends of epochs and what is gathered for others go
by the clock, so that a slower run has more of them.  Compare the DADSTORM paper, Section 5.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.flow import Flow
from penstock.api.regimes import Causal, Regime, Replicated
from penstock.engine.spark.session import local_session
from penstock.errors import InvariantError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KINDS", "bench_delivery"]

PER = 100_000
"""Number of tuples that the figures are given for."""
RUN_S_MAX = 120.0
HEAD_BYTES = 16
"""Of a tuple: its number and its key."""
RATE = 50_000
"""Tuples a second while messages are counted."""
FEWER = 4
"""Mirrored rows go to every replica, so a run with mirrors uses this many times fewer rows."""
COMPARED = (0, 3)
"""At most once, and exactly once by records: of these there are several rounds."""

KINDS: tuple[tuple[str, str, Regime], ...] = (
    ("at-most-once", "Causal", Causal()),
    ("at-least-once", "Causal", Causal()),
    ("exactly-once", "Causal", Causal()),
    ("exactly-once", "Replicated", Replicated()),
    ("exactly-once", "mirrored", Replicated(mirrored=True)),
    ("exactly-once", "acknowledged", Replicated(acknowledged=True)),
)
"""Guarantee, the regime's name in the table, and the regime."""


@dataclass
class _Measured:
    seconds: list[float] = field(default_factory=list)
    messages: float = 0.0
    replica_bytes: float = 0.0


def bench_delivery(tuples: int, rounds: int) -> dict[str, Any]:
    """Run everything; one row per kind, number of replicas and size of tuples."""
    measured: dict[tuple[int, int, int], _Measured] = {}
    for replicas in (2, 4):
        spark = local_session("penstock bench delivery", hosts=replicas)
        try:
            _run(spark, KINDS[0], replicas, 100, tuples)  # warm up
            for number in range(rounds if replicas == 4 else 1):
                for size in (100, 1000):
                    for kind in COMPARED if number else range(len(KINDS)):
                        found = measured.setdefault((kind, replicas, size), _Measured())
                        took_s, _, _ = _run(spark, KINDS[kind], replicas, size, tuples)
                        found.seconds.append(took_s)
                        if not number:
                            _, *counted = _run(spark, KINDS[kind], replicas, size, PER, RATE)
                            found.messages, found.replica_bytes = counted
        finally:
            spark.stop()
    return {
        "rows": [_row(key, found) for key, found in measured.items()],
        "ratio_replicated": round(statistics.geometric_mean(_ratios(measured).values()), 3),
        "ratios": {str(size): round(ratio, 3) for size, ratio in _ratios(measured).items()},
        "per_tuples": PER,
        "tuples": tuples,
        "rounds": rounds,
    }


def _row(key: tuple[int, int, int], found: _Measured) -> dict[str, Any]:
    kind, replicas, size = key
    guarantee, regime, _ = KINDS[kind]
    return {
        "guarantee": guarantee,
        "regime": regime,
        "replicas": replicas,
        "tuple_bytes": size,
        "messages": round(found.messages),
        "replica_bytes": round(found.replica_bytes),
        "seconds": round(statistics.median(found.seconds), 4),
    }


def _ratios(measured: dict[tuple[int, int, int], _Measured]) -> dict[int, float]:
    """Exactly once by records against at most once, with four replicas, per size of tuples."""
    few, much = COMPARED
    return {
        size: statistics.median(measured[much, 4, size].seconds)
        / statistics.median(measured[few, 4, size].seconds)
        for size in (100, 1000)
    }


def _run(
    spark: SparkSession,
    kind: tuple[str, str, Regime],
    replicas: int,
    size: int,
    tuples: int,
    rate: int | None = None,
) -> tuple[float, float, float]:
    """Seconds, messages and bytes between replicas, per 100,000 tuples."""
    guarantee, name, regime = kind
    rows = tuples // FEWER if name == "mirrored" and rate is None else tuples
    flow = Flow("delivery")
    make: Any = Tuples(size)
    source = flow.generate(make, rows=rows, rate=rate, shards=replicas, name="tuples")
    first = source.keyBy("key").name("first").filter("n >= 0")
    second = first.keyBy("n").name("second").select("n")
    sink = second.memory(name="out")
    options: dict[str, Any] = {"guarantee": guarantee, "regime": regime}
    query = flow.start(spark, hosts=replicas, **options)
    began = time.monotonic()
    try:
        query.awaitTermination(RUN_S_MAX)
    finally:
        query.stop()
    seconds = time.monotonic() - began
    found = sink.toTable()
    whole = pc.sum(found["n"]).as_py() == rows * (rows - 1) // 2
    if found.num_rows != rows or not whole:
        raise InvariantError(f"{guarantee} under {name}: {found.num_rows} of {rows} tuples came")
    stages = query.lastProgress["stages"] if query.lastProgress else []
    messages = sum(stage["messages"] for stage in stages)
    replica_bytes = sum(stage["replicaBytes"] for stage in stages)
    share = PER / rows
    stderr.print(
        f"{guarantee}, {name}, {replicas} replicas, {size} B: {rows / seconds:,.0f} tuples/s",
        highlight=False,
    )
    return seconds * share, messages * share, replica_bytes * share


class Tuples:
    """Makes tuples of one size: a number, a key, and bytes that no stage reads."""

    def __init__(self, size: int) -> None:
        self.body = size - HEAD_BYTES
        self._bodies: pa.Array | None = None

    def __call__(self, offset: int, n: int, stride: int) -> pa.RecordBatch:
        numbers = np.arange(offset, offset + n * stride, stride, dtype=np.int64)
        if self._bodies is None or len(self._bodies) < n:
            rows = pa.py_buffer(np.zeros(n * self.body, dtype=np.uint8))
            self._bodies = pa.Array.from_buffers(pa.binary(self.body), n, [None, rows])
        return pa.record_batch(
            {
                "n": pa.array(numbers),
                "key": pa.array(numbers * 2_654_435_761 % 1_000_003),
                "body": self._bodies.slice(0, n),
            }
        )
