"""Join, distinct, running aggregates, and the tables they stand on."""

import math
import random

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.vertex import Time, Vertex
from penstock.errors import SchemaError, SettingsError
from penstock.operators import encoding, exact_sum
from penstock.operators import terms as F
from penstock.operators.aggregate import RunningAggregate
from penstock.operators.base import Hash, Single
from penstock.operators.distinct import Distinct
from penstock.operators.encoding import Encoder
from penstock.operators.join import Join
from penstock.operators.key_hash import key_hashes
from penstock.operators.keyed_store import KeyedStore
from penstock.testing.harness import Harness

STAMP = pa.timestamp("us")
LEFT = pa.schema({"k": pa.string(), "t": STAMP, "a": pa.int64()})
RIGHT = pa.schema({"k": pa.string(), "u": STAMP, "b": pa.int64()})


# -- join ----------------------------------------------------------------------------------------


def join(how="inner", on=("k",), times=("t", "u")):
    return Join(list(on), how, 10, *times)


@pytest.mark.parametrize(
    ("operator", "right", "words"),
    [
        (join(), RIGHT.set(0, pa.field("k", pa.int64())), "string on the left and int64"),
        (join(), RIGHT.append(pa.field("a", pa.int8())), "both sides have a column 'a'"),
        (join(times=("t", "b")), RIGHT, "needs a timestamp, but column 'b' is int64"),
        (join(on=("key",)), RIGHT, "no column 'key'"),
    ],
)
def test_joins_that_cannot_work_are_refused(operator, right, words):
    with pytest.raises(SchemaError) as caught:
        operator.output_schemas([LEFT, right])
    assert words in str(caught.value)


def test_join_offers_inner_and_left_only():
    with pytest.raises(SettingsError, match="outer"):
        join("outer")


def test_left_rows_leave_alone_even_if_the_right_never_sent_anything():
    operator = join("left")
    schema, *_ = operator.output_schemas([LEFT, RIGHT])
    harness = Harness(operator)
    harness.recv(pa.record_batch([["x", None], pa.array([1, 2], STAMP), [1, 2]], schema=LEFT))
    harness.complete(0, 11)
    assert harness.sent == []
    harness.complete(1, 13)
    assert harness.table().schema == schema
    assert [row["b"] for row in harness.table().to_pylist()] == [None, None]
    assert harness.asked == []


def test_join_counts_late_rows_and_sends_them_on_a_port_of_their_side():
    harness = Harness(join())
    harness.complete(0, 100)
    harness.recv(pa.record_batch([["x", "x"], pa.array([89, 90], STAMP), [1, 2]], schema=LEFT), 1)
    harness.recv(pa.record_batch([["x"], pa.array([95], STAMP), [9]], schema=RIGHT), 1, port=1)
    harness.complete(1)
    assert harness.table()["a"].to_pylist() == [2]
    assert harness.counters == {"rows_late": 1, "rows_behind": 2}
    assert harness.table(1)["a"].to_pylist() == [1]


# -- distinct ------------------------------------------------------------------------------------


def test_distinct_keeps_the_smallest_row_of_the_first_epoch():
    harness = Harness(Distinct(["k"]))
    rows = pa.record_batch([["x", "x"], pa.array([2, 1], STAMP), [0, 7]], schema=LEFT)
    harness.recv(rows, 0)
    harness.complete(0)
    harness.recv(rows, 1)
    harness.complete(1)
    assert harness.table().to_pylist() == rows.slice(1).to_pylist()
    assert Distinct(["k"]).exchanges([LEFT]) == (Hash(("k",)),)


def test_distinct_within_forgets_keys_that_the_watermark_passed():
    operator = Distinct(["k"], 10, "t")
    assert operator.needs_watermark
    assert not Distinct(["k"]).needs_watermark
    harness = Harness(operator)
    harness.recv(pa.record_batch([["x"], pa.array([5], STAMP), [0]], schema=LEFT), 0)
    harness.complete(0, 5)
    assert harness.asked
    harness.complete(1, 16)
    assert harness.asked == []
    assert harness.vertex.snapshot() == {}


def test_distinct_refuses_nested_keys_and_within_without_time():
    with pytest.raises(SchemaError, match="cannot be a key"):
        Distinct(["l"]).output_schemas([pa.schema({"l": pa.list_(pa.int8())})])
    with pytest.raises(SettingsError, match="time column"):
        Distinct(["k"], 10, None)


def test_distinct_sorts_rows_with_nested_columns_too():
    schema = pa.schema({"k": pa.string(), "l": pa.list_(pa.int64())})
    rows = pa.record_batch([["a", "a"], [[2], [1]]], schema=schema)
    harness = Harness(Distinct(["k"]))
    harness.recv(rows)
    harness.complete(0)
    assert harness.table().to_pylist() == [{"k": "a", "l": [1]}]


# -- running aggregates --------------------------------------------------------------------------


def test_running_aggregate_of_everything_is_single():
    operator = RunningAggregate([], [F.count("*")])
    assert operator.exchanges([LEFT]) == (Single(),)
    harness = Harness(operator)
    for epoch in range(3):
        harness.recv(pa.record_batch({"k": ["a", "b"]}), epoch)
        harness.complete(epoch)
    assert harness.table()["count"].to_pylist() == [2, 4, 6]


def test_running_aggregate_of_many_keys_keeps_its_log_short():
    operator = RunningAggregate(["k"], [F.sum("n"), F.min("s")])
    harness = Harness(operator)
    chance = np.random.default_rng(1)
    totals = {}
    for epoch in range(60):
        keys = chance.integers(0, 3000, 500)
        harness.recv(
            pa.record_batch({"k": keys, "n": keys * 3, "s": [f"s{key}" for key in keys]}), epoch
        )
        harness.complete(epoch)
        for key in keys.tolist():
            totals[key] = totals.get(key, 0) + key * 3
    last = {row["k"]: row["sum(n)"] for row in harness.table().to_pylist()}
    assert last == totals
    store = harness.vertex._store
    assert len(store) == len(totals)
    assert store.rows_in_log <= 2 * len(store) + 1024


# -- tables in memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("weak", [False, True])
def test_keyed_store_is_a_dict_whatever_the_hash_is_worth(weak):
    def few(columns, rows):
        return key_hashes(columns, rows) % np.uint64(7)

    store = KeyedStore(["k", "j"], few if weak else key_hashes)
    model = {}
    chance = random.Random(5)
    for step in range(40):
        keys = [(chance.choice(["x", "y", None, ""]), chance.choice([1.5, None, 0.0, -7.25]))]
        keys += [(f"k{chance.randrange(60)}", float(chance.randrange(3))) for _ in range(20)]
        keys = list(dict.fromkeys(keys))
        table = pa.table(
            {
                "k": pa.array([key for key, _ in keys], pa.string()),
                "j": pa.array([key for _, key in keys], pa.float64()),
                "v": [step] * len(keys),
            }
        )
        found = store.find(table)
        expected = [(*key, model[key]) for key in keys if key in model]
        rows = store.rows(found)
        assert (
            [] if rows is None else [tuple(row.values()) for row in rows.to_pylist()]
        ) == expected
        store.put(table, found if step % 2 else None)
        model |= dict.fromkeys(keys, step)
    assert len(store) == len(model)
    whole = {(row["k"], row["j"]): row["v"] for row in store.table().to_pylist()}
    assert whole == model


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False, None]),
        pa.array([1, -1, None], pa.int8()),
        pa.array([1, 2, 3], pa.uint64()),
        pa.array(["a", "ab", "", None, "a" * 100]),
        pa.array([b"a", b"a\x00"], pa.large_binary()),
        pa.array([b"abc", b"abd"], pa.binary(3)),
        pa.array([1, 2], pa.decimal128(20, 2)),
        pa.array([1, 2], pa.date32()),
    ],
)
def test_key_hashes_tell_values_apart_and_do_not_depend_on_slices(values):
    hashes = key_hashes([values], len(values)).tolist()
    assert len(set(hashes)) == len(hashes)
    assert key_hashes([values.slice(1)], len(values) - 1).tolist() == hashes[1:]


def test_encoder_gives_the_same_whether_it_knew_the_keys_or_not():
    chance = random.Random(3)
    names = [f"{chance.getrandbits(64):016x}-{i:03d}" for i in range(200)]
    encoder = Encoder()
    for size in (10, 50, 50, 1, 120, 200, 200, 30):
        values = pa.array(chance.choices(names[:size], k=300))
        codes, distinct = encoder.encode(values)
        fresh_codes, fresh = Encoder().encode(values)
        assert codes.tolist() == fresh_codes.tolist()
        assert distinct.equals(fresh)
        assert distinct.take(pa.array(codes)).equals(values)
    assert encoder._known is not None


def test_encoder_gives_up_on_keys_that_never_come_again():
    encoder = Encoder()
    for step in range(encoding._PATIENCE + 5):
        values = pa.array([f"{step:04d}{i:04d}" for i in range(10)])
        codes, distinct = encoder.encode(values)
        assert distinct.take(pa.array(codes)).equals(values)
    assert encoder._misses == encoding._PATIENCE


def test_exact_sums_round_like_fsum():
    chance = random.Random(7)
    for _ in range(200):
        values = [chance.uniform(-1, 1) * 10.0 ** chance.randint(-320, 290) for _ in range(30)]
        codes = np.zeros(30, np.int64)
        half = exact_sum.exact(codes[:15], 1, pa.array(values[:15]))
        other = exact_sum.exact(codes[15:], 1, pa.array(values[15:]))
        both = exact_sum.merge(np.zeros(2, np.int64), 1, pa.concat_arrays([other, half]))
        assert both.equals(exact_sum.exact(codes, 1, pa.array(values)))
        assert exact_sum.rounded(both).to_pylist() == [math.fsum(values)]


def test_exact_sums_of_infinities_nan_and_nothing():
    inf, nan = math.inf, math.nan
    values = pa.array([inf, 1.0, inf, -inf, nan, None, 1.7e308, 1.7e308])
    sums = exact_sum.rounded(exact_sum.exact(np.array([0, 0, 1, 1, 2, 3, 4, 4]), 5, values))
    assert sums.is_valid().to_pylist() == [True, True, True, False, True]
    assert sums[0].as_py() == sums[4].as_py() == inf
    assert math.isnan(sums[1].as_py())
    assert math.isnan(sums[2].as_py())


# -- the harness ---------------------------------------------------------------------------------


class Backwards(Vertex):
    def onRecv(self, port, batch, time):
        self.notifyAt(time)

    def onNotify(self, time):
        self.sendBy(0, pa.record_batch({"n": [1]}), Time.root(time.epoch - 1))


def test_harness_refuses_what_a_vertex_must_not_do():
    harness = Harness(Backwards())
    harness.recv(pa.record_batch({"n": [1]}), 3)
    with pytest.raises(ValueError, match="sent a batch at"):
        harness.complete(3)
    with pytest.raises(ValueError, match="complete already"):
        harness.recv(pa.record_batch({"n": [1]}), 2)
    harness.complete(4, watermark=5)
    with pytest.raises(ValueError, match="cannot go back"):
        harness.complete(5, watermark=4)
