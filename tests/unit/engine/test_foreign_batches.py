"""What users' code hands to the engine has the declared schema, or is refused."""

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.errors import FunctionError, SchemaError
from penstock.operators.conform import Conform


def test_pushed_batches_are_cast_where_nothing_is_lost() -> None:
    numbers = Flow().memory(pa.schema({"x": pa.float64()}))
    numbers.push(pa.record_batch({"x": pa.array([1, 2], pa.int32())}))
    with pytest.raises(SchemaError, match="push gave column 'x' as int64.*without loss"):
        numbers.push(pa.record_batch({"x": [2**60 + 1]}))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([0.1]), pa.float32()),
        (pa.array([5]), pa.bool_()),
        (pa.array(["007"]), pa.int64()),
        (pa.array([1], pa.timestamp("us")), pa.date32()),
        (pa.array([2**53 + 1]), pa.float64()),
    ],
)
def test_a_cast_that_changes_a_value_is_refused(column: pa.Array, kind: pa.DataType) -> None:
    check = Conform(pa.schema({"x": kind}), "stage 'made'")
    with pytest.raises(FunctionError, match="column 'x'.*without loss"):
        check(pa.record_batch({"x": column}))


def test_values_that_a_cast_keeps_pass_nulls_and_nan_included() -> None:
    check = Conform(pa.schema({"x": pa.float32(), "y": pa.string()}), "stage 'made'")
    batch = pa.record_batch({"y": pa.nulls(3), "x": pa.array([float("nan"), None, 0.5])})
    made = check(batch)
    assert made.column("x").to_pylist()[1:] == [None, 0.5]
    assert check(made) is made
