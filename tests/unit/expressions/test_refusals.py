"""Mistakes are found when the flow is built, and the message shows the place."""

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.expressions import compile_expression

SCHEMA = pa.schema(
    {
        "ad_id": pa.string(),
        "event_type": pa.string(),
        "event_time": pa.timestamp("us"),
        "n": pa.int64(),
        "window": pa.struct({"start": pa.timestamp("us"), "end": pa.timestamp("us")}),
        "tags": pa.list_(pa.string()),
    }
)


def refusal(sql: str, what: str = "filter") -> str:
    with pytest.raises(SchemaError) as caught:
        compile_expression(sql, SCHEMA, what=what)
    return str(caught.value)


def test_an_unknown_column_is_marked_and_the_nearest_suggested() -> None:
    assert refusal("n > 1 AND evnt_type = 'view'") == (
        "filter: no column 'evnt_type'; did you mean 'event_type'? columns: [ad_id, event_type, "
        "event_time, n, window, tags]\n"
        "  n > 1 AND evnt_type = 'view'\n"
        "            ^^^^^^^^^"
    )


def test_the_error_carries_column_and_position() -> None:
    with pytest.raises(SchemaError) as caught:
        compile_expression("n > 1 AND evnt_type = 'view'", SCHEMA)
    assert caught.value.parameters["column"] == "evnt_type"
    assert caught.value.parameters["position"] == 10


def test_the_place_is_marked_in_the_right_line() -> None:
    text = refusal("n > 1\n  AND nn > 2\n  AND n < 9")
    assert text.splitlines()[2] == "    AND nn > 2"
    assert text.splitlines()[3] == "        ^^"


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("", ["empty"]),
        ("n >", ["does not parse", "after '>'", "^"]),
        ("n = = 2", ["does not parse", "^"]),
        ("(n > 1", ["does not parse"]),
        ("'abc", ["does not parse"]),
        ("n > 1; n < 2", ["one SQL expression"]),
        ("SELECT n FROM t", ["a query", "not supported"]),
        ("n IN (SELECT 1)", ["no query"]),
        ("*", ["not supported"]),
        ("count(*)", ["count", "groupBy"]),
        ("sum(n)", ["aggregate", "F.sum"]),
        ("current_timestamp()", ["replay"]),
        ("rand() > 0.5", ["replay"]),
        ("uper(ad_id)", ["no function 'uper'", "did you mean 'upper'"]),
        ("n = 'x'", ["cannot compare int64 with string", "cast"]),
        ("event_time > n", ["cannot compare"]),
        ("event_time > 'yesterday'", ["cannot compare"]),
        ("ad_id + 1", ["+ is not defined for string and int32"]),
        ("n AND n", ["left side of AND", "boolean", "int64"]),
        ("NOT n", ["operand of NOT"]),
        ("CASE WHEN n THEN 1 END", ["after WHEN", "boolean"]),
        ("CASE WHEN n > 1 THEN 1 ELSE 'x' END", ["no common type", "int32", "string"]),
        ("coalesce(n, ad_id)", ["no common type"]),
        ("CAST(ad_id AS wibble)", ["wibble"]),
        ("CAST(tags AS INT)", ["cannot cast list"]),
        ("CAST('x' AS INT)", ["cannot cast 'x' to int32"]),
        ("TIMESTAMP 'noon'", ["cannot cast 'noon'"]),
        ("window.begin", ["field 'begin'", "fields: [start, end]"]),
        ("n.start", ["not a struct"]),
        ("window = window", ["cannot compare"]),
        ("substring(ad_id)", ["takes 2 to 3 argument(s), got 1"]),
        ("upper(n)", ["argument 1 must be a string", "int64"]),
        ("ad_id LIKE event_type", ["pattern of LIKE must be a constant"]),
        ("ad_id RLIKE '('", ["regular expression", "does not parse"]),
        ("ad_id LIKE 'a!' ESCAPE '!'", ["escape"]),
        ("date_trunc('fortnight', event_time)", ["the unit must be one of year"]),
        ("event_time + INTERVAL 1 MONTH", ["months and years have no fixed length"]),
        ("year(n)", ["a date or a timestamp"]),
        ("NULL", ["the type of NULL is unknown"]),
        ("split_part(ad_id, ',', 0)", ["counted from 1"]),
        ("n OVER (PARTITION BY ad_id)", []),
        ("sum(n) OVER (PARTITION BY ad_id)", ["not supported"]),
        ("to_timestamp(ad_id, 'EEE')", ["pattern 'EEE' is not supported"]),
        ("1e999", ["too large"]),
        ("n BETWEEN SYMMETRIC 1 AND 2", []),
        ("ad_id COLLATE UNICODE = 'x'", []),
    ],
)  # fmt: skip
def test_refused_when_built(sql: str, words: list[str]) -> None:
    text = refusal(sql)
    assert text.startswith("filter: ")
    for word in words:
        assert word in text


def test_an_ambiguous_name_is_refused_with_its_meanings() -> None:
    schema = pa.schema([("Key", pa.int64()), ("KEY", pa.int64())])
    with pytest.raises(SchemaError, match="'key' is ambiguous: it may mean 'Key', 'KEY'"):
        compile_expression("key = 1", schema)


@pytest.mark.parametrize("thing", [None, 5, b"n > 1", ["n"]])
def test_other_things_than_expressions_are_refused(thing: object) -> None:
    with pytest.raises(SchemaError, match=r"expected a column .* a func"):
        compile_expression(thing, SCHEMA)
