"""``penstock bench kafka``: Kafka, windowed counts, Kafka, exactly once, each count checked.

Views of ads come as JSON at a steady rate; their number per ad and window of 100 ms goes to another
topic, each epoch in one transaction.  Response is from the end of a window to the moment in which a
read-committed reader, a process of its own, has all counts of that window; from the end of an epoch
at the source to its commit is the flow's own part of that.  The highest rate is how fast the flow
gets through messages that are there already.  Broker, writer and reader share the machine with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import functions as F
from penstock.api.flow import Flow
from penstock.engine.spark.session import local_session
from penstock.errors import InvariantError
from penstock.terminal import stderr
from penstock.testing.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bench_kafka", "counting"]

PARTITIONS = 2
HOSTS = 2
WINDOW_MS = 100
WARM_UP_WINDOWS = 20
BACKLOG = 2_000_000
"""Messages that are there already, for the highest rate."""
SIZES = (100, 1_000)
SPARE_S = 120.0


def counting(address: str, source: str, target: str) -> Flow:
    """The flow: views per ad and window."""
    flow = Flow("kafka_counts")
    views = flow.kafka(
        address,
        subscribe=source,
        startingOffsets="earliest",
        value="json",
        schema="ad STRING, kind STRING",
        columns=["value", "timestamp"],
        name="views",
    )
    counts = (
        views.withWatermark("timestamp", "0 seconds")
        .filter("kind = 'view'")
        .groupBy(F.window("timestamp", f"{WINDOW_MS} ms"), "ad")
        .agg(F.count("*").alias("views"))
    )
    counts.mapInArrow(_flat, "ad STRING, views BIGINT, end_ms BIGINT").kafka(
        address, topic=target, key="ad", value="json", name="counts"
    )
    return flow


def _flat(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ends = pc.struct_field(batch["window"], "end").cast(pa.int64())
        columns = {"ad": batch["ad"], "views": batch["views"], "end_ms": pc.divide(ends, 1000)}
        yield pa.record_batch(columns)


def bench_kafka(seconds: float, rate: int, backlog: int = BACKLOG) -> dict[str, Any]:
    """Run the benchmark; give its figures."""
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        broker = KafkaBroker(Path(scratch) / "broker")
        broker.start()
        spark = local_session("penstock bench kafka", hosts=HOSTS)
        try:
            run = _Run(broker, spark, Path(scratch))
            response = run.steady(rate, seconds, SIZES[0])
            _say(f"{rate:,} messages/s: {response}")
            rates = {}
            for size in SIZES:
                rates[f"{size} B"] = run.backlog(backlog * SIZES[0] // size, size)
                _say(f"{size} B: {rates[f'{size} B']:,} messages/s")
        finally:
            spark.stop()
            broker.kill()
    return {
        "messages_per_s": rate,
        "response": response,
        "highest_messages_per_s": rates,
        "window_ms": WINDOW_MS,
        "hosts": HOSTS,
        "partitions": PARTITIONS,
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }


class _Run:
    """Runs of the flow, each with topics of its own."""

    def __init__(self, broker: KafkaBroker, spark: SparkSession, scratch: Path) -> None:
        self._broker, self._spark, self._scratch = broker, spark, scratch

    def steady(self, rate: int, seconds: float, size: int) -> dict[str, Any]:
        """At a fixed rate: how long after its end a window can be read."""
        source, target = self._topics()
        query = self._start(source, target)
        reader = self._reader(target, seconds + SPARE_S)
        try:
            fed = self._feed(source, rate, seconds, size)
            published = [one["sinks"][0]["latencyMs"] for one in query.recentProgress]
            seen = _result(reader, seconds + SPARE_S)
        finally:
            reader.kill()
            query.stop()
            failure = query.exception()
        if failure is not None:
            raise failure
        _check(fed, seen)
        ends = sorted(int(end) for end in fed["views"])[WARM_UP_WINDOWS:]
        response = [seen["seen_ms"][str(end)] - end for end in ends]
        return {
            "end_of_window_to_visible_ms": _percentiles(response),
            "end_of_epoch_to_published_ms": _percentiles(
                [ms for ms in published if ms is not None]
            ),
            "windows": len(response),
            "writer_late_s": fed["late_s"],
        }

    def backlog(self, messages: int, size: int) -> int:
        """How many messages a second it gets through that are there already."""
        source, target = self._topics()
        fed = self._feed(source, 0, messages / 100_000, size)
        reader = self._reader(target, SPARE_S)
        query = self._start(source, target)
        try:
            while not query.lastProgress or not query.lastProgress["numInputRows"]:
                time.sleep(0.001)
            began_ms = time.time() * 1000
            before = query.lastProgress["numInputRows"]
            seen = _result(reader, SPARE_S)
        finally:
            reader.kill()
            query.stop()
            failure = query.exception()
        if failure is not None:
            raise failure
        _check(fed, seen)
        total = sum(fed["views"].values())
        return round((total - before) / (max(seen["seen_ms"].values()) - began_ms) * 1000)

    def _topics(self) -> tuple[str, str]:
        name = uuid.uuid4().hex[:8]
        self._broker.create_topic(f"in-{name}", PARTITIONS)
        self._broker.create_topic(f"out-{name}", 1)
        return f"in-{name}", f"out-{name}"

    def _start(self, source: str, target: str) -> Any:
        query = counting(self._broker.address, source, target).start(
            self._spark,
            hosts=HOSTS,
            checkpointLocation=str(self._scratch / f"store-{source}"),
            progressInterval="50 ms",
        )
        while not query.lastProgress:
            time.sleep(0.01)
        return query

    def _feed(self, topic: str, rate: int, seconds: float, size: int) -> dict[str, Any]:
        numbers = (PARTITIONS, rate, seconds, size, WINDOW_MS)
        process = _spawn("feed", self._broker.address, topic, *map(str, numbers))
        return _result(process, seconds + SPARE_S)

    def _reader(self, topic: str, seconds: float) -> subprocess.Popen[str]:
        process = _spawn("read", self._broker.address, topic, str(seconds))
        if process.stdout is not None:
            process.stdout.readline()  # it is ready
        return process


def _percentiles(values: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1), "max": round(max(values), 1)}


def _spawn(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.bench.kafka_load", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str], within_s: float) -> dict[str, Any]:
    try:
        printed, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def _check(fed: dict[str, Any], seen: dict[str, Any]) -> None:
    wrong = [end for end, views in fed["views"].items() if seen["counts"].get(end) != views]
    if wrong or seen["doubled"]:
        raise InvariantError(
            f"{len(wrong)} of {len(fed['views'])} windows have wrong counts, {seen['doubled']} "
            "counts came twice"
        )


def _say(text: str) -> None:
    stderr.print(text, highlight=False)
