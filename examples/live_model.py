"""A model that follows the data: Spark fits it again and again while the flow looks it up.

Machines report their load and their heat.  Every two seconds all reports so far go to Spark's
linear regression as a DataFrame; the line that it finds comes back as a stream and is published as
a table.  Every report is held against the newest line there is, and never waits for a fit: those
that are far hotter than their load explains are what the flow is about.

Run it with ``python examples/live_model.py``, or with ``penstock run examples/live_model.py:flow``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock import Flow, Stream, localSession
from penstock.library.adjacency import scattered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPORTS = 24_000
SLOPE, BASE, FAULT = 3.0, 20.0, 500
"""Heat is BASE + SLOPE * load; one report in FAULT is 40 degrees hotter."""
LINE = "model int, slope double, base double"


def make_reports(offset: int, n: int) -> pa.RecordBatch:
    """Reports of a load from 0 to 10, and the heat that goes with it."""
    number = np.arange(offset, offset + n)
    load = (scattered(offset, n) % 1000) / 100
    heat = BASE + SLOPE * load + np.where(number % FAULT == 0, 40.0, 0.0)
    return pa.record_batch({"report": number, "load": load, "heat": heat})


def fit(reports: DataFrame) -> DataFrame:
    """The line through all reports."""
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.regression import LinearRegression

    points = VectorAssembler(inputCols=["load"], outputCol="features").transform(reports)
    line = LinearRegression(labelCol="heat", solver="normal").fit(points)
    row = (1, float(line.coefficients[0]), float(line.intercept))
    return reports.sparkSession.createDataFrame([row], LINE)


def too_hot(made: Flow, seconds: float) -> tuple[Stream, Stream]:
    """The reports that are too hot, and the lines that they were held against."""
    reports = made.generate(
        make_reports, rate=REPORTS / seconds, rows=REPORTS, shards=1, name="reports"
    )
    lines = reports.spark(fit, schema=LINE, every="2 seconds", keep="all", name="fits")
    newest = lines.toTable("line")
    held = reports.withColumn("model", "cast(1 AS int)").asOf(newest).lookup(newest, on="model")
    return held.filter("heat > base + slope * load + 20").select("report", "load", "heat"), lines


def flow() -> Flow:
    """A flow that prints what is too hot."""
    made = Flow("live_model")
    too_hot(made, seconds=20)[0].console(rows=5)
    return made


def main() -> None:
    """Run to the end and check every line and every report."""
    made = Flow("live_model")
    hot, lines = too_hot(made, seconds=6)
    reported, fitted = hot.memory(), lines.memory()
    spark = localSession("live model", hosts=2)
    try:
        made.start(spark, hosts=2).awaitTermination(150)
    finally:
        spark.stop()
    fits = fitted.toPylist()
    for line in fits:
        assert abs(line["slope"] - SLOPE) < 0.3, line
        assert abs(line["base"] - BASE) < 1.0, line
    numbers = [row["report"] for row in reported.toPylist()]
    first = min(numbers, default=REPORTS)
    assert sorted(numbers) == list(range(first, REPORTS, FAULT)), "wrongly told, or not told"
    print(
        f"{len(fits)} fits; {len(numbers)} of {REPORTS // FAULT} hot reports came after the first"
    )
    print(f"the last line, {fits[-1]['base']:.2f} + {fits[-1]['slope']:.3f} * load, is right")


if __name__ == "__main__":
    main()
