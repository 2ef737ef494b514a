"""Control messages as bytes: one codec for every type in :mod:`penstock.core.control.messages`.

A message is a msgpack array: the version of the protocol, the name of the type, and the fields in
order.  A nested NamedTuple or dataclass is the array of its fields; one of several dataclasses
begins with its name.  The forms are worked out from the types' annotations when this module is
imported, and an annotation that has no form (``Any``, a class that is not known) fails there, so
nothing untyped can travel.

Packing trusts our own types: values that msgpack takes as they are go there untouched.  Unpacking
trusts no peer: a field of another type, a kind that the receiver does not take and another version
of the protocol are each a :class:`~penstock.errors.PeerError` that names the kind and the peer.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from operator import attrgetter
from reprlib import repr as short
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgpack

from penstock.core.control.messages import ControlMessage, PeerMessage, ToDriver, ToHost
from penstock.core.control.roster import DRIVER
from penstock.core.time import Time
from penstock.errors import InvariantError, PeerError

__all__ = [
    "VERSION",
    "Control",
    "Greeting",
    "decode_greeting",
    "decode_to_driver",
    "decode_to_host",
    "encode",
    "encode_greeting",
    "kinds_of",
]

VERSION = 2
"""Raised whenever a message changes; processes of different versions refuse each other."""

Control = bytes
"""A packed control message: packed once, however many hosts it goes to."""


@dataclasses.dataclass(frozen=True, slots=True)
class Greeting:
    """The first thing that is said on a connection."""

    host: int
    session: str
    """Tells a process from another one with the same host number."""
    writes: int
    """How many writes of the sender's nodes the store has refused."""
    nonce: bytes
    proof: bytes
    """That the caller has the flow's secret; see :mod:`.handshake`."""


def encode(message: ControlMessage) -> Control:
    """Pack a message."""
    kind = _KINDS.get(type(message))
    if kind is None:
        raise InvariantError(f"{type(message).__name__} is no control message")
    return kind.pack(message)


def decode_to_host(packed: Control, peer: int) -> ToHost:
    """Unpack what a peer sent to a host; only the driver gives orders."""
    if peer == DRIVER:
        return cast(ToHost, _decode(packed, _name(peer), _TO_HOST, "a host does not take"))
    return cast(
        PeerMessage, _decode(packed, _name(peer), _TO_PEER, "a host does not take from another")
    )


def decode_to_driver(packed: Control, peer: int) -> ToDriver:
    """Unpack what a peer sent to the driver."""
    return cast(ToDriver, _decode(packed, _name(peer), _TO_DRIVER, "the driver does not take"))


def encode_greeting(greeting: Greeting) -> bytes:
    """Pack a greeting."""
    return _GREETING.pack(greeting)


def decode_greeting(packed: bytes) -> Greeting:
    """Unpack a greeting, from a peer of which nothing is known."""
    return cast(Greeting, _decode(packed, "a peer", {"Greeting": _GREETING}, "does not come first"))


def kinds_of(union: Any) -> tuple[type[Any], ...]:
    """The types of a union, those of unions inside it included."""
    return get_args(union) or (union,)


# -- forms -----------------------------------------------------------------------------------------


class _MisfitError(Exception):
    """A value is not of the type that it should have."""


def _misfit(value: object, wanted: str) -> _MisfitError:
    return _MisfitError(f"{short(value)} where {wanted} belongs")


class _Form(NamedTuple):
    """How values of one type travel."""

    encode: Callable[[Any], Any] | None
    """None: msgpack packs them as they are."""
    decode: Callable[[Any], Any]
    same: bool = False
    """Whether ``decode`` only checks, and gives back what it was given."""


def _scalar(*kinds: type[Any]) -> _Form:
    wanted = " or ".join(kind.__name__ for kind in kinds)
    allowed = frozenset((*kinds, int) if float in kinds else kinds)

    def check(value: Any) -> Any:
        if type(value) not in allowed:
            raise _misfit(value, wanted)
        return value

    return _Form(None, check, same=True)


def _sequence(kind: type[Any], one: _Form) -> _Form:
    """``tuple[X, ...]``, or ``frozenset[X]``, which travels in order."""
    encode_one, decode_one, same = one

    def decode(value: Any) -> Any:
        if type(value) is not tuple:
            raise _misfit(value, "a list")
        if kind is tuple and same:
            for part in value:
                decode_one(part)
            return value
        return kind([decode_one(part) for part in value])

    if kind is frozenset:
        return _Form(sorted, decode)
    if encode_one is None:
        return _Form(None, decode, same)
    return _Form(lambda values: [encode_one(value) for value in values], decode)


def _pair(parts: tuple[_Form, ...]) -> _Form:
    """``tuple[X, Y]``."""
    if any(part.encode is not None for part in parts):
        raise TypeError("a tuple with parts that are not plain wants names: make it a NamedTuple")

    def decode(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(parts):
            raise _misfit(value, f"a tuple of {len(parts)}")
        return tuple([part.decode(one) for part, one in zip(parts, value, strict=True)])

    return _Form(None, decode)


def _mapping(key: _Form, value: _Form) -> _Form:
    if key.encode is not None:
        raise TypeError("keys of mappings must be plain")
    encode_value, decode_key, decode_value = value.encode, key.decode, value.decode

    def decode(plain: Any) -> Any:
        if type(plain) is not dict:
            raise _misfit(plain, "a mapping")
        return {decode_key(one): decode_value(other) for one, other in plain.items()}

    if encode_value is None:
        return _Form(None, decode)
    return _Form(
        lambda mapping: {one: encode_value(other) for one, other in mapping.items()}, decode
    )


def _optional(one: _Form) -> _Form:
    encode_one, decode_one, same = one

    def decode(value: Any) -> Any:
        return None if value is None else decode_one(value)

    if encode_one is None:
        return _Form(None, decode, same)
    return _Form(lambda value: None if value is None else encode_one(value), decode)


def _enumeration(kind: type[Enum]) -> _Form:
    members = {member.value: member for member in kind}

    def decode(value: Any) -> Any:
        try:
            return members[value]
        except (KeyError, TypeError):
            raise _misfit(value, f"one of {', '.join(map(str, members))}") from None

    return _Form(attrgetter("value"), decode)


def _time() -> _Form:
    def decode(value: Any) -> Time:
        if type(value) is tuple and value and all(type(part) is int for part in value):
            with suppress(ValueError):
                return Time.from_wire(value)
        raise _misfit(value, "a time")

    return _Form(None, decode)


def _struct(kind: type[Any]) -> _Form:
    """A NamedTuple or a dataclass, as the tuple of its fields."""
    hints, is_tuple = get_type_hints(kind), issubclass(kind, tuple)
    names: tuple[str, ...] = (
        kind._fields if is_tuple else tuple(field.name for field in dataclasses.fields(kind))
    )
    forms = [_form(hints[name]) for name in names]
    encoders = [form.encode for form in forms]
    decoders = [form.decode for form in forms]

    def decode(plain: Any) -> Any:
        if type(plain) is not tuple or len(plain) != len(names):
            raise _misfit(plain, f"the {len(names)} fields of {kind.__name__}")
        values: list[Any] = []
        try:
            for decode_one, value in zip(decoders, plain, strict=True):
                values.append(decode_one(value))
        except _MisfitError as misfit:
            raise _MisfitError(f"{names[len(values)]}: {misfit}") from None
        return kind(*values)

    if not any(encoders):
        return _Form(None if is_tuple else _fields_of(names), decode)
    fields_of = _fields_of(names)

    def encode(value: Any) -> Any:
        return [
            part if encode_one is None else encode_one(part)
            for encode_one, part in zip(encoders, fields_of(value), strict=True)
        ]

    return _Form(encode, decode)


def _fields_of(names: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _choice(kinds: tuple[type[Any], ...]) -> _Form:
    """One of several dataclasses: its name, then its fields."""
    forms = {kind.__name__: _form(kind) for kind in kinds}
    if len(forms) < len(kinds):
        raise TypeError(f"two of {kinds} have one name")

    def encode(value: Any) -> Any:
        name = type(value).__name__
        fields = forms[name].encode
        return (name, value if fields is None else fields(value))

    def decode(plain: Any) -> Any:
        if type(plain) is not tuple or len(plain) != 2 or plain[0] not in forms:
            raise _misfit(plain, f"one of {', '.join(forms)}")
        return forms[plain[0]].decode(plain[1])

    return _Form(encode, decode)


_SCALARS = frozenset({int, float, str, bool, bytes})


def _form(hint: Any) -> _Form:
    """How values of an annotated type travel; raises where that is not known."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _scalar(hint)
    if origin in (Union, types.UnionType):
        others = tuple(one for one in arguments if one is not types.NoneType)
        if _SCALARS.issuperset(others):
            return _scalar(*arguments)
        whole = _form(others[0]) if len(others) == 1 else _choice(others)
        return _optional(whole) if types.NoneType in arguments else whole
    if origin is tuple and arguments[1:] == (...,):
        return _sequence(tuple, _form(arguments[0]))
    if origin is tuple:
        return _pair(tuple(map(_form, arguments)))
    if origin is frozenset:
        return _sequence(frozenset, _form(arguments[0]))
    if origin is Mapping:
        return _mapping(*map(_form, arguments))
    if hint is Time:
        return _time()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enumeration(hint)
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")):
        return _struct(hint)
    raise TypeError(f"{hint} cannot travel in a control message")


# -- kinds of messages -----------------------------------------------------------------------------


class _Kind:
    """A type of message, and how its fields travel."""

    def __init__(self, kind: type[Any]) -> None:
        self.form = _form(kind)
        # An array of three: the version, the name, and the fields, which are packed each time.
        self._start: bytes = b"\x93" + msgpack.packb(VERSION) + msgpack.packb(kind.__name__)

    def pack(self, message: Any) -> bytes:
        """The bytes of a message."""
        encode_fields = self.form.encode
        fields = message if encode_fields is None else encode_fields(message)
        packed: bytes = self._start + msgpack.packb(fields)
        return packed


_KINDS = {kind: _Kind(kind) for kind in kinds_of(ControlMessage)}
_TO_HOST = {kind.__name__: _KINDS[kind] for kind in kinds_of(ToHost)}
_TO_PEER = {kind.__name__: _KINDS[kind] for kind in kinds_of(PeerMessage)}
_TO_DRIVER = {kind.__name__: _KINDS[kind] for kind in kinds_of(ToDriver)}
_GREETING = _Kind(Greeting)


def _decode(packed: bytes, peer: str, kinds: Mapping[str, _Kind], refusal: str) -> Any:
    try:
        version, name, fields = msgpack.unpackb(packed, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(f"{peer} sent a control message that cannot be read: {error}") from error
    if version != VERSION:
        raise PeerError(
            f"{peer} speaks version {short(version)} of the control protocol, this process "
            f"version {VERSION}: install the same release of Penstock everywhere"
        )
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise PeerError(f"{peer} sent {short(name)}, a kind that {refusal}", kind=name)
    try:
        return kind.form.decode(fields)
    except _MisfitError as misfit:
        raise PeerError(f"{peer} sent a wrong {name}: {misfit}", kind=name) from None


def _name(peer: int) -> str:
    return "the driver" if peer == DRIVER else f"host {peer}"
