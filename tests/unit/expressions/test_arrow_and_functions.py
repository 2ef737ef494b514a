"""Arrow's expressions and users' functions, compiled like SQL."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from penstock.errors import DataError, FunctionError, SchemaError
from penstock.expressions import compile_expression, describe_expression

BATCH = pa.record_batch({"s": ["a", "b", None], "n": [1, 2, 3]})


def test_an_arrow_expression_is_bound_and_evaluated() -> None:
    compiled = compile_expression((pc.field("n") > 1) & (pc.field("s") == "b"), BATCH.schema)
    assert compiled.type == pa.bool_()
    assert compiled.evaluate(BATCH).to_pylist() == [False, True, None]
    shipped = cloudpickle.loads(cloudpickle.dumps(compiled))
    assert shipped.evaluate(BATCH.slice(1)).to_pylist() == [True, None]


def test_an_arrow_expression_gives_one_array_for_large_batches() -> None:
    batch = pa.record_batch({"n": np.arange(200_000)})
    made = compile_expression(pc.field("n") + 1, batch.schema).evaluate(batch)
    assert isinstance(made, pa.Array)
    assert made.to_numpy().tolist() == list(range(1, 200_001))


def test_an_arrow_constant_is_repeated() -> None:
    assert compile_expression(pc.scalar(7), BATCH.schema).evaluate(BATCH).to_pylist() == [7] * 3


def test_an_arrow_expression_over_an_unknown_column_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"filter: no column 'nn'; did you mean 'n'\?"):
        compile_expression(pc.field("nn") > 1, BATCH.schema)


def test_an_arrow_expression_with_wrong_types_is_refused() -> None:
    with pytest.raises(SchemaError, match="does not fit the schema"):
        compile_expression(pc.utf8_upper(pc.field("n")), BATCH.schema)


def test_an_arrow_expression_by_position_is_refused_since_it_cannot_be_shipped() -> None:
    with pytest.raises(SchemaError, match="by name"):
        compile_expression(pc.field(0), BATCH.schema)


def test_values_that_fail_in_an_arrow_expression_raise_a_data_error() -> None:
    compiled = compile_expression(pc.field("n").cast(pa.int8()), BATCH.schema)
    with pytest.raises(DataError):
        compiled.evaluate(pa.record_batch({"s": ["x"], "n": [300]}))


def test_the_type_of_a_function_is_learnt_from_an_empty_batch() -> None:
    compiled = compile_expression(lambda batch: pc.add(batch.column("n"), 1), BATCH.schema)
    assert compiled.type == pa.int64()
    assert compiled.evaluate(BATCH).to_pylist() == [2, 3, 4]
    assert cloudpickle.loads(cloudpickle.dumps(compiled)).evaluate(BATCH).to_pylist() == [2, 3, 4]


@pytest.mark.parametrize("kind", [pa.float64(), "double"])
def test_a_declared_type_is_enforced_by_lossless_casts(kind: Any) -> None:
    compiled = compile_expression(lambda batch: batch.column("n"), BATCH.schema, kind)
    assert compiled.evaluate(BATCH).to_pylist() == [1.0, 2.0, 3.0]
    assert compiled.evaluate(BATCH).type == pa.float64()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: None, "returned a NoneType"),
        (lambda batch: [1, 2, 3], "returned a list"),
        (lambda batch: pa.array([1, 2]), "2 values for 3 rows"),
        (lambda batch: pa.array(["x"] * 3), "returned string where int64 was expected"),
    ],
)
def test_what_a_function_returns_is_checked_on_every_batch(function: Any, words: str) -> None:
    compiled = compile_expression(function, BATCH.schema, pa.int64(), what="withColumn")
    with pytest.raises(FunctionError, match=words):
        compiled.evaluate(BATCH)


def test_numpy_chunks_and_scalars_are_taken_for_columns() -> None:
    for function in (
        lambda batch: np.arange(batch.num_rows),
        lambda batch: pa.chunked_array([pa.array(range(batch.num_rows), pa.int64())]),
    ):
        compiled = compile_expression(function, BATCH.schema, pa.int64())
        assert compiled.evaluate(BATCH).to_pylist() == [0, 1, 2]
    constant = compile_expression(lambda batch: pa.scalar(5), BATCH.schema)
    assert constant.evaluate(BATCH).to_pylist() == [5, 5, 5]


def test_a_function_that_cannot_take_an_empty_batch_needs_a_type() -> None:
    def first(batch: pa.RecordBatch) -> pa.Array:
        return pa.repeat(batch.column("n")[0], batch.num_rows)

    with pytest.raises(SchemaError, match=r"empty batch.*IndexError.*returnType"):
        compile_expression(first, BATCH.schema)
    assert compile_expression(first, BATCH.schema, pa.int64()).evaluate(BATCH)[2].as_py() == 1


def test_a_function_without_a_type_on_an_empty_batch_needs_one() -> None:
    with pytest.raises(SchemaError, match="returnType"):
        compile_expression(lambda batch: pa.array([None] * batch.num_rows), BATCH.schema)


def test_errors_of_the_function_itself_pass_through() -> None:
    def boom(batch: pa.RecordBatch) -> pa.Array:
        raise ZeroDivisionError("row 1")

    with pytest.raises(ZeroDivisionError):
        compile_expression(boom, BATCH.schema, pa.int64()).evaluate(BATCH)


def test_expressions_are_described_in_a_few_words() -> None:
    assert describe_expression("n  >\n 1") == "n > 1"
    assert describe_expression(pc.field("n") > 1) == "(n > 1)"
    assert describe_expression(len) == "len"


def test_sql_with_a_declared_type_is_cast() -> None:
    compiled = compile_expression("n + 1", BATCH.schema, "string", what="withColumn")
    assert compiled.evaluate(BATCH).to_pylist() == ["2", "3", "4"]
