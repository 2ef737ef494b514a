"""filter, select and withColumn."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from penstock.errors import SchemaError
from penstock.operators.base import StatelessOperator
from penstock.operators.filter import Filter
from penstock.operators.project import Select, WithColumn

BATCH = pa.record_batch(
    {
        "kind": ["view", "click", None, "view"],
        "n": [1, 2, 3, None],
        "w": [{"start": 1}, {"start": 2}, None, {"start": 4}],
    }
)


def run(operator: StatelessOperator, batch: pa.RecordBatch = BATCH) -> pa.RecordBatch:
    """Build, ship, run; the result must have the schema that was promised."""
    (schema,) = operator.output_schemas([batch.schema])
    made = cloudpickle.loads(cloudpickle.dumps(operator)).kernel()(batch)
    assert made.schema == schema
    made.validate(full=True)
    return made


# -- filter ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition",
    ["kind = 'view'", pc.field("kind") == "view", lambda batch: pc.equal(batch["kind"], "view")],
    ids=["sql", "arrow", "function"],
)
def test_rows_are_kept_where_the_condition_is_true(condition: Any) -> None:
    assert run(Filter(condition)).column("n").to_pylist() == [1, None]


def test_a_null_condition_drops_the_row() -> None:
    assert run(Filter("n > 1")).column("n").to_pylist() == [2, 3]
    assert run(Filter("NOT n > 1")).column("n").to_pylist() == [1]


def test_a_constant_condition_keeps_all_or_nothing() -> None:
    assert run(Filter("true")).num_rows == 4
    assert run(Filter("1 > 2")).num_rows == 0
    assert run(Filter("CAST(NULL AS BOOLEAN)")).num_rows == 0


@pytest.mark.parametrize("condition", ["n + 1", "kind", pc.field("n"), lambda batch: batch["n"]])
def test_a_condition_must_be_boolean(condition: Any) -> None:
    with pytest.raises(SchemaError, match=r"filter: the condition .* must be boolean"):
        Filter(condition).output_schemas([BATCH.schema])


def test_a_filter_describes_itself() -> None:
    assert Filter("n  >  1").describe() == "n > 1"


# -- select ----------------------------------------------------------------------------------------


def test_columns_by_name_keep_their_order_and_are_not_copied() -> None:
    made = run(Select(["n", "kind"]))
    assert made.schema.names == ["n", "kind"]
    assert made.column("n").buffers()[1].address == BATCH.column("n").buffers()[1].address


def test_every_form_of_a_select_item() -> None:
    items = [
        "*",
        "n * 2 AS twice",
        "w.start",
        ("upper", "upper(kind)"),
        ("more", pc.field("n") + 1),
        ("same", lambda batch: batch.column("n")),
        ("again", "n"),
    ]
    made = run(Select(items))
    assert made.schema.names == [
        "kind",
        "n",
        "w",
        "twice",
        "start",
        "upper",
        "more",
        "same",
        "again",
    ]
    assert made.to_pylist()[0] == {
        "kind": "view", "n": 1, "w": {"start": 1}, "twice": 2, "start": 1, "upper": "VIEW",
        "more": 2, "same": 1, "again": 1,
    }  # fmt: skip


def test_an_arrow_field_is_named_by_itself_and_other_expressions_must_be_named() -> None:
    assert run(Select([pc.field("n")])).schema.names == ["n"]
    with pytest.raises(SchemaError, match="a name"):
        Select([pc.field("n") + 1]).output_schemas([BATCH.schema])


def test_a_column_whose_name_is_no_sql_can_be_selected() -> None:
    batch = pa.record_batch({"a-b": [1], "select": [2]})
    assert run(Select(["a-b", "select"]), batch).to_pylist() == [{"a-b": 1, "select": 2}]


def test_constants_can_be_selected() -> None:
    assert run(Select(["1 AS one", "'x' AS x"])).column("x").to_pylist() == ["x"] * 4


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["n", "n"], "two columns are named 'n'"),
        (["*", "n + 1 AS n"], "two columns are named 'n'"),
        (["m"], "no column 'm'"),
        ([("a", "n", "c")], "a pair is"),
        ([5], "expected columns"),
        ([len], "expected columns"),
        (["n, kind"], "does not parse"),
    ],
)
def test_bad_select_items_are_refused(items: list[Any], words: str) -> None:
    with pytest.raises(SchemaError, match="select: ") as caught:
        Select(items).output_schemas([BATCH.schema])
    assert words in str(caught.value)


def test_nothing_to_select_is_refused() -> None:
    with pytest.raises(SchemaError, match="at least one column"):
        Select([])


# -- withColumn ------------------------------------------------------------------------------------


def test_a_new_column_comes_last_and_a_known_one_stays_in_its_place() -> None:
    assert run(WithColumn("m", "n + 1")).schema.names == ["kind", "n", "w", "m"]
    replaced = run(WithColumn("n", "coalesce(n, 0)"))
    assert replaced.schema.names == ["kind", "n", "w"]
    assert replaced.column("n").to_pylist() == [1, 2, 3, 0]


def test_a_return_type_is_enforced() -> None:
    made = run(WithColumn("m", lambda batch: batch["n"], pa.float64()))
    assert made.column("m").to_pylist() == [1.0, 2.0, 3.0, None]
    assert run(WithColumn("m", "n", "string")).column("m").to_pylist() == ["1", "2", "3", None]


def test_a_column_needs_a_name() -> None:
    with pytest.raises(SchemaError, match="named by a string"):
        WithColumn("", "n")


def test_projections_describe_themselves() -> None:
    assert Select(["n", ("m", "n + 1")]).describe() == "n, m = n + 1"
    assert WithColumn("m", "n + 1").describe() == "m = n + 1"
