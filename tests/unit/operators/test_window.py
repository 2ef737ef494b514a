"""Windows: schemas, errors, units of time, lateness, and what is freed."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import SchemaError, UsageError
from penstock.operators import terms as F
from penstock.operators.base import Hash, Single
from penstock.operators.terms import Window
from penstock.operators.window import WindowAggregate
from penstock.testing.harness import Harness

SECOND = 1_000_000
SCHEMA = pa.schema({"t": pa.timestamp("us"), "k": pa.string(), "n": pa.int32()})


def counts(*keys, window=None, aggregates=None, lateness_us=0):
    window = window or F.window("t", "1 second")
    return WindowAggregate(window, list(keys), aggregates or [F.count("*")], lateness_us)


def batch(times, keys=None, schema=SCHEMA):
    keys = keys or ["a"] * len(times)
    return pa.record_batch(
        [pa.array(times, schema.field("t").type), keys, list(range(len(times)))], schema=schema
    )


def test_output_has_window_struct_keys_and_aggregates_with_sparks_types():
    schema = SCHEMA.append(pa.field("d", pa.decimal128(5, 2))).append(pa.field("x", pa.float32()))
    made = [F.count("*"), F.sum("n"), F.sum("d"), F.sum("x"), F.avg("n"), F.min("k"), F.max("x")]
    result, late = counts("k", aggregates=made).output_schemas([schema])
    bound = pa.timestamp("us")
    assert result.field("window").type == pa.struct([("start", bound), ("end", bound)])
    assert result.names == ["window", "k", *(one.name for one in made)]
    assert [result.field(one.name).type for one in made] == [
        pa.int64(),
        pa.int64(),
        pa.decimal128(15, 2),
        pa.float64(),
        pa.float64(),
        pa.string(),
        pa.float32(),
    ]
    assert late == schema


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (counts("kk"), "no column 'kk'; did you mean 'k'?"),
        (
            counts("k", window=F.window("n", "1 second")),
            "but column 'n' is int32",
        ),
        (counts("k", aggregates=[F.sum("k")]), "sum(k) needs numbers"),
        (counts("k", aggregates=[F.avg("missing")]), "no column 'missing'"),
        (counts("k", aggregates=[F.count("*"), F.count("*")]), "two output columns"),
        (counts("k", aggregates=[F.sum("*")]), "sum(*) has no meaning"),
    ],
)
def test_what_cannot_work_is_refused_while_the_flow_is_built(operator, words):
    with pytest.raises(SchemaError) as caught:
        operator.output_schemas([SCHEMA])
    assert words in str(caught.value)


def test_windows_that_the_timestamps_unit_cannot_express_are_refused():
    schema = pa.schema({"t": pa.timestamp("s")})
    with pytest.raises(SchemaError, match="whole units"):
        counts(window=F.window("t", "500 ms")).output_schemas([schema])


def test_exchange_is_by_key_or_single():
    assert counts("k").exchanges([SCHEMA]) == (Hash(("k",)),)
    assert counts().exchanges([SCHEMA]) == (Single(),)


def test_split_is_offered_unless_late_rows_are_read():
    operator = counts("k")
    assert operator.combiner(frozenset({0, 1})) is None
    before, after = operator.combiner(frozenset({0}))
    partials = before.output_schemas([SCHEMA])
    assert after.output_schemas(partials)[0] == operator.output_schemas([SCHEMA])[0]
    assert operator.needs_watermark
    assert after.needs_watermark


@pytest.mark.parametrize(
    ("window", "grid"),
    [
        (F.window("t", "10 seconds"), 10 * SECOND),
        (F.window("t", "10 seconds", "4 seconds"), 2 * SECOND),
        (F.window("t", "10 seconds", "5 seconds", "1 second"), SECOND),
        (F.session_window("t", "5 seconds"), None),
    ],
)
def test_cut_grid_contains_every_end_of_a_window(window, grid):
    assert counts(window=window).cut_grid_us() == grid


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
def test_timestamps_of_every_unit_and_zone(unit, zone):
    kind = pa.timestamp(unit, zone)
    schema = pa.schema({"t": kind, "k": pa.string(), "n": pa.int32()})
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    harness = Harness(counts("k"))
    harness.recv(batch([-1, 0, 3 * per_second], schema=schema))
    harness.complete(0, 10 * SECOND)
    result = harness.table()
    assert result.schema == counts("k").output_schemas([schema])[0]
    starts = result["window"].combine_chunks().field("start")
    assert starts.cast(pa.int64()).to_pylist() == [-per_second, 0, 3 * per_second]


def test_state_is_freed_and_nothing_asked_for_once_windows_are_passed():
    harness = Harness(counts("k", lateness_us=2 * SECOND))
    harness.recv(batch([100]))
    harness.complete(0, SECOND)
    assert harness.asked
    harness.complete(1, 3 * SECOND)
    assert not harness.asked
    assert harness.vertex.snapshot() == {}


def test_late_rows_within_lateness_send_only_the_changed_keys_again():
    harness = Harness(counts("k", lateness_us=5 * SECOND))
    harness.recv(batch([100, 200], ["a", "b"]), 0)
    harness.complete(0, 2 * SECOND)
    harness.recv(batch([300], ["b"]), 1)
    harness.complete(1, 3 * SECOND)
    assert [(row["k"], row["count"]) for row in harness.table(epoch=0).to_pylist()] == [
        ("a", 1),
        ("b", 1),
    ]
    assert [(row["k"], row["count"]) for row in harness.table(epoch=1).to_pylist()] == [("b", 2)]


def test_rows_too_late_leave_on_port_1_and_are_counted():
    harness = Harness(counts("k"))
    harness.recv(batch([5 * SECOND]), 0)
    harness.complete(0, 5 * SECOND)
    late = batch([300, 100, 5 * SECOND + 1, None], ["b", "a", "a", "a"])
    harness.recv(late, 1)
    harness.complete(1)
    assert harness.table(1).to_pylist() == late.take(pa.array([3, 1, 0])).to_pylist()
    assert harness.counters == {"rows_late": 2, "rows_without_time": 1}


def test_nothing_is_sent_before_there_is_a_watermark():
    harness = Harness(counts("k"))
    harness.recv(batch([100]))
    harness.complete(0)
    assert harness.sent == []
    harness.complete(1, 10 * SECOND)
    assert harness.table(epoch=1).num_rows == 1


def test_windows_far_apart_cost_nothing_in_between():
    century = 100 * 365 * 86_400 * SECOND
    harness = Harness(counts("k", window=F.window("t", "1 second", "500 ms")))
    harness.recv(batch([0, century]))
    harness.complete(0, 2 * century)
    assert harness.table().num_rows == 4


def test_dictionary_keys_come_out_as_plain_values():
    schema = SCHEMA.set(1, pa.field("k", pa.dictionary(pa.int32(), pa.string())))
    operator = counts("k", aggregates=[F.count("*"), F.max("k").alias("last")])
    result, late = operator.output_schemas([schema])
    assert result.field("k").type == late.field("k").type == pa.string()
    harness = Harness(operator)
    rows = batch([1, 2], pa.array(["b", "a"]).dictionary_encode(), schema)
    harness.recv(rows)
    harness.complete(0, SECOND)
    harness.recv(rows, 1)
    harness.complete(1)
    assert harness.table().schema == result
    assert harness.table().column("k").to_pylist() == ["a", "b"]
    assert harness.table(1).schema == late


def test_sums_that_leave_int64_are_refused_and_large_ones_are_exact():
    schema = pa.schema({"t": pa.timestamp("us"), "n": pa.int64()})
    operator = counts(aggregates=[F.sum("n")])

    def run(values):
        harness = Harness(operator)
        times = pa.array([0] * len(values), pa.timestamp("us"))
        harness.recv(pa.record_batch([times, values], schema=schema))
        harness.complete(0, SECOND)
        return harness.table()["sum(n)"].to_pylist()

    big = 2**63 - 1
    assert run([big, -big, 5, -(2**63), big]) == [4]
    with pytest.raises(UsageError, match="does not fit int64"):
        run([big, 1])


def test_decimals_nan_and_zero_signs():
    schema = pa.schema({"t": pa.timestamp("us"), "d": pa.decimal128(4, 2), "x": pa.float64()})
    made = [F.sum("d"), F.avg("d"), F.max("x"), F.min("x")]
    harness = Harness(counts(aggregates=made))
    times = pa.array([0, 0, 0], pa.timestamp("us"))
    decimals = [Decimal("99.99"), None, Decimal("0.01")]
    harness.recv(pa.record_batch([times, decimals, [float("nan"), -0.0, 0.0]], schema=schema))
    harness.complete(0, SECOND)
    (row,) = harness.table().drop_columns(["window"]).to_pylist()
    assert row["sum(d)"] == Decimal("100.00")
    assert row["avg(d)"] == 50.0
    assert np.isnan(row["max(x)"])  # greater than every number, as in Spark
    assert str(row["min(x)"]) == "0.0"


def test_a_session_grows_over_the_row_that_joins_two():
    window = Window("t", 10, 10, gap_us=10, name="session_window")
    harness = Harness(counts("k", window=window))
    harness.recv(batch([0, 18]), 0)
    harness.complete(0, 5)
    harness.recv(batch([9]), 1)
    harness.complete(1, 28)
    (row,) = harness.table().to_pylist()
    assert row["count"] == 3
    assert harness.asked == []
