"""JSON in Arrow columns: what is written is read back, and a bad value harms no other."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.kafka.json_values import check_encodable, json_of, objects
from penstock.errors import SchemaError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "s": st.none() | TEXT,
            "b": st.none() | st.booleans(),
            "l": st.none() | st.lists(st.none() | TEXT, max_size=3),
            "o": st.none() | st.fixed_dictionaries({"i": st.none() | st.integers(0, 9), "t": TEXT}),
        }
    ),
    max_size=6,
)
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.string())),
        ("o", pa.struct([("i", pa.int64()), ("t", pa.string())])),
    ]
)


@settings(max_examples=100)
@given(ROWS, st.integers(0, 2))
def test_what_is_written_is_read_back(rows: list[dict[str, Any]], skipped: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA).slice(skipped)
    texts = json_of(batch).to_pylist()
    for text, row in zip(texts, batch.to_pylist(), strict=True):
        inner = row["o"]
        if inner is not None:
            row["o"] = {key: value for key, value in inner.items() if value is not None}
        assert json.loads(text) == {key: value for key, value in row.items() if value is not None}
    found, bad = objects(pa.array([text.encode() for text in texts], pa.binary()), SCHEMA)
    assert bad == []
    assert found.to_pylist() == batch.to_pylist()


def test_times_and_numbers_that_json_lacks() -> None:
    batch = pa.record_batch(
        {
            "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC)], pa.timestamp("us", "UTC")),
            "day": pa.array([date(2026, 1, 2)]),
            "price": pa.array([Decimal("1.50")]),
            "x": pa.array([float("nan")]),
            "kind": pa.array(["a"]).dictionary_encode(),
        }
    )
    assert json.loads(json_of(batch)[0].as_py()) == {
        "at": "2026-01-02T03:04:05.000006Z",
        "day": "2026-01-02",
        "price": 1.5,
        "kind": "a",
    }


def test_columns_without_a_form_in_json_are_refused() -> None:
    with pytest.raises(SchemaError, match="column 'b' of type binary"):
        check_encodable(pa.schema([("a", pa.int64()), ("b", pa.binary())]))


A = pa.schema([("a", pa.int64())])


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"null",
        b"7",
        b"[]",
        b"{",
        b"}",
        b'{"a": 1',
        b'{"a": "x"}',
        b'{"a": 1}{"a": 2}',
        b'{"a": 1} {"a": 2}',
        b'{"a": [{"b": 1},',
        b'{"c": [{"b": 1}',
        b'{"c": "}',
        b'"}',
        b'{"c": "\xff"}',
        b',"c": 1}',
    ],
)
def test_a_malformed_value_is_found_and_no_other_is_touched(value: bytes) -> None:
    good = [b'{"a": 10}', b' {"a" : 11} ', b'{"c": "} {", "a": 12}', b'{\n"a": 13\n}', b"{}"]
    for place in range(len(good) + 1):
        values = [*good[:place], value, *good[place:]]
        rows, bad = objects(pa.array(values, pa.binary()), A)
        assert [at for at, _ in bad] == [place]
        found = rows["a"].to_pylist()
        assert found[:place] + found[place + 1 :] == [10, 11, 12, 13, None]


def test_two_malformed_values_do_not_make_up_for_each_other() -> None:
    values = [b'{"a": 1}', b'{"a": 2}{"a": 3}', b" ", b'{"a": 4}', b'{"d": [{},', b"{}]}"]
    rows, bad = objects(pa.array(values, pa.binary()), A)
    assert [place for place, _ in bad] == [1, 2, 4, 5]
    assert rows["a"].to_pylist() == [1, None, None, 4, None, None]


def test_a_null_value_is_a_row_of_nulls() -> None:
    rows, bad = objects(pa.array([None, b'{"a": 1}', None], pa.binary()), A)
    assert (rows["a"].to_pylist(), bad) == ([None, 1, None], [])
