"""lookup: a join with a small table."""

import random
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from penstock.errors import SchemaError
from penstock.operators.finder import Finder, _HashTable
from penstock.operators.lookup import Lookup

ADS = pa.table({"ad": ["a", "b", "c"], "campaign": [10, 20, None], "name": ["x", "y", "z"]})
EVENTS = pa.record_batch({"ad": ["b", "?", None, "a", "c", "b"], "n": [1, 2, 3, 4, 5, 6]})


def run(operator: Lookup, batch: pa.RecordBatch = EVENTS) -> list[dict[str, Any]]:
    (schema,) = operator.output_schemas([batch.schema])
    made = cloudpickle.loads(cloudpickle.dumps(operator)).kernel()(batch)
    assert made.schema == schema
    made.validate(full=True)
    return made.to_pylist()


def test_an_inner_lookup_drops_rows_without_a_match() -> None:
    assert run(Lookup(ADS, "ad", columns=["campaign"])) == [
        {"ad": "b", "n": 1, "campaign": 20},
        {"ad": "a", "n": 4, "campaign": 10},
        {"ad": "c", "n": 5, "campaign": None},
        {"ad": "b", "n": 6, "campaign": 20},
    ]


def test_a_left_lookup_keeps_them_with_nulls() -> None:
    made = run(Lookup(ADS, "ad", how="left", columns=["campaign"]))
    assert [row["campaign"] for row in made] == [20, None, None, 10, None, 20]
    assert [row["n"] for row in made] == [1, 2, 3, 4, 5, 6]


def test_all_other_columns_of_the_table_are_taken_by_default() -> None:
    assert run(Lookup(ADS, "ad"))[0] == {"ad": "b", "n": 1, "campaign": 20, "name": "y"}


def test_keys_may_have_different_names_and_no_column_need_be_taken() -> None:
    table = ADS.rename_columns(["id", "campaign", "name"])
    assert run(Lookup(table, {"ad": "id"}, columns=["id"]))[0] == {"ad": "b", "n": 1, "id": "b"}
    assert len(run(Lookup(table, {"ad": "id"}, columns=[]))) == 4


def test_several_key_columns() -> None:
    table = pa.table({"x": [1, 1, 2, None], "y": ["a", "b", "a", "a"], "v": [1, 2, 3, 4]})
    batch = pa.record_batch({"x": [1, 2, 2, None, 1], "y": ["b", "a", "b", "a", None]})
    made = run(Lookup(table, ["x", "y"], how="left"), batch)
    assert [row["v"] for row in made] == [2, 3, None, None, None]


def test_a_null_key_in_the_table_matches_nothing_and_may_repeat() -> None:
    table = pa.table({"ad": ["a", None, None], "v": [1, 2, 3]})
    assert [row["n"] for row in run(Lookup(table, "ad"))] == [4]


def test_an_empty_table_matches_nothing() -> None:
    table = pa.table({"ad": pa.array([], pa.string()), "v": pa.array([], pa.int64())})
    assert run(Lookup(table, "ad")) == []
    assert [row["v"] for row in run(Lookup(table, "ad", how="left"))] == [None] * 6


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (pa.array([1, 2, None]), pa.array([2, 7], pa.int32())),
        (pa.array([1, 2, None], pa.int8()), pa.array([2, 700], pa.int64())),
        (pa.array(["1", "2", None]).dictionary_encode(), pa.array(["2", "7"])),
        (pa.array(["1", "2", None]), pa.array(["2", "7"], pa.large_string())),
        (pa.array(["1", "2", None]), pa.array(["2", "7"]).dictionary_encode()),
        (pa.array([1.5, -0.0, None]), pa.array([0.0, 9.0])),
        (pa.array([1.5, float("nan"), None]), pa.array([float("nan"), 9.0])),
        (pa.array([True, False, None]), pa.array([False])),
        (
            pa.array([1, 2, None], pa.timestamp("ms")),
            pa.array([2000], pa.timestamp("us")),
        ),
        (pa.array([b"1", b"2", None], pa.binary(1)), pa.array([b"2"], pa.binary(1))),
        (pa.array([1, 2, None], pa.uint64()), pa.array([2], pa.uint64())),
    ],
)
def test_keys_of_related_types_match_by_value(ours: pa.Array, theirs: pa.Array) -> None:
    table = pa.table({"k": theirs, "v": list(range(len(theirs)))})
    made = run(Lookup(table, "k", how="left"), pa.record_batch({"k": ours}))
    assert [row["v"] for row in made] == [None, 0, None]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Lookup(ADS, "id"), "the table: no column 'id'"),
        (lambda: Lookup(ADS, {"nope": "ad"}), "no column 'nope'"),
        (lambda: Lookup(ADS, "ad", columns=["nme"]), "did you mean 'name'"),
        (lambda: Lookup(ADS, "ad", columns=["name", "name"]), "chosen twice"),
        (lambda: Lookup(ADS, "ad", columns=["ad"]), "in the stream and in the table"),
        (lambda: Lookup(ADS.append_column("n", ADS["name"]), "ad"), "in the stream and in the tab"),
        (lambda: Lookup(ADS, "ad", how="outer"), "'inner' or 'left'"),
        (lambda: Lookup(ADS, []), "at least one key"),
        (lambda: Lookup({"ad": ["a"]}, "ad"), "a pyarrow.Table, got dict"),
        (lambda: Lookup(ADS, {"n": "ad"}), "is int64, column 'ad' of the table is string"),
        (lambda: Lookup(pa.table({"ad": ["a", "b", "a"]}), "ad"), "{'ad': 'a'} is there 2 times"),
        (lambda: Lookup(pa.table({"ad": [["a"]]}), "ad"), "cannot be a key"),
    ],
)
def test_bad_lookups_are_refused(make: Any, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        make().output_schemas([EVENTS.schema])
    assert words in str(caught.value)


# -- the three ways to find a key ------------------------------------------------------------------

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "dense": (pa.int64(), st.integers(-20, 20)),
    "sparse": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "text": (pa.string(), st.text("abc", max_size=3)),
    "time": (pa.timestamp("us"), st.datetimes(datetime(1960, 1, 1), datetime(2030, 1, 1))),
}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_all_ways_find_the_same(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    values = st.tuples(*[KINDS[kind][1] for kind in kinds])
    table = data.draw(st.lists(values, unique=True, max_size=12))
    nullable = st.tuples(*[st.none() | KINDS[kind][1] for kind in kinds])
    known = st.sampled_from(table) if table else nullable
    wanted = data.draw(st.lists(known | nullable, max_size=12))
    types = [KINDS[kind][0] for kind in kinds]
    keys = [pa.array([row[i] for row in table], kind) for i, kind in enumerate(types)]
    ours = [pa.array([row[i] for row in wanted], kind) for i, kind in enumerate(types)]
    expected = [table.index(row) if row in table else None for row in wanted]
    assert Finder(keys).find(ours).to_pylist() == expected
    assert _HashTable(keys).find(ours).to_pylist() == expected


def test_large_tables_and_small_batches_use_the_kept_hash_table() -> None:
    rng = random.Random(3)
    names = [f"key-{i}" for i in range(20_000)]
    finder = Finder([pa.array(names)])
    wanted = [rng.choice(names) if rng.random() < 0.7 else f"other-{i}" for i in range(500)]
    found = finder.find([pa.array(wanted)])
    assert finder._table is not None
    places = {name: i for i, name in enumerate(names)}
    assert found.to_pylist() == [places.get(name) for name in wanted]


def test_integers_far_apart_and_at_the_ends() -> None:
    ends = pa.array([2**63 - 1, -(2**63), 0])
    assert Finder([ends]).find([pa.array([-(2**63), 5, 2**63 - 1])]).to_pylist() == [1, None, 0]
    near = Finder([pa.array(np.arange(100, 200))])
    assert near.find([pa.array([99, 100, 199, 200, -(2**63), 2**63 - 1])]).to_pylist() == [
        None, 0, 99, None, None, None,
    ]  # fmt: skip
