"""Joins, distinct and running aggregates give what an obvious model gives, in every schedule."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators import terms as F
from penstock.operators.aggregate import RunningAggregate
from penstock.operators.distinct import Distinct
from penstock.operators.join import Join
from penstock.testing import reference_operators as reference
from penstock.testing.scatter import scattered, wire_bytes

STAMP = pa.timestamp("us")
LEFT = pa.schema({"k": pa.string(), "t": STAMP, "a": pa.int64()})
RIGHT = pa.schema({"k": pa.string(), "u": STAMP, "b": pa.float64()})
ROWS = pa.schema({"k": pa.string(), "t": STAMP, "n": pa.int64(), "x": pa.float64()})
AGGREGATES = [F.count("*"), F.sum("n"), F.sum("x"), F.min("x"), F.max("k").alias("last")]

keys = st.sampled_from(["a", "b", "c", None])
instants = st.integers(-20, 60)
lefts = st.fixed_dictionaries({"k": keys, "t": instants, "a": st.integers(0, 3)})
rights = st.fixed_dictionaries({"k": keys, "u": instants, "b": st.sampled_from([0.5, 1.5, None])})
rows = st.fixed_dictionaries(
    {
        "k": keys,
        "t": instants,
        "n": st.sampled_from([1, 2, None, 2**40]),
        "x": st.sampled_from([0.1, 0.2, 0.3, -0.3, 1e16, None]),
    }
)


@st.composite
def histories(draw, one_epoch):
    epochs = draw(st.lists(one_epoch, min_size=1, max_size=5))
    marks, mark = [], -20
    for _ in epochs:
        step = draw(st.none() | st.integers(0, 40))
        mark += step or 0
        marks.append(None if step is None else mark)
    return epochs, marks


def number(stamp):
    return None if stamp is None else int(pa.scalar(stamp, STAMP).value)


def of_key(row):
    return 0 if row["k"] is None else ord(row["k"])


def null_last(*values):
    return tuple((value is None, value) for value in values)


@settings(max_examples=40, deadline=None)
@given(
    histories(st.tuples(st.lists(lefts, max_size=8), st.lists(rights, max_size=8))),
    st.sampled_from(["inner", "left"]),
    st.sampled_from([0, 5, 20]),
    st.integers(0, 1000),
)
def test_join_equals_the_model_in_every_schedule(history, how, within, seed):
    epochs, marks = history
    operator = Join(["k"], how, within, "t", "u")
    schemas = operator.output_schemas([LEFT, RIGHT])
    expected = {}
    for epoch, pairs in enumerate(reference.join(epochs, marks, within, how, ("t", "u"))):
        made = [
            (left["k"], left["t"], left["a"], right and right["u"], right and right["b"])
            for left, right in pairs
        ]
        if made:
            expected[epoch] = sorted(made, key=lambda row: null_last(*row))
    inputs = [
        [pa.Table.from_pylist(one, LEFT), pa.Table.from_pylist(other, RIGHT)]
        for one, other in epochs
    ]
    runs = [
        scattered(operator, inputs, marks, seed=seed),
        scattered(operator, inputs, marks, seed=seed + 1),
        scattered(operator, inputs, marks, seed=seed, restart_after=seed % len(epochs)),
    ]
    found = {
        epoch: [(row["k"], number(row["t"]), row["a"], number(row["u"]), row["b"]) for row in sent]
        for epoch, sent in runs[0].rows()
    }
    assert found == expected
    assert wire_bytes(runs[0]) == wire_bytes(runs[1]) == wire_bytes(runs[2])
    assert all(b.schema == schemas[p] for (p, _), sent in runs[0].tables.items() for b in sent)
    spread = scattered(operator, inputs, marks, seed=seed, shards=3, key=of_key)
    late = sum(len(sent) for port in (1, 2) for _, sent in runs[0].rows(port))
    assert late == sum(runs[0].counters.get(f"rows_{why}", 0) for why in ("late", "without_time"))
    assert [(e, sorted(map(repr, sent))) for e, sent in spread.rows()] == [
        (e, sorted(map(repr, sent))) for e, sent in runs[0].rows()
    ]


@settings(max_examples=40, deadline=None)
@given(
    histories(st.lists(rows, max_size=10)),
    st.sampled_from([None, 0, 5, 20]),
    st.sampled_from([["k"], ["k", "n"], ["k", "t", "n", "x"]]),
    st.integers(0, 1000),
)
def test_distinct_equals_the_model_in_every_schedule(history, within, columns, seed):
    epochs, marks = history
    operator = Distinct(columns, within, None if within is None else "t")
    operator.output_schemas([ROWS])
    first = ["t", "k", "n", "x"] if within is not None else ["k", "t", "n", "x"]
    expected = reference.distinct(
        epochs, marks, within, columns, lambda row: null_last(*(row[name] for name in first))
    )
    inputs = [[pa.Table.from_pylist(one, ROWS)] for one in epochs]
    runs = [
        scattered(operator, inputs, marks, seed=seed),
        scattered(operator, inputs, marks, seed=seed + 1),
        scattered(operator, inputs, marks, seed=seed, restart_after=seed % len(epochs)),
    ]
    found = {
        epoch: [row | {"t": number(row["t"])} for row in sent] for epoch, sent in runs[0].rows()
    }
    assert found == {epoch: sent for epoch, sent in enumerate(expected) if sent}
    assert wire_bytes(runs[0]) == wire_bytes(runs[1]) == wire_bytes(runs[2])


@settings(max_examples=40, deadline=None)
@given(
    histories(st.lists(rows, max_size=10)),
    st.sampled_from([["k"], ["k", "n"], ["x"], []]),
    st.integers(0, 1000),
)
def test_running_aggregates_equal_the_model_in_every_schedule(history, columns, seed):
    epochs, marks = history
    operator = RunningAggregate(columns, AGGREGATES)
    (schema,) = operator.output_schemas([ROWS])
    expected = reference.running(epochs, columns, AGGREGATES)
    inputs = [[pa.Table.from_pylist(one, ROWS)] for one in epochs]
    runs = [
        scattered(operator, inputs, marks, seed=seed),
        scattered(operator, inputs, marks, seed=seed + 1, combined=True),
        scattered(operator, inputs, marks, seed=seed, restart_after=seed % len(epochs)),
    ]
    assert dict(runs[0].rows()) == {epoch: sent for epoch, sent in enumerate(expected) if sent}
    assert wire_bytes(runs[0]) == wire_bytes(runs[1]) == wire_bytes(runs[2])
    assert all(b.schema == schema for sent in runs[0].tables.values() for b in sent)
