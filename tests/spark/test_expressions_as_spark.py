"""The same SQL on the same rows gives what Spark gives: values, nulls and types."""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.errors import DataError, SchemaError
from penstock.expressions import compile_expression

WHEN = [
    datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC),
    None,
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2000, 6, 15, 12, 30, 45, 120_000, tzinfo=UTC),
]
DAYS = [date(2024, 2, 29), date(1969, 12, 31), None, date(2024, 1, 1), date(1999, 1, 3)]
ROWS = pa.table(
    {
        "i": pa.array([1, -7, None, 0, 2_000_000_000], pa.int32()),
        "l": pa.array([5, -3, 9, None, 4_000_000_000], pa.int64()),
        "b": pa.array([3, -2, 1, 50, None], pa.int8()),
        "d": pa.array([1.5, -0.0, math.nan, None, 2.675], pa.float64()),
        "f": pa.array([0.1, 2.5, math.nan, -1.0, None], pa.float32()),
        "m": pa.array([Decimal("1.50"), Decimal("-2.35"), None, Decimal("0.00"), Decimal("99.99")]),
        "s": pa.array(["view", " Click ", None, "", "äöü_100%"]),
        "n": pa.array(["12", " -5 ", None, "0", "+7"]),
        "p": pa.array([True, False, None, True, False]),
        "q": pa.array([True, None, None, False, True]),
        "t": pa.array(WHEN, pa.timestamp("us", "UTC")),
        "x": pa.array(DAYS),
        "w": pa.array(
            [{"start": when, "end": when and when + timedelta(hours=1)} for when in WHEN],
            pa.struct({"start": pa.timestamp("us", "UTC"), "end": pa.timestamp("us", "UTC")}),
        ),
    }
)

EXPRESSIONS = """
i
s = 'view'
s <> 'view'
s > 'c'
i > 0
i >= -7 AND l < 10
p AND q
p OR q
NOT p
NOT (p AND q) OR s IS NULL
p = q
p <=> q
i <=> NULL
i IS DISTINCT FROM 1
s IS NULL
s IS NOT NULL
p IS TRUE
q IS NOT FALSE
i BETWEEN 0 AND 10
i NOT BETWEEN 0 AND 10
i IN (1, 0)
i IN (1, NULL)
i NOT IN (1, NULL)
s IN ('view', '')
d IN (0.0, 1.5)
l IN (5, i)
s LIKE 'v%'
s LIKE '%i%'
s LIKE '_iew'
s LIKE '%100!%' ESCAPE '!'
s NOT LIKE '%w'
s ILIKE 'VIEW'
s RLIKE '^[a-z]+$'
i + 1
b + b
b * 2
i + l
l - b
i * 0.5
i * 0.5D
l / 2
i / 4
b % 2
i % 3
l % -4
l div 2
i div 3
d + f
d * 2
f * f
f + b
-i
-d
-m
m + 1
m - 0.005
m * m
m / 3
m / 1.7
m % 1.1
m + i
m * d
m > 1
m = 1.5
m = d
d > 1
d >= d
d = d
d < f
f <> f
f = 0.1
f > 2
d IS NULL
CASE WHEN i > 0 THEN 'pos' WHEN i < 0 THEN 'neg' END
CASE WHEN i > 0 THEN 'pos' WHEN i < 0 THEN 'neg' ELSE s END
CASE b WHEN 3 THEN 'three' WHEN 1 THEN 'one' ELSE 'other' END
CASE WHEN i <> 0 THEN 10 / i ELSE -1 END
CASE WHEN i <> 0 THEN 10 div i END
i <> 0 AND 10 / i > 1
i = 0 OR 10 / i > 1
IF(p, i, l)
IF(q, 1, 2.5)
COALESCE(s, 'none')
COALESCE(i, l, 0)
COALESCE(m, i)
NVL(d, 0)
NULLIF(i, 0)
NULLIF(s, '')
10 / NULLIF(i, 0)
CAST(i AS STRING)
CAST(d AS STRING)
CAST(f AS STRING)
CAST(l * 1e6D AS STRING)
CAST(d / 1e6D AS STRING)
CAST(m AS STRING)
CAST(p AS STRING)
CAST(t AS STRING)
CAST(x AS STRING)
CAST(n AS INT)
CAST(n AS BIGINT)
CAST(n AS DOUBLE)
CAST(n AS DECIMAL(10, 2))
n::int
TRY_CAST(s AS INT)
TRY_CAST(s AS DOUBLE)
TRY_CAST(s AS DATE)
TRY_CAST(s AS TIMESTAMP)
TRY_CAST(s AS BOOLEAN)
TRY_CAST(n AS TINYINT)
TRY_CAST(l AS INT)
TRY_CAST(d AS INT)
CAST(f AS DOUBLE)
CAST(i AS BOOLEAN)
CAST(p AS INT)
CAST(p AS DECIMAL(5, 2))
CAST(m AS INT)
CAST(m AS DOUBLE)
CAST(m AS DECIMAL(10, 1))
CAST(l AS DECIMAL(20, 2))
CAST(t AS DATE)
CAST(t AS BIGINT)
CAST(t AS DOUBLE)
CAST(x AS TIMESTAMP)
CAST(l AS TIMESTAMP)
s || '!'
concat(s, '-', i)
concat(s, d, p)
concat_ws(',', s, i, n)
upper(s)
lower(s)
trim(s)
ltrim(s)
rtrim(s)
TRIM(BOTH 'w' FROM s)
length(s)
substring(s, 2, 2)
substring(s, -3, 2)
substring(s, 0, 1)
substring(s, 3)
left(s, 2)
right(s, 3)
replace(s, 'i', 'II')
contains(s, 'ie')
startswith(s, 'v')
endswith(s, 'w')
split_part(s, 'i', 1)
split_part(s, 'i', 2)
split_part(s, 'i', -1)
lpad(s, 6, '*')
rpad(s, 3, '*')
reverse(s)
repeat(s, 2)
abs(i)
abs(d)
abs(m)
round(d)
round(d, 2)
round(m, 1)
round(l, -1)
floor(m)
ceil(m)
floor(l / 2)
ceil(l / 2)
sqrt(l)
exp(b)
ln(l)
log10(i)
log2(b)
power(b, 2)
sign(i)
sign(d)
greatest(i, l)
greatest(d, f)
least(d, f)
least(i, b, l)
greatest(s, n)
isnan(d)
year(t)
quarter(t)
month(t)
day(t)
hour(t)
minute(t)
second(t)
dayofweek(t)
dayofyear(x)
weekofyear(x)
year(x)
hour(x)
extract(second FROM t)
extract(hour FROM t)
date_trunc('year', t)
date_trunc('quarter', t)
date_trunc('month', t)
date_trunc('week', t)
date_trunc('day', t)
date_trunc('hour', t)
date_trunc('minute', t)
date_trunc('second', t)
date_trunc('millisecond', t)
date_trunc('month', x)
unix_timestamp(t)
unix_seconds(t)
unix_millis(t)
unix_micros(t)
timestamp_seconds(i)
timestamp_millis(l)
timestamp_micros(l)
to_timestamp('2024-01-05 10:11:12')
to_date('2024-01-05')
to_timestamp('05/01/2024 10:11', 'dd/MM/yyyy HH:mm')
date_add(x, 3)
date_sub(x, b)
datediff(x, t)
x + 1
x - DATE '2000-01-01'
x + INTERVAL 2 DAYS
x + INTERVAL 5 HOURS
t + INTERVAL '90' MINUTE
t - INTERVAL '1 day 2 hours 3.5 seconds'
t - TIMESTAMP '2024-01-01 00:00:00'
t > TIMESTAMP '2024-01-01 00:00:00'
t >= '2024-01-01'
t = x
x < DATE '2024-01-01'
x = '2024-01-01'
x IN ('2024-01-01', '1999-01-03')
w.start
w.end > TIMESTAMP '2024-01-01 00:30:00'
I + L
`s` = "view"
TIMESTAMP '2024-05-06 07:08:09.25'
DATE '2024-05-06'
1.5
1e3
3000000000
NULL IS NULL
CAST(NULL AS INT)
""".strip().splitlines()

FAILING = """
i + 2147483647
l * 9223372036854775807
i / 0
i % 0
b + CAST(100 AS TINYINT)
CAST(s AS INT)
CAST(s AS DATE)
CAST(l AS INT)
CAST(d AS BIGINT)
CAST(m AS DECIMAL(2, 1))
10 / i
abs(CAST(-128 AS TINYINT))
1 / 0
""".strip().splitlines()

REFUSED = """
nope = 1
s + p
upper(i, l)
no_such_function(i)
CAST(x AS INT)
CAST(p AS DATE)
w = 1
w.nope
i LIKE
p AND i
NOT s
CASE WHEN i THEN 1 END
""".strip().splitlines()


def plain(value: Any) -> Any:
    """Comparable: NaN as itself, one zero, floats as both sides print them."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.14g}") + 0.0
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return value


@pytest.fixture
def view(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.createDataFrame(ROWS).createOrReplaceTempView("rows")
    return spark


def ours(sql: str) -> pa.ChunkedArray:
    compiled = compile_expression(sql, ROWS.schema, what="select")
    values = [compiled.evaluate(batch) for batch in ROWS.to_batches(max_chunksize=2)]
    return pa.chunked_array(values, compiled.type)


def test_results_and_types_are_sparks(view: SparkSession) -> None:
    columns = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(EXPRESSIONS))
    theirs = view.sql(f"SELECT {columns} FROM rows").toArrow()
    differences = []
    for i, sql in enumerate(EXPRESSIONS):
        spark, mine = theirs.column(f"c{i}"), ours(sql)
        expected = [plain(value) for value in spark.to_pylist()]
        got = [plain(value) for value in mine.to_pylist()]
        if (expected, spark.type) != (got, mine.type):
            differences.append(f"{sql}: {got} {mine.type}, Spark: {expected} {spark.type}")
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("sql", FAILING)
def test_what_fails_on_data_in_spark_fails_here(view: SparkSession, sql: str) -> None:
    with pytest.raises(Exception, match="OVERFLOW|ZERO|INVALID_INPUT|OUT_OF_RANGE"):
        view.sql(f"SELECT {sql} FROM rows").toArrow()
    with pytest.raises(DataError):
        ours(sql)


@pytest.mark.parametrize("sql", REFUSED)
def test_what_spark_refuses_to_plan_is_refused_when_built(view: SparkSession, sql: str) -> None:
    with pytest.raises(SchemaError):
        compile_expression(sql, ROWS.schema)
    with pytest.raises(Exception, match=r"\[[A-Z_.]+\]"):
        view.sql(f"SELECT {sql} FROM rows").toArrow()
