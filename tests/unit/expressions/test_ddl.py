"""DDL strings and the schemas they mean."""

import doctest
import importlib
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.expressions import parse_schema
from penstock.expressions.ddl import parse_type


def test_columns_types_and_nullability() -> None:
    assert parse_schema("id bigint NOT NULL, name string, `x y` double COMMENT 'hm'") == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("x y", pa.float64()),
        ]
    )


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("tinyint", pa.int8()),
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("INTEGER", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("boolean", pa.bool_()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(12)", pa.decimal128(12, 0)),
        ("decimal(12, 3)", pa.decimal128(12, 3)),
        ("varchar(10)", pa.string()),
        ("array<int>", pa.list_(pa.field("element", pa.int32()))),
        ("map<string, bigint>", pa.map_(pa.string(), pa.int64())),
        ("struct<a: int, b: string>", pa.struct({"a": pa.int32(), "b": pa.string()})),
        ("interval day to second", pa.duration("us")),
    ],
)
def test_types(ddl: str, kind: pa.DataType) -> None:
    assert parse_type(ddl) == kind


def test_schemas_and_types_are_given_back_as_they_are() -> None:
    schema = pa.schema({"a": pa.int64()})
    assert parse_schema(schema) is schema
    assert parse_type(pa.int64()) == pa.int64()


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("", "no columns"),
        ("id", "'name type'"),
        ("id wibble", "wibble"),
        ("id bigint name string", "cannot read the schema"),
        ("a int, a string", "'a' twice"),
        ("a decimal(50, 2)", "at most 38 digits"),
        ("a int PRIMARY KEY", "PRIMARY KEY"),
        (5, "a DDL string"),
    ],
)
def test_bad_schemas_are_refused(ddl: Any, words: str) -> None:
    with pytest.raises(SchemaError, match="mapInArrow: ") as caught:
        parse_schema(ddl, what="mapInArrow")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "module",
    [
        "penstock.expressions.coerce",
        "penstock.expressions.compile",
        "penstock.expressions.ddl",
        "penstock.expressions.suggest",
        "penstock.expressions.types",
        "penstock.operators.finder",
        "penstock.wire.hashing",
    ],
)
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.attempted
    assert not result.failed
