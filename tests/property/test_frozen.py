"""A vertex's values survive being frozen, packed and thawed."""

import datetime
import decimal
import enum
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.time import Time
from penstock.engine.store.state_codec import freeze, freeze_attributes, thaw
from penstock.errors import FunctionError

keys = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(datetime.timezone(datetime.timedelta(hours=2)))),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.builds(Time, st.integers(0, 9), st.lists(st.integers(0, 9), max_size=2)),
    st.integers(0, 9).map(np.int32),
)
leaves = st.one_of(
    keys,
    st.floats(allow_nan=False),
    st.lists(st.integers(0, 9), max_size=3).map(lambda n: pa.table({"n": pa.array(n, pa.int64())})),
    st.lists(st.text(max_size=2), max_size=3).map(
        lambda k: pa.record_batch({"k": pa.array(k, pa.string())})
    ),
    st.lists(st.none() | st.floats(allow_nan=False), max_size=3).map(
        lambda x: pa.array(x, pa.float64())
    ),
    st.just(pa.schema({"n": pa.int64()})),
    st.just(pa.list_(pa.string())),
    st.integers(0, 9).map(pa.scalar),
)


def containers(inner):
    pairs = st.lists(st.tuples(keys, inner), max_size=3)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda values: deque(values, maxlen=4)),
        st.sets(keys, max_size=3),
        st.frozensets(keys, max_size=3),
        pairs.map(dict),
        pairs.map(OrderedDict),
        pairs.map(lambda found: defaultdict(list, found)),
        st.dictionaries(keys, st.integers(0, 9), max_size=3).map(Counter),
    )


def packed(value, owner=None):
    tables = []
    plain = msgpack.unpackb(msgpack.packb(freeze(value, tables, owner)), use_list=False)
    return thaw(plain, tables, owner)


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: list[int]


@dataclass(frozen=True)
class Account:
    owner: str
    moves: list[int]


@dataclass(slots=True)
class Slotted:
    n: int
    other: Any = None


class Hidden:
    """Makes objects whose class nobody finds by name."""

    def inner(self):
        class Inner:
            pass

        return Inner()


def test_objects_are_made_again_without_their_constructors():
    moves = [1]
    value = [Account("a", moves), Point(1, moves), Slotted(3), Colour.RED]
    back = packed(value)
    assert back == value
    assert back[0].moves is back[1].y


def test_objects_may_refer_to_each_other():
    one, two = Slotted(1), Slotted(2)
    one.other, two.other = two, one
    back = packed({"a": one, "b": two})
    assert back["a"].other is back["b"]
    assert back["b"].other is back["a"]


def test_a_class_that_only_the_owners_functions_see_is_found():
    @dataclass
    class Local:
        n: int

    class Owner:
        def made(self):
            return Local(5)

    assert packed([Owner().made()], Owner) == [Local(5)]
    with pytest.raises(FunctionError, match="Local"):
        packed([Local(5)])


@given(st.recursive(leaves, containers, max_leaves=12))
def test_values_come_back_with_their_types(value):
    back = packed(value)
    assert type(back) is type(value)
    assert back == value


@given(st.sets(keys, max_size=6), st.randoms())
def test_the_order_of_a_set_does_not_show(values, shuffle):
    turned = list(values)
    shuffle.shuffle(turned)
    assert freeze(values, []) == freeze(set(turned), [])


def test_arrays_are_copied_and_keep_shape_and_type():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    tables = []
    plain = freeze([array, np.array(5), np.array([], "datetime64[us]")], tables)
    expected = array.copy()
    array[:] = 0
    one, two, three = thaw(plain, tables)
    assert (one == expected).all()
    assert one.dtype == np.float32
    assert two.shape == ()
    assert three.dtype == np.dtype("datetime64[us]")
    one[0, 0] = 1


def test_a_large_array_is_put_aside():
    tables = []
    array = np.arange(1000, dtype=">i4").reshape(10, 100)
    plain = freeze({"a": array}, tables)
    assert tables[0].table().nbytes == array.nbytes
    back = thaw(plain, tables)["a"]
    assert (back == array).all()
    assert back.dtype == array.dtype
    back[0, 0] = 1


def test_two_names_of_one_list_stay_two_names_of_one_list():
    inner = [1]
    outer = {"a": inner, "b": (inner,), "round": []}
    outer["round"].append(outer)
    back = packed(outer)
    assert back["a"] is back["b"][0]
    assert back["round"][0] is back
    back["a"].append(2)
    assert back["b"] == ([1, 2],)


def test_arrow_data_is_not_copied():
    table = pa.table({"n": [1, 2]})
    tables = []
    freeze({"rows": table}, tables)
    assert tables[0] is table


def test_random_numbers_go_on():
    numbers = random.Random(5)
    numbers.random()
    back = packed(numbers)
    assert [back.random() for _ in range(3)] == [numbers.random() for _ in range(3)]


def test_functions_that_are_there_from_the_start_are_left_out():
    tables = []
    values = {"f": len, "kind": int, "n": 1}
    assert thaw(freeze_attributes(values, values, tables), tables) == {"n": 1}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.array([{}]), "ndarray"),
        (defaultdict(lambda: 1), "defaultdict"),
        ([{"a": threading.Lock()}], r"\[0\]\['a'\] is of type _thread.lock"),
        (len, "builtin_function"),
        (decimal.Context(), "Context"),
        (Hidden().inner(), "Inner"),
        (iter([1]), "list_iterator"),
    ],
)
def test_other_types_are_refused(value, name):
    with pytest.raises(FunctionError, match=name):
        freeze(value, [])
