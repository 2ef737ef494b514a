"""Columns built in Python: what they are as SQL, and how mistakes are refused."""

import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from penstock import Column, Flow
from penstock import functions as F
from penstock.errors import SchemaError
from penstock.expressions import compile_expression

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "price": pa.float64(),
        "kind": pa.string(),
        "my col": pa.int32(),
        "at": pa.timestamp("us", "UTC"),
        "w": pa.struct({"start": pa.int64()}),
    }
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"n": 1, "price": 0.5, "kind": "view", "my col": 7, "w": {"start": 3}},
        {"n": None, "price": 2.0, "kind": None, "my col": 8, "w": None},
    ],
    schema=SCHEMA,
)


def values(column: Any) -> list[Any]:
    return compile_expression(column, SCHEMA).evaluate(ROWS).to_pylist()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (F.col("n") + 1, [2, None]),
        (3 - F.col("n") * 2, [1, None]),
        ((F.col("n") > 0) & ~F.col("kind").isin("click"), [True, None]),
        (F.col("my col") % 4, [3, 0]),
        (F.col("`my col`"), [7, 8]),
        (F.col("w.start") + F.col("w").start + F.col("w")["start"], [9, None]),
        (F.col("kind").isin([]), [False, False]),
        (F.when(F.col("n").isNull(), "none").otherwise("some"), ["some", "none"]),
        (F.lit(Decimal("1.50")) * 2, [Decimal("3.00")] * 2),
        (F.lit(date(2024, 1, 2)), [date(2024, 1, 2)] * 2),
        (F.lit(datetime(2024, 1, 2, 3, tzinfo=UTC)), [datetime(2024, 1, 2, 3, tzinfo=UTC)] * 2),
        (F.lit(b"ab"), [b"ab"] * 2),
        (F.lit({"a": 1}), [[("a", 1)]] * 2),
        (F.expr("price * 2"), [1.0, 4.0]),
        (np.float64(2) * F.col("price"), [1.0, 4.0]),
    ],
)
def test_values(column: Column, expected: list[Any]) -> None:
    assert values(column) == expected


def test_names_are_sparks() -> None:
    flow = Flow()
    stream = flow.memory(SCHEMA).select(
        "n", F.col("n") + 1, F.upper("kind"), F.col("w.start"), F.col("n").alias("m")
    )
    assert stream.columns == ["n", "(n + 1)", "upper(kind)", "start", "m"]


def test_a_column_travels_as_text() -> None:
    column = F.when(F.col("kind") == "it's", F.col("`my col`") / 2).otherwise(0.5).alias("x")
    for back in (pickle.loads(pickle.dumps(column)), cloudpickle.loads(cloudpickle.dumps(column))):
        assert back.sql == column.sql
        assert values(back) == values(column)
        assert compile_expression(back, SCHEMA).name == "x"


def test_a_long_chain_of_conditions_is_no_problem() -> None:
    column = F.col("n") == -1
    for i in range(100):
        column = column | (F.col("n") == i)
    assert values(column) == [True, None]


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: values(F.col("prise") > 1), r"no column 'prise'; did you mean 'price'\?"),
    (lambda: values(F.col("n") + F.col("kind")), r"\+ is not defined for int64 and string"),
    (lambda: F.col("n") > 1 and F.col("n") < 5, r"write & for 'and', \| for 'or', ~ for 'not'"),
    (lambda: not F.col("n"), "~ for 'not'"),
    (lambda: 1 in F.col("n"), "contains"),
    (lambda: list(F.col("n")), "explode"),
    (lambda: F.col("kind").isnull(), "no method 'isnull'; did you mean 'isNull'"),
    (lambda: F.col(5), "named by a string"),
    (lambda: F.col("a..b"), "no column name"),
    (lambda: F.col("n").cast("integr"), "'integr' is no type"),
    (lambda: F.col("n").alias(""), "named by a string"),
    (lambda: F.col("n").otherwise(1), "after F.when"),
    (lambda: F.when(F.col("n") > 1, 1).otherwise(2).when(F.col("n") > 2, 2), "before otherwise"),
    (lambda: F.when("n > 1", 1), "the condition is a column"),
    (lambda: F.lit(object()), "is no constant"),
    (lambda: F.upper(), "missing a required argument: 'col'; it is upper"),
    (lambda: F.transform("n", 5), "expected a function of columns"),
    (lambda: values(F.transform("n", lambda x: x)), "argument 1 must be an array"),
    (lambda: values(F.sum("n")), "sum is an aggregate"),
    (lambda: values(F.upper("n")), "argument 1 must be a string, but it is int64"),
    (lambda: values(F.regexp_extract("kind", "a(b)", 2)), "the pattern has 1 group"),
]


@pytest.mark.parametrize(("mistake", "words"), REFUSED)
def test_mistakes_are_refused(mistake: Callable[[], Any], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        mistake()


def test_an_unknown_function_is_refused_with_a_hint() -> None:
    with pytest.raises(AttributeError, match=r"no function 'uper'; did you mean 'upper'\?"):
        _ = F.uper


def test_the_place_of_a_mistake_is_marked() -> None:
    with pytest.raises(SchemaError) as caught:
        values((F.col("n") > 1) & (F.col("prise") < 2))
    assert str(caught.value).splitlines()[1:] == [
        "  ((n > 1) AND (prise < 2))",
        "                ^^^^^",
    ]


def pyspark_column() -> Any:
    """Something that says of itself that it is PySpark's; a real one needs a session."""
    return type("Column", (), {"__module__": "pyspark.sql.classic.column"})()


@pytest.mark.parametrize(
    "use",
    [
        lambda stream, column: stream.filter(column),
        lambda stream, column: stream.select(column),
        lambda stream, column: stream.withColumn("x", column),
        lambda stream, column: stream.withColumn("x", F.col("n") + column),
        lambda stream, column: stream.groupBy(column),
        lambda stream, column: stream.groupBy("n").agg(column),
        lambda stream, column: F.upper(column),
    ],
)
def test_pysparks_columns_are_refused_with_what_to_write(use: Callable[..., Any]) -> None:
    stream = Flow().memory(SCHEMA)
    with pytest.raises(SchemaError, match="from penstock import functions as F"):
        use(stream, pyspark_column())


def test_columns_are_taken_wherever_names_are() -> None:
    stream = Flow().memory(SCHEMA)
    assert stream.keyBy(F.lower("kind")).columns == stream.columns
    assert stream.groupBy(F.lower("kind").alias("k"), F.col("n")).count().columns == [
        "k", "n", "count",
    ]  # fmt: skip
    assert stream.drop(F.col("n"), "w").columns == ["price", "kind", "my col", "at"]
    timed = stream.withWatermark("at", "1 second")
    counts = timed.groupBy(F.window(F.col("at"), "1 second")).agg(F.max("n"))
    assert counts.columns == ["window", "max(n)"]
    other = timed.select(F.col("at").alias("then"), F.col("n").alias("m"))
    for on in (F.col("n") == F.col("m"), [F.col("n") == F.col("m")]):
        joined = timed.join(other, on, within="1 second", time=("at", "then"))
        assert joined.columns == [*SCHEMA.names, "then", "m"]
    with pytest.raises(SchemaError, match="cannot join on"):
        timed.join(other, F.col("n") > 1, within="1 second", time=("at", "then"))


AGGREGATES: list[tuple[Any, str]] = [
    (F.sum(F.col("n") * 2), "sum((n * 2))"),
    (F.sum("n") / F.count("*"), "(sum(n) / count(*))"),
    (F.round(F.avg("price"), 2).alias("mean"), "mean"),
    ("count(*)", "count"),
    ("sum(n) AS total", "total"),
    ({"n": "max"}, "max(n)"),
    ("count(DISTINCT n, kind)", "count(DISTINCT n, kind)"),
]


@pytest.mark.parametrize(("aggregate", "name"), AGGREGATES)
def test_aggregates_are_columns_too(aggregate: Any, name: str) -> None:
    assert Flow().memory(SCHEMA).groupBy("kind").agg(aggregate).columns == ["kind", name]


@pytest.mark.parametrize(
    ("aggregate", "words"),
    [
        (F.col("n"), "n has no aggregate in it"),
        ("summ(n)", "did you mean 'sum'"),
        (F.sum("kind"), "needs numbers, but 'kind' is string"),
        (F.sum("nn"), "no column 'nn'; did you mean 'n'"),
        (F.first("n"), "withWatermark"),
        (5, "expected aggregates"),
        ({"n": "maxx"}, "did you mean 'max'"),
    ],
)
def test_bad_aggregates_are_refused(aggregate: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        Flow().memory(SCHEMA).groupBy("kind").agg(aggregate)


def test_rows_from_a_row_stand_alone_in_a_select() -> None:
    stream = Flow().memory(pa.schema({"k": pa.int64(), "xs": pa.list_(pa.string())}))
    assert stream.select("k", F.explode("xs").alias("x")).columns == ["k", "x"]
    assert stream.select("k", "explode(xs) AS x").columns == ["k", "x"]
    assert stream.select("*", F.posexplode("xs")).columns == ["k", "xs", "pos", "col"]
    for mistake, words in (
        (lambda: stream.select(F.explode("xs"), F.explode("xs").alias("y")), "use two selects"),
        (lambda: stream.withColumn("x", F.explode("xs")), "stands alone in a select"),
        (lambda: stream.select(F.upper(F.explode("xs"))), "stands alone in a select"),
        (lambda: stream.select(F.explode("k")), "takes an array or a map"),
        (lambda: stream.select(F.posexplode("xs").alias("y")), "makes 2 columns"),
    ):
        with pytest.raises(SchemaError, match=words):
            mistake()
