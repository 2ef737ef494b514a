"""What SQL means here, where Spark is not asked: names, types, units, laziness, shipping."""

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from penstock.errors import DataError
from penstock.expressions import compile_expression


def run(sql: str, columns: dict[str, Any]) -> list[Any]:
    batch = pa.record_batch(columns)
    compiled = compile_expression(sql, batch.schema)
    made = compiled.evaluate(batch)
    assert isinstance(made, pa.Array)
    assert made.type == compiled.type
    assert len(made) == batch.num_rows
    return made.to_pylist()


# -- names and types -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("n", "n"),
        ("N", "N"),
        ("w.start", "start"),
        ("n + 1 AS more", "more"),
        ("n+1", "n + 1"),
        ("upper(s)", "upper(s)"),
        ("`a b`", "a b"),
    ],
)
def test_a_result_is_named_by_alias_column_or_text(sql: str, name: str) -> None:
    schema = pa.schema(
        {
            "n": pa.int64(),
            "s": pa.string(),
            "a b": pa.int64(),
            "w": pa.struct({"start": pa.int64()}),
        }
    )
    assert compile_expression(sql, schema).name == name


def test_column_names_are_found_in_any_case_unless_ambiguous() -> None:
    assert run("EVENT_TYPE", {"event_type": ["a"]}) == ["a"]
    assert run("n", {"N": [1], "n": [2]}) == [2]
    assert run("N", {"N": [1], "n": [2]}) == [1]


def test_a_dotted_column_name_is_found_when_no_struct_is_meant() -> None:
    assert run("a.b + 1", {"a.b": [1]}) == [2]


def test_fields_of_structs_of_structs() -> None:
    rows = pa.array([{"x": {"y": 5}}, None, {"x": None}])
    assert run("w.x.y", {"w": rows}) == [5, None, None]


def test_a_plain_column_keeps_its_type_and_is_not_copied() -> None:
    batch = pa.record_batch({"k": pa.array(["a", "b"]).dictionary_encode()})
    compiled = compile_expression("k", batch.schema)
    assert compiled.type == batch.schema.field("k").type
    assert compiled.evaluate(batch).buffers()[1].address == batch.column(0).buffers()[1].address


@pytest.mark.parametrize(
    ("column", "sql", "expected"),
    [
        (pa.array(["a", None]).dictionary_encode(), "k = 'a'", [True, None]),
        (pa.array(["a", "b"], pa.large_string()), "upper(k) || 'x'", ["Ax", "Bx"]),
        (pa.array(["a", "b"], pa.string_view()), "k IN ('b', 'c')", [False, True]),
        (pa.array([200, 255], pa.uint8()), "k + 1", [201, 256]),
        (pa.array([2**64 - 1, 1], pa.uint64()), "k > 5", [True, False]),
        (pa.array([1.5, 2.0], pa.float16()), "k * 2", [3.0, 4.0]),
        (pa.array([b"ab", b""], pa.binary()), "length(k)", [2, 0]),
        (pa.array([1500, -1], pa.timestamp("ms")), "unix_seconds(k)", [1, -1]),
    ],
)
def test_types_that_spark_lacks_can_be_used(
    column: pa.Array, sql: str, expected: list[Any]
) -> None:
    assert run(sql, {"k": column}) == expected


def test_a_constant_adapts_to_the_column_so_that_the_column_is_not_cast() -> None:
    for kind, sql in [
        (pa.int8(), "k > 5"),
        (pa.int64(), "k = 5"),
        (pa.float32(), "k < 0.5"),
        (pa.timestamp("ms"), "k > TIMESTAMP '2024-01-01 00:00:00'"),
        (pa.large_string(), "k = 'x'"),
    ]:
        node = compile_expression(sql, pa.schema({"k": kind})).node
        assert node.children[0].type == kind, sql
        assert node.children[1].type == kind, sql


def test_a_constant_that_does_not_fit_the_column_is_compared_exactly() -> None:
    assert run("k > 300", {"k": pa.array([100], pa.int8())}) == [False]
    assert run("k < 1.5", {"k": [1, 2]}) == [True, False]
    millis = pa.array([0, 1], pa.timestamp("ms"))
    sql = "k > TIMESTAMP '1970-01-01 00:00:00.000500'"
    assert run(sql, {"k": millis}) == [False, True]


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_times_of_any_unit_and_zone_are_read_as_utc(unit: str, zone: str | None) -> None:
    when = pa.array([datetime(2024, 1, 31, 23, 30, 15)], pa.timestamp("s")).cast(
        pa.timestamp(unit, zone)
    )
    assert run("hour(k)", {"k": when}) == [23]
    assert run("unix_micros(k)", {"k": when}) == [1706743815000000]
    assert run("CAST(k AS DATE)", {"k": when}) == [date(2024, 1, 31)]
    assert run("CAST(k AS STRING)", {"k": when}) == ["2024-01-31 23:30:15"]
    truncated = run("date_trunc('hour', k)", {"k": when})[0]
    assert truncated.astimezone(UTC).minute == 0 if zone else truncated.minute == 0
    assert run("k >= '2024-01-31 23:30:15'", {"k": when}) == [True]
    assert run("k < CAST('2024-01-31 23:30:15.5' AS TIMESTAMP)", {"k": when}) == [True]


def test_truncation_keeps_the_type_of_the_column() -> None:
    for kind in (pa.timestamp("ms"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("s")):
        schema = pa.schema({"t": kind})
        assert compile_expression("date_trunc('minute', t)", schema).type == kind
        assert compile_expression("t + INTERVAL 1 HOUR", schema).type == kind


def test_truncation_rounds_down_before_1970() -> None:
    when = pa.array([-1, -60_000_000, -60_000_001], pa.timestamp("us"))
    made = run("unix_micros(date_trunc('minute', t))", {"t": when})
    assert made == [-60_000_000, -60_000_000, -120_000_000]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("INTERVAL '5' MINUTE", 300_000_000),
        ("INTERVAL 5 MINUTES", 300_000_000),
        ("INTERVAL '1 day 2 hours'", 93_600_000_000),
        ("INTERVAL '1.5' SECOND", 1_500_000),
        ("INTERVAL '01:30' HOUR TO MINUTE", 5_400_000_000),
        ("INTERVAL -2 HOURS", -7_200_000_000),
        ("3 * INTERVAL 1 SECOND", 3_000_000),
        ("INTERVAL 1 HOUR - INTERVAL 1 MINUTE", 3_540_000_000),
    ],
)
def test_intervals(text: str, micros: int) -> None:
    when = pa.array([0], pa.timestamp("us"))
    assert run(f"unix_micros(t + ({text}))", {"t": when}) == [micros]


# -- rows that need not be computed ----------------------------------------------------------------


def test_a_branch_is_computed_only_for_its_rows() -> None:
    columns = {"a": [10, 20, 30, 40], "b": [2, 0, None, 5]}
    sql = "CASE WHEN b = 0 THEN -1 WHEN b IS NULL THEN -2 ELSE a / b END"
    assert run(sql, columns) == [5.0, -1.0, -2.0, 8.0]
    assert run("IF(b = 0, 0, a div b)", columns) == [5, 0, None, 8]


def test_the_right_side_is_computed_only_where_the_left_does_not_decide() -> None:
    columns = {"a": [10, 20, 30], "b": [2, 0, None]}
    assert run("b <> 0 AND a / b > 4", columns) == [True, False, None]
    assert run("b = 0 OR a / b > 9", columns) == [False, True, None]
    assert run("b <> 0 AND CAST('x' || b AS INT) = 2", {"b": [0, 0]}) == [False, False]


def test_coalesce_stops_at_the_first_value() -> None:
    assert run("coalesce(a, CAST(s AS INT))", {"a": [1, None], "s": ["x", "2"]}) == [1, 2]


def test_lazy_parts_read_only_their_columns() -> None:
    schema = pa.schema({"x": pa.int64(), "wide": pa.string(), "a": pa.int64(), "b": pa.int64()})
    compiled = compile_expression("b <> 0 AND a / b > 1", schema)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2]), pa.array(["?", "?"]), pa.array([4, 4]), pa.array([0, 2])], schema=schema
    )
    assert compiled.evaluate(batch).to_pylist() == [False, True]


def test_an_empty_batch_gives_an_empty_array() -> None:
    assert run("CASE WHEN n > 0 THEN 1 / n END", {"n": pa.array([], pa.int64())}) == []
    assert run("1", {"n": pa.array([], pa.int64())}) == []


def test_constants_are_repeated_for_every_row() -> None:
    assert run("1 + 1", {"n": [7, 8]}) == [2, 2]
    assert run("CAST(NULL AS STRING)", {"n": [7, 8]}) == [None, None]


def test_a_constant_that_fails_only_matters_where_it_is_reached() -> None:
    assert run("CASE WHEN n > 0 THEN 1 ELSE 1 div 0 END", {"n": [1, 2]}) == [1, 1]
    with pytest.raises(DataError, match="divide by zero"):
        run("1 div 0", {"n": [1]})


# -- values that have no result --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "columns", "words"),
    [
        ("n + 1", {"n": [1, 2**63 - 1]}, ["overflow", "n + 1", "n = 9223372036854775807"]),
        ("n / m", {"n": [1, 2, 3], "m": [1, 0, 0]}, ["divide by zero", "n = 2", "m = 0"]),
        ("n % m", {"n": [1, 2], "m": [1, 0]}, ["remainder by zero", "m = 0"]),
        ("CAST(s AS INT)", {"s": ["1", "two"]}, ["'two'", "TRY_CAST", "int32"]),
        ("CAST(s AS TIMESTAMP)", {"s": ["2024-02-30"]}, ["'2024-02-30'"]),
        ("CAST(d AS BIGINT)", {"d": [1.0, float("nan")]}, ["nan"]),
    ],
)
def test_a_value_without_result_is_named(
    sql: str, columns: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        run(sql, columns)
    for word in words:
        assert word in str(caught.value)


def test_nulls_never_fail() -> None:
    columns = {"n": pa.array([None, 4]), "m": pa.array([0, 2]), "s": pa.array([None, "7"])}
    assert run("n / m", columns) == [None, 2.0]
    assert run("n % m", columns) == [None, 0]
    assert run("CAST(s AS INT)", columns) == [None, 7]


# -- odds and ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("round(d, 2)", [2.68, -2.68, None, 1.0]),
        ("round(d)", [3.0, -3.0, None, 1.0]),
        ("CAST(d AS DECIMAL(10, 2))", [Decimal("2.68"), Decimal("-2.68"), None, Decimal("1.00")]),
    ],
)
def test_half_is_rounded_away_from_zero_by_the_decimal_text(sql: str, expected: list[Any]) -> None:
    assert run(sql, {"d": [2.675, -2.675, None, 1.0]}) == expected


def test_decimals_past_38_digits_are_rounded_or_refused_by_value() -> None:
    big = pa.array([Decimal("1.123456789012345678")], pa.decimal128(38, 18))
    assert run("k * k", {"k": big})[0] == Decimal("1.262155")
    with pytest.raises(DataError):
        run("k * k", {"k": pa.array([Decimal(10) ** 19], pa.decimal128(38, 18))})


def test_like_patterns_with_special_characters() -> None:
    texts = ["a.c", "abc", "a%c", "a\\c", "a\nc"]
    assert run("s LIKE 'a.c'", {"s": texts}) == [True, False, False, False, False]
    assert run("s LIKE 'a!%c' ESCAPE '!'", {"s": texts}) == [False, False, True, False, False]
    assert run("s LIKE 'a_c'", {"s": texts}) == [True] * 5
    assert run("s LIKE '%.%'", {"s": texts}) == [True, False, False, False, False]
    assert run("s NOT LIKE 'a.%'", {"s": texts}) == [False, True, True, True, True]
    assert run("s LIKE 'a%c'", {"s": texts}) == [True] * 5


@pytest.mark.parametrize(
    "sql",
    [
        "s = 'x' AND n > 1",
        "CASE WHEN n > 1 THEN n / 2 ELSE CAST(s AS DOUBLE) END",
        "n IN (1, 2, 3) OR s LIKE 'a%'",
        "round(n * 1.5D, 1)",
        "date_trunc('hour', timestamp_micros(n))",
    ],
)
def test_compiled_expressions_can_be_shipped(sql: str) -> None:
    batch = pa.record_batch({"s": ["7", "8", "9"], "n": [1, 2, 3]})
    compiled = compile_expression(sql, batch.schema)
    shipped = cloudpickle.loads(cloudpickle.dumps(compiled))
    assert shipped.evaluate(batch).equals(compiled.evaluate(batch))
    assert shipped.type == compiled.type


def test_hosts_evaluate_without_a_parser() -> None:
    schema = pa.schema({"s": pa.string(), "n": pa.int64(), "t": pa.timestamp("us")})
    expressions = [
        "s LIKE 'a_%'",
        "s IN ('a', 'b')",
        "CAST(s AS INT)",
        "t + INTERVAL 1 DAY",
        "n % 2",
    ]
    shipped = cloudpickle.dumps([compile_expression(sql, schema) for sql in expressions])
    script = (
        "import pickle, sys\n"
        "for compiled in pickle.loads(sys.stdin.buffer.read()): compiled.evaluate\n"
        "import penstock\n"
        "assert 'sqlglot' not in sys.modules, 'sqlglot was imported'"
    )
    subprocess.run([sys.executable, "-c", script], input=shipped, check=True, timeout=60)


def test_slices_of_batches_are_evaluated_in_place() -> None:
    batch = pa.record_batch({"s": ["a", "b", None, "d"], "n": [1, 2, None, 4]}).slice(1, 3)
    for sql in ("s = 'b'", "n + 1", "n % 2", "upper(s)", "CASE WHEN n > 2 THEN 8 / n ELSE 0 END"):
        compiled = compile_expression(sql, batch.schema)
        copied = pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema)
        assert compiled.evaluate(batch).to_pylist() == compiled.evaluate(copied).to_pylist()
