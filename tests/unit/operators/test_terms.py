"""first, last and window_time: what depends on event time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock import functions as F
from penstock.expressions import compile_expression
from penstock.testing.local import run_local

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", "UTC")})


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (F.first("n"), 7),
        (F.first_value("n"), 7),
        (F.last("n"), None),
        (F.last("n", ignorenulls=True), 5),
        (F.last_value("n", True), 5),
    ],
)
def test_first_and_last_are_those_of_event_time(aggregate: Any, expected: Any) -> None:
    flow = Flow()
    rows = flow.memory(SCHEMA)
    timed = rows.withWatermark("at", "1 second")
    sink = timed.groupBy(F.window("at", "1 minute")).agg(aggregate.alias("made")).memory()
    for second, number in ((3, 5), (1, 7), (9, None), (2, 6)):
        rows.push([{"n": number, "at": START + timedelta(seconds=second)}])
    rows.close()
    run_local(flow)
    assert [row["made"] for row in sink.toPylist()] == [expected]


def test_the_time_of_a_window_is_its_last_moment() -> None:
    bound = pa.timestamp("us", "UTC")
    window = pa.struct([pa.field("start", bound), pa.field("end", bound)])
    rows = pa.RecordBatch.from_pylist(
        [{"w": {"start": START, "end": START + timedelta(seconds=1)}}, {"w": None}],
        schema=pa.schema({"w": window}),
    )
    made = compile_expression(F.window_time("w"), rows.schema).evaluate(rows)
    assert made.to_pylist() == [START + timedelta(seconds=1, microseconds=-1), None]
