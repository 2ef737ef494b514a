"""JSON: many rows, deep texts, and the two ways to read them agree."""

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock import functions as F
from penstock.expressions import compile_expression


def values(column: Any, texts: list[str | None]) -> list[Any]:
    rows = pa.record_batch({"j": pa.array(texts, pa.string())})
    return compile_expression(column, rows.schema).evaluate(rows).to_pylist()


@pytest.mark.parametrize("odd", ['{"a": 1, "b": 5}', '{"a": "x"}', "", None, "[", '{"a": 2.5}'])
def test_a_text_that_arrow_cannot_read_changes_nothing_for_the_others(odd: str | None) -> None:
    texts: list[str | None] = [f'{{"a": {i}, "b": "t{i}", "c": [{i}, 1]}}' for i in range(9_000)]
    column = F.from_json("j", "a bigint, b string, c array<bigint>")
    quick = values(column, texts)
    assert quick == [json.loads(text or "") for text in texts]
    slow = values(column, [*texts[:5_000], odd, *texts[5_000:]])
    assert slow[:5_000] + slow[5_001:] == quick


def test_parts_of_many_texts() -> None:
    texts: list[str | None] = [f'{{"a": {{"b": [0, "x{i}"]}}}}' for i in range(9_000)]
    assert values(F.get_json_object("j", "$.a.b[1]"), texts) == [f"x{i}" for i in range(9_000)]


def test_a_text_that_is_too_deep_is_malformed() -> None:
    deep = "[" * 40_000 + "]" * 40_000
    found = values(F.get_json_object("j", "$.a"), [deep, '{"a": 1}', "[[[[1]]]]"])
    assert found == [None, "1", None]
    assert values(F.json_array_length("j"), [deep, "[[[[1]]], 2]"]) == [None, 2]
