"""``penstock bench functions``: the time of each function on a column, beside Spark's.

Both evaluate the same Python text on the same rows with one thread.  Spark's rows are cached, its
result goes to the ``noop`` sink, and the time of selecting the columns alone is taken off; ours are
batches as large as a source cuts them.  Each time is the least of several, with a run before that
does not count, so that neither compiles, allocates or reads while it is timed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from penstock.api import functions as our_functions
from penstock.engine.spark.session import local_session
from penstock.expressions import compile_expression
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EXPRESSIONS", "bench_functions", "rows_of"]

BATCH = 65_536
EXPRESSIONS = """
F.col("l") + 1
F.col("d") * 2.5
F.col("l") % 7
F.col("l").cast("string")
F.col("n").cast("bigint")
F.when(F.col("l") > 500, "high").otherwise("low")
F.coalesce("l", F.lit(0))
F.abs("l")
F.sqrt("d")
F.log("d")
F.round("d", 2)
F.pow("d", F.lit(2.0))
F.sin("d")
F.greatest("l", "k")
F.upper("s")
F.length("s")
F.substring("s", 2, 5)
F.concat("s", F.lit("-"), "n")
F.contains("s", F.lit("ab"))
F.col("s").like("%a_b%")
F.trim("s")
F.lpad("s", 24, "*")
F.instr("s", "b")
F.replace("s", F.lit("a"), F.lit("xy"))
F.translate("s", "abc", "xyz")
F.initcap("s")
F.reverse("s")
F.split("s", " ")
F.split("s", "[ -]")
F.substring_index("s", " ", 1)
F.regexp_extract("s", "([a-z]+) ([a-z]+)", 2)
F.regexp_replace("s", "[aeiou]", "_")
F.col("s").rlike("^[a-m]")
F.base64("s")
F.hex("s")
F.ascii("s")
F.hash("s")
F.hash("l")
F.xxhash64("s")
F.md5("s")
F.sha2("s", 256)
F.crc32("s")
F.year("t")
F.hour("t")
F.date_trunc("hour", "t")
F.date_format("t", "yyyy-MM-dd HH:mm")
F.to_timestamp("ts")
F.unix_timestamp("t")
F.date_add("x", 30)
F.add_months("x", 3)
F.months_between("t", F.lit("2024-01-01"))
F.last_day("x")
F.from_utc_timestamp("t", "Europe/Berlin")
F.size("a")
F.element_at("a", 1)
F.array_contains("a", 7)
F.array_distinct("a")
F.array_max("a")
F.sort_array("a")
F.array_join("w", ",")
F.transform("a", lambda x: x + 1)
F.filter("a", lambda x: x > 50)
F.exists("a", lambda x: x == 7)
F.aggregate("a", F.lit(0), lambda acc, x: acc + x)
F.struct("l", "s")
F.array("l", "k")
F.from_json("j", "id bigint, kind string, price double")
F.from_json("j", "id int, price decimal(10, 2)")
F.get_json_object("j", "$.kind")
F.to_json(F.struct("l", "s"))
""".strip().splitlines()


def rows_of(count: int) -> pa.Table:
    """Rows that follow from their number: numbers, texts, times, arrays and JSON."""
    random = np.random.default_rng(7)
    number = random.integers(0, 1000, count)
    words = pa.array(["able baker", "cab-driver ab", "dear fable x", "lamb a b c", "zebra"])
    text = words.take(pa.array(number % 5))
    micros = pa.array(1_700_000_000_000_000 + random.integers(0, 10**13, count))
    times = micros.cast(pa.timestamp("us", "UTC"))
    offsets = pa.array(np.arange(0, 4 * count + 1, 4), pa.int32())
    elements = pa.array(random.integers(0, 100, 4 * count), pa.int32())
    json = pa.array(
        [
            f'{{"id": {i}, "kind": "view", "page": "/p/{i % 90}", "price": {i % 97}.5, "ok": true}}'
            for i in range(1000)
        ]
    ).take(pa.array(number))
    return pa.table(
        {
            "l": pa.array(number),
            "k": pa.array(random.integers(0, 1000, count)),
            "d": pa.array(random.random(count) * 1000),
            "s": text,
            "n": pa.array(number).cast(pa.string()),
            "t": times,
            "ts": times.cast(pa.timestamp("s", "UTC"), safe=False)
            .cast(pa.timestamp("s"))
            .cast(pa.string()),
            "x": times.cast(pa.timestamp("us")).cast(pa.date32(), safe=False),
            "a": pa.ListArray.from_arrays(offsets, elements),
            "w": pa.ListArray.from_arrays(offsets, elements.cast(pa.string())),
            "j": json,
        }
    )


def bench_functions(
    spark_functions: Any, rows: int = 1_000_000, repeats: int = 3, only: str | None = None
) -> dict[str, Any]:
    """Time every expression (or those that contain ``only``) on both sides."""
    chosen = [text for text in EXPRESSIONS if only is None or only in text]
    table = rows_of(rows)
    ours = {text: _ours(text, table, repeats) for text in chosen}
    spark = local_session("penstock bench functions", master="local[1]", conf=_conf())
    try:
        theirs = _theirs(spark, spark_functions, chosen, table, repeats)
    finally:
        spark.stop()
    ratios = {text: round(ours[text] / theirs[text], 3) for text in chosen}
    functions = [
        {
            "expression": text,
            "penstock_ns": round(ours[text] / rows * 1e9, 1),
            "spark_ns": round(theirs[text] / rows * 1e9, 1),
            "ratio": ratios[text],
        }
        for text in chosen
    ]
    median = statistics.median(ratios.values())
    return {"rows": rows, "median_ratio": median, "functions": functions}


def _conf() -> dict[str, str]:
    return {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}


def made(text: str, functions: Any) -> Any:
    """The column that a text means with a module of functions."""
    return eval(text, {"F": functions})


def _least(run: Callable[[], Any], repeats: int) -> float:
    run()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _ours(text: str, table: pa.Table, repeats: int) -> float:
    compiled = compile_expression(made(text, our_functions), table.schema, what="select")
    batches = table.combine_chunks().to_batches(BATCH)

    def run() -> None:
        for batch in batches:
            compiled.evaluate(batch)

    return _least(run, repeats)


def _theirs(
    spark: SparkSession, functions: Any, texts: Sequence[str], table: pa.Table, repeats: int
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        parquet.write_table(table, f"{folder}/rows.parquet")
        frame = spark.read.parquet(folder).coalesce(1).persist()
        frame.count()
        found = {}
        for text in texts:
            used = [name for name in table.column_names if f'"{name}"' in text]
            reading = _computed(frame.select(*used), repeats)
            column = made(text, functions).alias("made")
            whole = _computed(frame.select(*used, column), repeats)
            # Where reading is all there is to measure, a nanosecond a row.
            found[text] = max(whole - reading, 1e-9 * len(table))
            stderr.print(f"{text}: {found[text] / len(table) * 1e9:.1f} ns", highlight=False)
        frame.unpersist()
    return found


def _computed(frame: Any, repeats: int) -> float:
    return _least(lambda: frame.write.format("noop").mode("append").save(), repeats)
