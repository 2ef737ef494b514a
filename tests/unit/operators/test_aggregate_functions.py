"""Every aggregate gives the same to the byte, however its rows are cut and merged, and restored."""

import math
from datetime import date

import numpy as np
import pyarrow as pa
import pytest

from penstock.operators.aggregate import RunningAggregate
from penstock.operators.aggregate_functions import AGGREGATES
from penstock.operators.aggregates import Aggregation
from penstock.operators.terms import Aggregate
from penstock.testing.harness import Harness

ROWS = pa.table(
    {
        "k": ["a", "b", "a", "a", "b", "a", "c", "a"],
        "n": pa.array([3, 1, 2, None, 1, 3, None, 8], pa.int64()),
        "x": pa.array([1.5, math.nan, -0.0, 2.5, 0.0, None, None, 1e300]),
        "s": pa.array(["x", "", None, "x", "ä", "b", None, "x"]),
        "p": pa.array([True, False, None, True, True, False, None, True]),
        "d": pa.array([date(2024, 1, i) for i in range(1, 9)]),
    }
)
COLUMNS = {"boolean": "p", "string": "s", "integer": "n"}


def aggregate(name: str) -> Aggregate:
    kind = AGGREGATES[name]
    column = COLUMNS.get(kind.takes, "x" if kind.takes == "number" else "n")
    others = ("n" if kind.takes == "number" else "d",) if kind.columns == 2 else ()
    return Aggregate(name, column, "made", others, (0.5,) if "percentile" in name else ())


def partials(aggregation: Aggregation, rows: pa.Table) -> pa.Table:
    names, arrays = aggregation.prepared(rows.combine_chunks())
    return aggregation.combine(pa.Table.from_arrays(arrays, names=names), ["k"])


@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_the_order_of_rows_and_merges_shows_in_nothing(name: str) -> None:
    aggregation = Aggregation(["k"], [aggregate(name)])
    whole = partials(aggregation, ROWS).sort_by("k")
    random = np.random.default_rng(5)
    for _ in range(5):
        order = random.permutation(ROWS.num_rows)
        cut = int(random.integers(1, ROWS.num_rows))
        pieces = [ROWS.take(pa.array(part)) for part in (order[:cut], order[cut:])]
        both = pa.concat_tables([partials(aggregation, piece) for piece in pieces])
        merged = aggregation.merge(both.combine_chunks(), ["k"]).sort_by("k")
        assert repr(merged.to_pylist()) == repr(whole.to_pylist())
        (mine,), (theirs,) = (aggregation.results(one) for one in (merged, whole))
        assert repr(mine.to_pylist()) == repr(theirs.to_pylist())


@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_a_restored_state_goes_on_as_if_nothing_had_happened(name: str) -> None:
    operator = RunningAggregate(["k"], [aggregate(name)])
    first, second = ROWS.slice(0, 4), ROWS.slice(4)
    straight = Harness(operator)
    for epoch, rows in enumerate((first, second)):
        straight.recv(rows.combine_chunks().to_batches()[0], epoch=epoch)
        straight.complete(epoch)
    before = Harness(operator)
    before.recv(first.combine_chunks().to_batches()[0], epoch=0)
    before.complete(0)
    after = before.restarted(operator)
    after.recv(second.combine_chunks().to_batches()[0], epoch=1)
    after.complete(1)
    (mine,), (theirs,) = (one.batches(epoch=1) for one in (after, straight))
    assert repr(mine.to_pylist()) == repr(theirs.to_pylist())
