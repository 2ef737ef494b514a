"""The same Python text, with our functions and with PySpark's, gives the same columns.

Every name in the table of signatures occurs here: results, nulls, extremes and types are Spark's.
"""

import inspect
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as spark_functions
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock import Flow
from penstock import functions as our_functions
from penstock.expressions import compile_expression
from penstock.expressions.signatures import SIGNATURES
from penstock.operators.base import SourceOperator
from penstock.operators.project import Select
from penstock.testing.harness import Harness

HERE = Path(__file__).parent
WHEN = [
    datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC),
    None,
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2000, 6, 15, 12, 30, 45, 120_000, tzinfo=UTC),
    datetime(1582, 10, 4, 1, 2, 3, tzinfo=UTC),
]
DAYS = [
    date(2024, 2, 29), date(1969, 12, 31), None, date(2024, 1, 1), date(1999, 1, 3),
    date(1900, 1, 31),
]  # fmt: skip
ENTRY = pa.struct([pa.field("k", pa.string()), pa.field("v", pa.int32())])
ROWS = pa.table(
    {
        "i": pa.array([1, -7, None, 0, 2_000_000_000, -(2**31)], pa.int32()),
        "l": pa.array([5, -3, 9, None, 4_000_000_000, 2**63 - 1], pa.int64()),
        "b": pa.array([3, -2, 1, 50, None, -128], pa.int8()),
        "h": pa.array([300, -2, 7, None, 32767, -32768], pa.int16()),
        "d": pa.array([1.5, -0.0, math.nan, None, 2.675, -math.inf], pa.float64()),
        "u": pa.array([0.5, -0.25, 0.0, None, 1.0, -1.0], pa.float64()),
        "f": pa.array([0.1, 2.5, math.nan, -1.0, None, math.inf], pa.float32()),
        "m": pa.array(
            [Decimal("1.50"), Decimal("-2.35"), None, Decimal("0.00"), Decimal("99.99"),
             Decimal("-99.99")]
        ),
        "s": pa.array(["view", " Click Me ", None, "", "äöü_100%", "a,b;a.b c"]),
        "n": pa.array(["12", " -5 ", None, "0", "+7", "ab"]),
        "p": pa.array([True, False, None, True, False, None]),
        "q": pa.array([True, None, None, False, True, False]),
        "t": pa.array(WHEN, pa.timestamp("us", "UTC")),
        "x": pa.array(DAYS),
        "y": pa.array([b"abc", b"", None, b"\x00\xff", b"0123456789abcdef", "äö".encode()]),
        "a": pa.array(
            [[1, 2, None, 2], [], None, [None], [3, 1, 2], [5, 5, 1]], pa.list_(pa.int32())
        ),
        "c": pa.array([[2, 4], [1], [3], None, [3, None], [5]], pa.list_(pa.int32())),
        "g": pa.array(
            [[1.5, math.nan, -0.0], [0.0, -0.0], None, [], [math.nan, math.nan, 2.0], [None, -1.0]],
            pa.list_(pa.float64()),
        ),
        "w": pa.array(
            [["b", "a", None], [], None, ["", "x"], ["ä", "z", "ä"], ["only"]],
            pa.list_(pa.string()),
        ),
        "v": pa.array(
            [[[1, 2], [3]], [[], [None]], None, [None, [1]], [], [[7]]],
            pa.list_(pa.list_(pa.int32())),
        ),
        "r": pa.array(
            [{"k": "a", "v": 1}, {"k": None, "v": 2}, None, {"k": "", "v": None},
             {"k": "z", "v": -1}, {"k": "b", "v": 0}],
            ENTRY,
        ),
        "e": pa.array(
            [[("a", 1), ("b", None)], [], None, [("", 0)], [("z", -1), ("y", 5)], [("a", 7)]],
            pa.map_(pa.string(), pa.int32()),
        ),
        "o": pa.array(
            [[{"k": "a", "v": 1}, {"k": "b", "v": 2}], [], None, [{"k": "x", "v": None}],
             [{"k": "p", "v": 3}], [{"k": "q", "v": 4}, {"k": "r", "v": 5}]],
            pa.list_(ENTRY),
        ),
    }
)  # fmt: skip

JSON = [
    '{"a": 1, "b": "x", "c": [1, 2, null], "d": {"e": 1.5, "f": {"g": true}}}',
    '{"a": "1", "b": 5, "c": [], "d": {"e": "NaN"}}',
    '{"t": "2024-02-29T10:11:12.5Z", "x": "2024-02-29"}',
    '{"a": 99999999999, "b": null, "c": null, "d": null, "b": "later"}',
    '{"b": "q\\"uo\\\\te\\n\\u00e9", "a": -7, "c": [ 3 , {"z": 1} ]}',
    '{"d": {"e": 1e3, "h": [ "k  k" , 1 ] } }',
    '{"a": 1,, "b": "x"}',
    '{"a": 1} trailing',
    "[1, 2, 3]",
    "[{}, []]",
    "",
    "null",
    '  {"a":2.5,"b":true,"m":12.345,"p":true,"q":"true"}  ',
    None,
    '{"a": 1, "b": "unfinished',
    '{"b": {"n": [1, 2.50, "s"]}, "a": 3, "c": [[1], [2, 3]]}',
    "{}",
    "5",
    '"text"',
    '{"a": NaN, "b": "nan", "d": {"e": -Infinity}}',
    '{"a": 1, "a": 2, "b": "twice"}',
    '{"a": 1, "b": "x"}{"a": 2}',
    '{"A": 1, "B": "case"}',
    '{"a": 01}',
    '{"a": 1, "b": "line\nbreak"}',
    '{"a": 3, "b": "fine", "c": [7]}',
    '{"a": 4, "b": "as well"}',
]

NAMES = {
    "Decimal": Decimal,
    "date": date,
    "datetime": datetime,
    "timedelta": timedelta,
    "UTC": UTC,
    "nan": math.nan,
    "inf": math.inf,
}


def expressions(name: str) -> list[str]:
    """The lines of a file beside this one, one Python expression each."""
    lines = (HERE / "functions_as_spark" / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def made(text: str, functions: Any) -> Any:
    return eval(text, {"F": functions, **NAMES})


def plain(value: Any) -> Any:
    """Comparable: NaN as itself, one zero, floats as both sides print them, maps sorted."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.13g}") + 0.0
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def kind(of: pa.DataType) -> Any:
    """The type without what only Spark says of it: whether there can be nulls inside."""
    if pa.types.is_map(of):
        return ("map", kind(of.key_type), kind(of.item_type))
    if pa.types.is_list(of):
        return ("list", kind(of.value_type))
    if pa.types.is_struct(of):
        return (
            "struct",
            *((of.field(i).name, kind(of.field(i).type)) for i in range(of.num_fields)),
        )
    return str(of)


def ours(text: str, rows: pa.Table) -> pa.ChunkedArray:
    bound = compile_expression(made(text, our_functions), rows.schema, what="select")
    compiled = cloudpickle.loads(cloudpickle.dumps(bound))  # as it comes to a host
    values = [compiled.evaluate(batch) for batch in rows.to_batches(max_chunksize=2)]
    return pa.chunked_array(values, compiled.type)


def theirs(view: Any, texts: list[str]) -> dict[str, Any]:
    """Spark's columns by the text; an exception where Spark raises."""
    found = {}
    for start in range(0, len(texts), 150):
        part = texts[start : start + 150]
        try:
            columns = [made(text, spark_functions).alias(f"c{i}") for i, text in enumerate(part)]
            table = view.select(*columns).toArrow()
            found |= {text: table.column(f"c{i}") for i, text in enumerate(part)}
        except Exception:
            for text in part:
                try:
                    found[text] = view.select(made(text, spark_functions).alias("c")).toArrow()["c"]
                except Exception as error:
                    found[text] = error
    return found


def difference(text: str, spark: Any, rows: pa.Table) -> str | None:
    if isinstance(spark, Exception):
        return f"{text}: Spark raises {str(spark)[:300]}"
    try:
        mine = ours(text, rows)
    except Exception as error:
        return f"{text}: {type(error).__name__}: {error}"
    expected, got = ([plain(value) for value in one.to_pylist()] for one in (spark, mine))
    if (expected, kind(spark.type)) == (got, kind(mine.type)):
        return None
    return f"{text}:\n  ours  {got} {mine.type}\n  Spark {expected} {spark.type}"


FAMILIES = sorted(path.name for path in (HERE / "functions_as_spark").glob("*.txt"))


@pytest.mark.parametrize("family", FAMILIES)
def test_results_and_types_are_sparks(spark: SparkSession, family: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = pa.table({"j": JSON}) if family == "json.txt" else ROWS
    texts = expressions(family)
    found = theirs(spark.createDataFrame(rows), texts)
    problems = [problem for text in texts if (problem := difference(text, found[text], rows))]
    assert not problems, "\n".join(problems)


def test_every_function_is_compared() -> None:
    files = [*FAMILIES, "aggregates.list", "rows_from_a_row.list"]
    used = {name for file in files for text in expressions(file) for name in calls(text)}
    assert sorted(set(SIGNATURES) - used - ORDERED) == []


ORDERED = {"first", "first_value", "last", "last_value", "window_time"}
"""Of event time, which is not a matter of single rows: see tests/unit/operators/test_terms.py."""


def calls(text: str) -> list[str]:
    return re.findall(r"\bF\.(\w+)", text)


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_parameters_are_pysparks(name: str) -> None:
    theirs = inspect.signature(getattr(spark_functions, name)).parameters
    mine = inspect.signature(getattr(our_functions, name)).parameters
    assert [(one.name, one.kind, one.default) for one in mine.values()] == [
        (one.name, one.kind, one.default) for one in theirs.values()
    ]


ROWS_FROM_A_ROW = expressions("rows_from_a_row.list")


@pytest.mark.parametrize("outer", [False, True])
def test_rows_from_a_row_are_sparks(spark: SparkSession, outer: bool) -> None:
    frame = spark.createDataFrame(ROWS)
    for text in (one for one in ROWS_FROM_A_ROW if ("_outer" in one) == outer):
        expected = frame.select("i", made(text, spark_functions)).toArrow()
        operator = Select(["i", made(text, our_functions)])
        (schema,) = operator.output_schemas([ROWS.schema])
        kernel = operator.kernel()
        mine = pa.Table.from_batches([kernel(one) for one in ROWS.to_batches(3)], schema)
        assert plain(mine.to_pylist()) == plain(expected.to_pylist()), text
        assert [kind(one.type) for one in schema] == [kind(one.type) for one in expected.schema]


AGGREGATES = expressions("aggregates.list")


def test_aggregates_are_sparks(spark: SparkSession) -> None:
    """Grouped, with a group of nulls and one of a single row; the rows come in three batches."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = aggregated_rows()
    frame = spark.createDataFrame(rows).groupBy("key")
    columns = [made(text, spark_functions).alias(f"c{i}") for i, text in enumerate(AGGREGATES)]
    expected = sorted(frame.agg(*columns).toArrow().to_pylist(), key=lambda row: row["key"])
    types = frame.agg(*columns).toArrow().schema
    stream = Flow().memory(rows.schema).groupBy("key")
    problems = []
    for i, text in enumerate(AGGREGATES):
        stage = stream.agg(made(text, our_functions).alias("c"))._stage
        got = aggregated(stage, rows)
        mine = [plain(row["c"]) for row in got.to_pylist()]
        theirs = [plain(row[f"c{i}"]) for row in expected]
        if "collect" in text or "array_agg" in text:
            theirs = [sorted(one, key=repr) for one in theirs]
            mine = [sorted(one, key=repr) for one in mine]
        found, wanted = got.schema.field("c").type, types.field(f"c{i}").type
        if (mine, kind(found)) != (theirs, kind(wanted)):
            problems.append(f"{text}:\n  ours  {mine} {found}\n  Spark {theirs} {wanted}")
    assert not problems, "\n".join(problems)


def aggregated_rows() -> pa.Table:
    keys = ["a", "b", "a", "c", "a", "a", "c", "a", "a"]
    return pa.table(
        {
            "key": keys,
            "i": pa.array([3, 7, 1, None, 3, -5, None, None, 1], pa.int32()),
            "l": pa.array([10, 2**62, 12, None, 11, 9, None, 10, 11], pa.int64()),
            "d": pa.array([1.5, 2.0, 1e8 + 0.5, None, 1e8, 2.5, None, None, 1e8 + 1.25]),
            "z": pa.array([1.5, math.nan, -0.0, None, 0.0, math.inf, None, math.nan, 2.0]),
            "m": pa.array(
                [
                    Decimal(x) if x else None
                    for x in ("1.50", "2.25", "3.10", "", "9.99", "-1.00", "", "1.50", "0.05")
                ],
                pa.decimal128(6, 2),
            ),
            "s": pa.array(["x", "y", "z", None, "x", "", None, None, "ä"]),
            "p": pa.array([True, False, True, None, None, False, None, True, True]),
            "x": pa.array(
                [date(2024, 1, day) if day else None for day in (3, 1, 2, 0, 9, 4, 0, 0, 9)]
            ),
            "e": pa.array([2.0, 1.0, 4.0, None, 6.5, 8.0, 1.0, None, 1.0]),
        }
    )


def aggregated(stage: Any, rows: pa.Table) -> pa.Table:
    """What the stage makes of the rows, with what comes before it."""
    before = stage.inputs[0].stage.operator
    batches = rows.to_batches(3)
    if not isinstance(before, SourceOperator):
        kernel = before.kernel()
        batches = [kernel(batch) for batch in batches]
    harness = Harness(stage.operator)
    for batch in batches:
        harness.recv(batch, epoch=0)
    harness.complete(0)
    return harness.table().sort_by("key")
