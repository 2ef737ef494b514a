"""Control messages: every type there is survives the wire, and nothing else gets through it."""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.control.host_orders import EndHost, KillHost, PlayRoles, RoleOrder, StartReading
from penstock.core.control.messages import ControlMessage, RingPing, ToDriver, ToHost
from penstock.core.control.roster import DRIVER
from penstock.core.time import Time
from penstock.errors import PeerError
from penstock.wire.control import (
    VERSION,
    Greeting,
    decode_greeting,
    decode_to_driver,
    decode_to_host,
    encode,
    encode_greeting,
    kinds_of,
)

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=5),
    bool: st.booleans(),
    bytes: st.binary(max_size=5),
    types.NoneType: st.none(),
    Time: st.lists(st.integers(0, 1 << 40), min_size=1, max_size=3).map(Time.from_wire),
}
KINDS = kinds_of(ControlMessage)


@cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated type; fails for a type that no message may have."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is frozenset:
        return st.frozensets(values_of(arguments[0]), max_size=2)
    if origin is Mapping:
        return st.dictionaries(*map(values_of, arguments), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"), hint
    return _structs_of(hint)


def _structs_of(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    names = getattr(kind, "_fields", None) or [one.name for one in dataclasses.fields(kind)]
    return st.builds(kind, **{name: values_of(hints[name]) for name in names})


def decode(message: Any) -> Any:
    packed = encode(message)
    if type(message) in kinds_of(ToHost):
        return decode_to_host(packed, DRIVER)
    return decode_to_driver(packed, 3)


def shape(value: Any) -> Any:
    """The types inside a value: a plain tuple equals a NamedTuple, but is none."""
    if isinstance(value, tuple):
        return type(value), tuple(map(shape, value))
    if isinstance(value, dict):
        return dict, {(key, shape(key)): shape(one) for key, one in value.items()}
    if dataclasses.is_dataclass(value):
        return type(value), [shape(getattr(value, one.name)) for one in dataclasses.fields(value)]
    return type(value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(values_of(kind))
    back = decode(message)
    assert back == message
    assert shape(back) == shape(message)


@given(values_of(Greeting))
def test_a_greeting_comes_out_as_it_went_in(greeting: Greeting) -> None:
    assert decode_greeting(encode_greeting(greeting)) == greeting


def test_a_message_goes_one_way_or_between_peers() -> None:
    assert set(KINDS) == set(kinds_of(ToHost)) | set(kinds_of(ToDriver))
    both = set(kinds_of(ToHost)) & set(kinds_of(ToDriver))
    assert {kind.__name__ for kind in both} == {"RingPing", "RingPong", "RoleEnvelopes"}
    assert len({kind.__name__ for kind in KINDS}) == len(KINDS)


def test_only_the_driver_gives_orders() -> None:
    for order in (KillHost(), EndHost(), StartReading()):
        assert decode_to_host(encode(order), DRIVER) == order
        with pytest.raises(PeerError, match=f"host 3 sent '{type(order).__name__}', a kind that"):
            decode_to_host(encode(order), 3)
    assert decode_to_host(encode(RingPing(7, {})), 3) == RingPing(7, {})


def test_messages_are_frozen_and_documented() -> None:
    for kind in (*KINDS, *kinds_of(RoleOrder), Greeting):
        assert kind.__dataclass_params__.frozen, kind
        assert not (kind.__doc__ or "").startswith(f"{kind.__name__}("), kind


WRONG = {
    "another version": (
        (VERSION + 1, "HostReady", ()),
        f"version {VERSION + 1} of the control protocol",
    ),
    "an unknown kind": ((VERSION, "HostRaedy", ()), "host 3 sent 'HostRaedy', a kind that"),
    "a kind that is no text": ((VERSION, ["HostReady"], ()), "a kind that the driver does not"),
    "an order": ((VERSION, "EndHost", ()), "host 3 sent 'EndHost', a kind that the driver"),
    "no message": ("HostReady", "cannot be read"),
    "too many fields": ((VERSION, "HostReady", (1,)), "wrong HostReady"),
    "too few fields": ((VERSION, "HostFenced", (1,)), "the 2 fields of HostFenced"),
    "no fields": ((VERSION, "HostFenced", None), "the 2 fields of HostFenced"),
    "a wrong type": ((VERSION, "HostFenced", (1, "2")), "host: '2' where int belongs"),
    "a bool for a number": ((VERSION, "HostFenced", (1, True)), "host: True where int belongs"),
    "a wrong key": ((VERSION, "HostBeat", ({"a": 1}, {})), "wrong HostBeat: figures: 'a' where"),
    "no mapping": ((VERSION, "HostBeat", ([], {})), "figures: () where a mapping belongs"),
    "a time before 0": (
        (VERSION, "ProgressMade", (0, 0, 0, [[0, [-1], 1]], [])),
        "deltas: (-1,) where a time belongs",
    ),
    "an empty time": (
        (VERSION, "ProgressMade", (0, 0, 0, [[0, [], 1]], [])),
        "deltas: () where a time belongs",
    ),
    "deep inside": (
        (VERSION, "NodeReported", (0, 0, (1, (), -1, -1, {2: ((), "x")}, {}, (), (), None, -1))),
        "report: clock: epoch: 'x' where int belongs",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_with_the_kind_and_the_peer(name: str) -> None:
    plain, says = WRONG[name]
    with pytest.raises(PeerError) as caught:
        decode_to_driver(msgpack.packb(plain), 3)
    assert says in str(caught.value)
    assert "host 3" in str(caught.value)


@given(st.binary(max_size=40))
def test_garbage_is_refused_and_nothing_else_happens(packed: bytes) -> None:
    with pytest.raises(PeerError):
        decode_to_host(packed, 0)


def test_an_order_inside_another_has_its_kind_checked() -> None:
    plain = (VERSION, PlayRoles.__name__, ([("StartDancing", ())], {}))
    with pytest.raises(PeerError, match="one of BeginRings"):
        decode_to_host(msgpack.packb(plain), 0)
