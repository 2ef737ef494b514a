"""What is timed gives the same results on both sides."""

from typing import Any

import pyarrow as pa
import pyspark.sql.functions as spark_functions
from pyspark.sql import SparkSession

from penstock import functions as our_functions
from penstock.bench.functions import EXPRESSIONS, made, rows_of
from penstock.expressions import compile_expression


def rounded(value: Any) -> Any:
    return float(f"{value:.13g}") if isinstance(value, float) else value


def test_both_sides_compute_the_same(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = rows_of(50)
    columns = [made(text, spark_functions).alias(str(i)) for i, text in enumerate(EXPRESSIONS)]
    theirs = spark.createDataFrame(rows).select(*columns).toArrow()
    (batch,) = rows.combine_chunks().to_batches()
    for i, text in enumerate(EXPRESSIONS):
        compiled = compile_expression(made(text, our_functions), rows.schema)
        mine: pa.Array = compiled.evaluate(batch)
        assert list(map(rounded, mine.to_pylist())) == list(
            map(rounded, theirs[str(i)].to_pylist())
        ), text
