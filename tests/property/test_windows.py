"""Windows give what an obvious model gives, however their input is shuffled, cut and sharded."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators import terms as F
from penstock.operators.terms import Window
from penstock.operators.window import WindowAggregate
from penstock.testing import reference_operators as reference
from penstock.testing.scatter import scattered, wire_bytes

SCHEMA = pa.schema(
    {
        "t": pa.timestamp("us"),
        "k": pa.string(),
        "j": pa.int32(),
        "n": pa.int64(),
        "x": pa.float64(),
    }
)
AGGREGATES = [
    F.count("*"),
    F.count("n"),
    F.sum("n"),
    F.avg("n"),
    F.min("n"),
    F.max("x"),
    F.sum("x"),
    F.avg("x"),
    F.max("k").alias("last"),
]

finite = st.floats(allow_nan=False, allow_infinity=False, width=64).map(lambda x: x + 0.0)
rows = st.fixed_dictionaries(
    {
        "t": st.integers(-30, 120),
        "k": st.sampled_from(["a", "b", "c", None]),
        "j": st.sampled_from([0, 1, None]),
        "n": st.none() | st.integers(-(2**40), 2**40),
        "x": st.none() | st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16, 1e-300]) | finite,
    }
).filter(lambda row: row["x"] is None or abs(row["x"]) < 1e300)
epochs_of = st.lists(st.lists(rows, max_size=12), min_size=1, max_size=5)


@st.composite
def histories(draw):
    epochs = draw(epochs_of)
    steps = draw(
        st.lists(st.none() | st.integers(0, 50), min_size=len(epochs), max_size=len(epochs))
    )
    marks, mark = [], -20
    for step in steps:
        mark += step or 0
        marks.append(None if step is None else mark)
    return epochs, marks


def table(rows):
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def shard(row):
    return (0 if row["k"] is None else ord(row["k"])) + (row["j"] or 0)


def flat(outcome, name):
    """Rows as the model has them: the window's bounds as integers, beside the keys."""
    out = {}
    for epoch, found in outcome.rows():
        out[epoch] = []
        for row in found:
            bounds = row.pop(name)
            whole = {
                side: int(pa.scalar(at, pa.timestamp("us")).value) for side, at in bounds.items()
            }
            out[epoch].append(whole | row)
    return out


def same(found, expected):
    return found == {epoch: rows for epoch, rows in enumerate(expected) if rows}


def by_identity(row):
    return repr(sorted(row.items(), key=lambda item: item[0]))


@settings(max_examples=15, deadline=None)
@given(
    histories(),
    st.sampled_from([(10, 10), (10, 5), (10, 4), (7, 3), (30, 10), (5, 1)]),
    st.integers(0, 4),
    st.sampled_from([0, 7, 25]),
    st.sampled_from([["k"], ["k", "j"], []]),
    st.integers(0, 1000),
)
def test_windows_equal_the_model_in_every_schedule(history, shape, start, lateness, keys, seed):
    epochs, marks = history
    size, slide = shape
    window = Window("t", size, slide, start % slide)
    operator = WindowAggregate(window, keys, AGGREGATES, lateness)
    operator.output_schemas([SCHEMA])
    expected, late = reference.windows(
        epochs, marks, size, slide, start % slide, lateness, keys, AGGREGATES
    )
    inputs = [[table(rows)] for rows in epochs]
    outcomes = [
        scattered(operator, inputs, marks, seed=number, combined=combined)
        for combined in (False, True)
        for number in (seed, seed + 1)
    ]
    assert same(flat(outcomes[0], "window"), expected)
    first, second, third, fourth = (wire_bytes(one) for one in outcomes)
    assert first == second
    assert third == fourth == {place: sent for place, sent in first.items() if place[0] == 0}
    too_late = {e: sorted(map(by_identity, rows)) for e, rows in enumerate(late) if rows}
    sent_late = outcomes[0].rows(1)
    for _, found in sent_late:
        for row in found:
            row["t"] = int(pa.scalar(row["t"], pa.timestamp("us")).value)
    assert {e: sorted(map(by_identity, found)) for e, found in sent_late} == too_late
    count = sum(len(rows) for rows in late)
    assert all(one.counters.get("rows_late", 0) == count for one in outcomes)


@settings(max_examples=15, deadline=None)
@given(
    histories(),
    st.sampled_from([3, 10, 40]),
    st.sampled_from([0, 7, 25]),
    st.sampled_from([["k"], ["k", "j"], []]),
    st.integers(0, 1000),
)
def test_sessions_equal_the_model_in_every_schedule(history, gap, lateness, keys, seed):
    epochs, marks = history
    window = Window("t", gap, gap, gap_us=gap, name="session_window")
    operator = WindowAggregate(window, keys, AGGREGATES, lateness)
    expected, late = reference.sessions(epochs, marks, gap, lateness, keys, AGGREGATES)
    inputs = [[table(rows)] for rows in epochs]
    outcomes = [
        scattered(operator, inputs, marks, seed=number, combined=combined)
        for combined in (False, True)
        for number in (seed, seed + 1)
    ]
    assert same(flat(outcomes[0], "session_window"), expected)
    first, second, third, fourth = (wire_bytes(one) for one in outcomes)
    assert first == second
    assert third == fourth == {place: sent for place, sent in first.items() if place[0] == 0}
    sent_late = outcomes[0].rows(1)
    for _, found in sent_late:
        for row in found:
            row["t"] = int(pa.scalar(row["t"], pa.timestamp("us")).value)
    too_late = {e: sorted(map(by_identity, rows)) for e, rows in enumerate(late) if rows}
    assert {e: sorted(map(by_identity, found)) for e, found in sent_late} == too_late


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
@settings(max_examples=15, deadline=None)
@given(history=histories(), seed=st.integers(0, 1000), shards=st.integers(1, 4))
def test_shards_and_restarts_change_nothing(kind, history, seed, shards):
    epochs, marks = history
    window = {
        "tumbling": Window("t", 10, 10),
        "sliding": Window("t", 10, 4),
        "session": Window("t", 9, 9, gap_us=9),
    }[kind]
    operator = WindowAggregate(window, ["k", "j"], AGGREGATES, 7)
    inputs = [[table(rows)] for rows in epochs]
    whole = scattered(operator, inputs, marks, seed=seed)
    for combined in (False, True):
        spread = scattered(
            operator, inputs, marks, seed=seed, shards=shards, key=shard, combined=combined
        )
        for (epoch, rows), (other, parts) in zip(whole.rows(), spread.rows(), strict=True):
            assert epoch == other
            assert sorted(map(repr, rows)) == sorted(map(repr, parts))
        restarted = scattered(
            operator, inputs, marks, seed=seed, combined=combined, restart_after=seed % len(epochs)
        )
        ports = 1 if combined else 2
        for port in range(ports):
            assert restarted.rows(port) == whole.rows(port)
