"""A store of rows by key that is filled from the history of another one."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.operators.grown import Grown
from penstock.operators.keyed_store import KeyedStore


def few_hashes(keys, rows):
    """Different keys with equal hashes."""
    return (np.asarray(keys[0].fill_null(7)) % 3).astype(np.uint64)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("collide", [False, True])
def test_a_history_has_the_newest_row_of_each_key(seed, collide):
    generator = np.random.default_rng(seed)
    made = {"hashes": few_hashes} if collide else {}
    store = KeyedStore(["k"], **made)
    expected = {}
    for number in range(generator.integers(1, 40)):
        keys = generator.permutation(30)[: generator.integers(1, 20)].tolist()
        keys = [None if key == 0 else key for key in keys]
        store.put(
            pa.table(
                {"k": pa.array(keys, pa.int64()), "n": [100 * number + i for i in range(len(keys))]}
            )
        )
        expected.update({key: 100 * number + i for i, key in enumerate(keys)})
    other = KeyedStore(["k"], **made)
    other.load(store.history())
    rows = other.table()
    assert dict(zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True)) == expected
    assert rows.num_rows == len(other) == len(expected)
    assert rows == store.table()


def test_an_empty_history_is_an_empty_store():
    store = KeyedStore(["k"])
    assert store.history() is None
    store.load(Grown.of(pa.table({"k": pa.array([], pa.string())}), None))
    assert len(store) == 0
