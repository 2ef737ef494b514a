"""The hash that places rows: equal for equal values however they are stored, and never changing."""

import random
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.hashing import hash_column, is_hashable, shard_of, split_by_shard


def one(column: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"k": column})


def hashes(values: list[Any], kind: pa.DataType) -> list[int]:
    return hash_column(pa.array(values, kind)).tolist()


# -- golden values: what is stored by one version must be found by the next ------------------------

GOLDEN: list[tuple[pa.DataType, Any, int]] = [
    (pa.string(), "", 8848935107335307795),
    (pa.string(), "a", 12042446883408653451),
    (pa.string(), "12345678", 11122096439022616100),
    (pa.string(), "0b1f3a4e-9c55-4e0b-8f8e-6d1f1f0a7c11", 3100593628037802600),
    (pa.string(), "ä" * 300, 13698095006343150895),
    (pa.binary(), b"\x00\xff", 3187457115602023142),
    (pa.int64(), 0, 0),
    (pa.int64(), -1, 7256831767414464289),
    (pa.int32(), 42, 9297814886316923340),
    (pa.int64(), 2**63 - 1, 12373989555017149930),
    (pa.float64(), 1.5, 9826234843501278960),
    (pa.float64(), -0.0, 0),
    (pa.float64(), float("nan"), 16325646915251551109),
    (pa.bool_(), True, 12994781566227106604),
    (pa.bool_(), False, 0),
    (pa.date32(), date(2024, 2, 29), 18317267186377980178),
    (pa.timestamp("us"), datetime(2024, 1, 1), 857529606464289337),
    (pa.decimal128(10, 2), Decimal("-12.34"), 7510500764413892262),
    (pa.struct({"x": pa.int64()}), {"x": 7}, 13981350809975463644),
    (pa.string(), None, 7959387129412676716),
]


@pytest.mark.parametrize(("kind", "value", "expected"), GOLDEN)
def test_hashes_never_change(kind: pa.DataType, value: Any, expected: int) -> None:
    assert hashes([value], kind) == [expected]


def test_shards_never_change() -> None:
    batch = pa.record_batch({"a": ["x", "y", None, "zz"], "b": [1, 2, 3, None]})
    assert shard_of(batch, ("a",), 16).tolist() == SHARDS_A
    assert shard_of(batch, ("a", "b"), 16).tolist() == SHARDS_AB


SHARDS_A: list[int] = [4, 14, 6, 13]
SHARDS_AB: list[int] = [13, 15, 11, 6]


# -- equal values have equal hashes ----------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
)
def test_the_width_of_an_integer_does_not_matter(kind: pa.DataType) -> None:
    assert hashes([0, 1, 100], kind) == hashes([0, 1, 100], pa.int64())


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
)
def test_the_kind_of_string_does_not_matter(kind: pa.DataType) -> None:
    texts = ["", "a", "12345678", "123456789", "ä" * 20, None, "x" * 1000]
    plain = pa.array(texts)
    stored = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain.cast(kind)
    assert hash_column(stored).tolist() == hash_column(plain).tolist()


def test_fixed_size_binary_agrees_with_binary() -> None:
    values = [b"0123456789abcdef", b"fedcba9876543210", None]
    assert hashes(values, pa.binary(16)) == hashes(values, pa.binary())
    assert hash_column(pa.array(values, pa.binary(16)).slice(1)).tolist() == hashes(
        values[1:], pa.binary()
    )


def test_zeros_are_equal_and_so_are_nans() -> None:
    other_nan = np.array([0x7FF8000000000123], np.uint64).view(np.float64)
    assert len(set(hash_column(pa.array([0.0, -0.0])).tolist())) == 1
    both = pa.array(np.concatenate([other_nan, [np.nan]]), from_pandas=False)
    assert len(set(hash_column(both).tolist())) == 1
    assert hashes([1.5], pa.float32()) == hashes([1.5], pa.float64())


def test_the_unit_of_a_timestamp_does_not_matter() -> None:
    when = [datetime(2024, 1, 2, 3, 4, 5), None]
    expected = hashes(when, pa.timestamp("us"))
    for unit in ("s", "ms", "ns"):
        assert hashes(when, pa.timestamp(unit)) == expected
    assert hash_column(pa.array(when, pa.timestamp("us", "UTC"))).tolist() == expected


def test_a_run_end_encoded_column_hashes_like_a_plain_one() -> None:
    plain = pa.array(["a", "a", "b", None])
    encoded = pa.RunEndEncodedArray.from_arrays([2, 3, 4], ["a", "b", None])
    assert hash_column(encoded).tolist() == hash_column(plain).tolist()


def test_a_null_is_no_value_of_its_type() -> None:
    assert hashes([None], pa.int64()) != hashes([0], pa.int64())
    assert hashes([None], pa.string()) != hashes([""], pa.string())
    assert hashes([None], pa.int64()) == hashes([None], pa.string())


def test_nulls_in_dictionaries_and_structs() -> None:
    in_values = pa.DictionaryArray.from_arrays([0, 1, None], ["a", None])
    assert hash_column(in_values).tolist() == hashes(["a", None, None], pa.string())
    kind = pa.struct({"x": pa.int64(), "y": pa.string()})
    rows = [{"x": 1, "y": "a"}, None, {"x": None, "y": None}, {"x": 1, "y": "a"}]
    first, none, empty, again = hashes(rows, kind)
    assert first == again
    assert len({first, none, empty}) == 3
    assert hash_column(pa.array(rows, kind).slice(1)).tolist() == [none, empty, again]


def test_bytes_past_the_end_do_not_leak_into_a_hash() -> None:
    long = pa.array(["abcdefghij", "abcdefghijklmnop"])
    alone = [hashes([text], pa.string())[0] for text in ("abcdefghij", "abcdefghijklmnop")]
    assert hash_column(long).tolist() == alone


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_hashes_depend_on_values_only(data: st.DataObject) -> None:
    kind, values = data.draw(
        st.sampled_from(
            [
                (pa.string(), st.text(max_size=40)),
                (pa.binary(), st.binary(max_size=700)),
                (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
                (pa.float64(), st.floats()),
                (pa.bool_(), st.booleans()),
                (pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
                (pa.decimal128(20, 3), st.decimals(-(10**9), 10**9, places=3)),
            ]
        )
    )
    rows = data.draw(st.lists(st.none() | values, max_size=40))
    whole = hashes(rows, kind)
    assert whole == [hashes([row], kind)[0] for row in rows]
    cut = data.draw(st.integers(0, len(rows)))
    array = pa.array(rows, kind)
    parts = [array.slice(0, cut), array.slice(cut)]
    assert [h for part in parts for h in hash_column(part).tolist()] == whole


# -- distribution ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(20_000)),
        pa.array([i * 1024 for i in range(20_000)]),
        pa.array([f"user_{i}" for i in range(20_000)]),
        pa.array([f"{i:08d}{i % 7:08d}" for i in range(20_000)]),
        pa.array([i * 0.25 for i in range(20_000)]),
        pa.array([Decimal(i) / 4 for i in range(20_000)], pa.decimal128(10, 2)),
    ],
    ids=["range", "multiples", "names", "padded", "floats", "decimals"],
)
@pytest.mark.parametrize("shards", [2, 7, 16])
def test_keys_spread_evenly(column: pa.Array, shards: int) -> None:
    counts = np.bincount(shard_of(one(column), ("k",), shards), minlength=shards)
    assert len(np.unique(hash_column(column))) == len(column)
    assert counts.min() > 0.9 * len(column) / shards
    assert counts.max() < 1.1 * len(column) / shards


def test_the_order_of_key_columns_matters() -> None:
    batch = pa.record_batch({"a": list(range(1000)), "b": list(range(1, 1001))})
    forth, back = shard_of(batch, ("a", "b"), 1000), shard_of(batch, ("b", "a"), 1000)
    assert (forth != back).mean() > 0.9


# -- splitting -------------------------------------------------------------------------------------


def test_a_split_keeps_every_row_once_and_in_order() -> None:
    rng = random.Random(5)
    batch = pa.record_batch(
        {"k": [rng.choice(["a", "b", "c", None, "d"]) for _ in range(500)], "n": list(range(500))}
    )
    parts = split_by_shard(batch, ("k",), 3)
    places = shard_of(batch, ("k",), 3)
    for shard, part in enumerate(parts):
        expected = np.flatnonzero(places == shard).tolist()
        assert (part.column("n").to_pylist() if part is not None else []) == expected
    assert sum(part.num_rows for part in parts if part is not None) == 500


def test_one_shard_gets_the_batch_itself() -> None:
    batch = one(pa.array([1, 2]))
    assert split_by_shard(batch, ("k",), 1)[0] is batch


def test_rows_of_one_shard_are_not_copied() -> None:
    batch = one(pa.array(["a"] * 10))
    parts = split_by_shard(batch, ("k",), 8)
    assert next(part for part in parts if part is not None) is batch
    assert sum(part is None for part in parts) == 7


def test_without_key_columns_all_rows_are_in_one_shard() -> None:
    assert split_by_shard(one(pa.array([1, 2])), (), 2)[1] is None


def test_an_empty_batch_has_no_parts() -> None:
    assert split_by_shard(one(pa.array([], pa.string())), ("k",), 4) == [None] * 4


def test_lists_and_maps_cannot_be_keys() -> None:
    assert not is_hashable(pa.list_(pa.int64()))
    assert not is_hashable(pa.struct({"x": pa.map_(pa.string(), pa.int64())}))
    assert is_hashable(pa.struct({"x": pa.dictionary(pa.int8(), pa.string())}))
