"""What recovery knows as plain values: tuples, integers, bytes and None, as msgpack carries them.

    to_plain(report)  ->  plain            report_from(plain)  ->  report

Every type becomes the tuple of its fields, in order.  A mapping becomes pairs sorted by key, so
equal values have equal encodings.  Laws, for each type and its ``_from``:

- ``_from(to_plain(x)) == x``, also when lists took the place of tuples on the way;
- a plain value that lacks the last fields gets their defaults, and fields that this version does
  not know are left out, so an older and a newer writer can read each other's values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff, DiffLink
from penstock.core.causal.logs import Fact
from penstock.core.causal.reports import Cut, NodeReport, Saved, Start, Stored, Target
from penstock.core.control.recovery import RecoveryRecord
from penstock.errors import InvariantError

__all__ = [
    "cut_from",
    "diff_from",
    "fact_from",
    "floor_from",
    "link_from",
    "position_from",
    "record_from",
    "report_from",
    "saved_from",
    "start_from",
    "stored_from",
    "target_from",
    "to_plain",
]

Kind = TypeVar("Kind")
Plain = Any
"""None, integers, strings, bytes, and sequences of these."""


class _Codec(NamedTuple):
    encode: Callable[[Any], Plain]
    decode: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


_PLAIN = _Codec(_same, _same)
_STAMP = _Codec(tuple, tuple)


def _struct(kind: type[Any], **inner: _Codec) -> _Codec:
    """A NamedTuple or dataclass as the tuple of its fields; those not given are plain already."""
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    else:
        names = kind._fields
    codecs = [inner.get(name, _PLAIN) for name in names]
    decoders = [codec.decode for codec in codecs]

    def encode(value: Any) -> Plain:
        return tuple(
            codec.encode(getattr(value, name)) for name, codec in zip(names, codecs, strict=True)
        )

    def decode(plain: Iterable[Any]) -> Any:
        return kind(*(decode(part) for decode, part in zip(decoders, plain, strict=False)))

    return _Codec(encode, decode)


def _many(one: _Codec) -> _Codec:
    return _Codec(
        lambda values: tuple(map(one.encode, values)), lambda plain: tuple(map(one.decode, plain))
    )


def _optional(one: _Codec) -> _Codec:
    return _Codec(
        lambda value: None if value is None else one.encode(value),
        lambda plain: None if plain is None else one.decode(plain),
    )


def _mapping(key: _Codec, value: _Codec) -> _Codec:
    def encode(mapping: Mapping[Any, Any]) -> Plain:
        return tuple((key.encode(one), value.encode(mapping[one])) for one in sorted(mapping))

    def decode(plain: Iterable[Any]) -> dict[Any, Any]:
        return {key.decode(one): value.decode(other) for one, other in plain}

    return _Codec(encode, decode)


_NODES = _Codec(lambda nodes: tuple(sorted(nodes)), frozenset)
_POSITION = _struct(Position, stamp=_STAMP)
_FLOOR = _struct(Floor, stamp=_STAMP)
# Links are most of what there is, and plain as they are: a tuple of integers and a stamp.
_LINK = _Codec(_same, _struct(DiffLink, stamp=_STAMP).decode)
_DIFF = _Codec(tuple, _many(_LINK).decode)
_FACT = _struct(Fact, stamp=_STAMP, handled=_STAMP)
_CUT = _struct(Cut)
_TARGET = _struct(Target, stamp=_STAMP, made_from=_LINK)
_REPORT = _struct(
    NodeReport,
    stamp=_STAMP,
    clock=_mapping(_PLAIN, _POSITION),
    floors=_mapping(_PLAIN, _FLOOR),
    diffs=_many(_DIFF),
    facts=_many(_FACT),
)
_SAVED = _struct(Saved, report=_REPORT)
_STORED = _struct(
    Stored,
    checkpoints=_many(_SAVED),
    determinants=_many(_DIFF),
    cuts=_many(_CUT),
    ahead=_STAMP,
)
_START = _struct(
    Start,
    stamp=_STAMP,
    clock=_mapping(_PLAIN, _POSITION),
    positions=_mapping(_PLAIN, _POSITION),
    targets=_many(_TARGET),
    taken=_mapping(_STAMP, _optional(_LINK)),
    top=_STAMP,
    trim=_STAMP,
    cuts=_many(_CUT),
)
_RECORD = _struct(
    RecoveryRecord,
    incarnations=_mapping(_PLAIN, _PLAIN),
    unfinished=_NODES,
    limits=_mapping(_PLAIN, _PLAIN),
    forgotten=_mapping(_PLAIN, _PLAIN),
)

_CODECS: Mapping[type[Any], _Codec] = {
    Position: _POSITION,
    Floor: _FLOOR,
    DiffLink: _LINK,
    Fact: _FACT,
    Cut: _CUT,
    Target: _TARGET,
    NodeReport: _REPORT,
    Saved: _SAVED,
    Stored: _STORED,
    Start: _START,
    RecoveryRecord: _RECORD,
    tuple: _DIFF,
}


def to_plain(value: object) -> Plain:
    """Any of the types above, or a diff, as plain values.

    >>> to_plain(Position((4,), 1)), to_plain((DiffLink(2, (5,), 0), DiffLink(1, (8,), 0)))[0][1]
    (((4,), 1), (5,))
    >>> position_from([[4], 1])
    Position(stamp=(4,), epoch=1)
    """
    codec = _CODECS.get(type(value))
    if codec is None:
        raise InvariantError(f"{type(value).__name__} has no plain form")
    return codec.encode(value)


def _decoder(kind: type[Kind]) -> Callable[[Plain], Kind]:
    return _CODECS[kind].decode


def diff_from(plain: Plain) -> Diff:
    """The diff in a plain value."""
    diff: Diff = _DIFF.decode(plain)
    return diff


position_from = _decoder(Position)
floor_from = _decoder(Floor)
link_from = _decoder(DiffLink)
fact_from = _decoder(Fact)
cut_from = _decoder(Cut)
target_from = _decoder(Target)
report_from = _decoder(NodeReport)
saved_from = _decoder(Saved)
stored_from = _decoder(Stored)
start_from = _decoder(Start)
record_from = _decoder(RecoveryRecord)
