"""Delivery guarantees as data: what each promises, what each needs, which go together.

A guarantee is a set of two promises: nothing is *lost*, nothing is *doubled*.  Down an edge a
promise can be dropped and never gained: what a stage may lose, no stage behind it can have.  So a
combination is consistent if every stage promises all that its children promise; sources that
promise not to lose can be read again, and sinks that promise both ignore what they have already.

Decides the guarantee of every stage; never does any of the work.  Follows Sections 5.4 to 5.6 of
the DADSTORM paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.errors import GraphError, SettingsError

__all__ = [
    "PROMISES",
    "FailureClass",
    "Guarantee",
    "GuaranteedStage",
    "May",
    "RequiredWork",
    "guarantee_named",
    "promise",
    "resolve",
]


class RequiredWork(NamedTuple):
    """The work that a guarantee needs; everything else is left undone."""

    logs: bool
    """What was sent is kept, and sent again after a failure."""
    dedup: bool
    """Receivers know what they have had."""
    order: bool
    """A replay follows the order that others have seen (stages whose result depends on it)."""
    position_first: bool
    """Sources make their position durable before what they read leaves."""


class Guarantee(Enum):
    """What is promised of every row.

    Law: ``a.covers(b)`` iff whatever ``b`` excludes, ``a`` excludes too; ``join`` is the least
    guarantee that covers both.

    >>> Guarantee.AT_MOST_ONCE.join(Guarantee.AT_LEAST_ONCE)
    <Guarantee.EXACTLY_ONCE: 'exactly-once'>
    >>> Guarantee.AT_LEAST_ONCE.covers(Guarantee.AT_MOST_ONCE)
    False
    """

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"

    @property
    def loses_nothing(self) -> bool:
        """Whether every row has its effect."""
        return self is not Guarantee.AT_MOST_ONCE

    @property
    def doubles_nothing(self) -> bool:
        """Whether no row has its effect twice."""
        return self is not Guarantee.AT_LEAST_ONCE

    @property
    def work(self) -> RequiredWork:
        """What this guarantee needs and no more."""
        return _WORK[self]

    def covers(self, other: Guarantee) -> bool:
        """Whether this one promises all that the other does."""
        return self is Guarantee.EXACTLY_ONCE or self is other

    def join(self, other: Guarantee) -> Guarantee:
        """The least guarantee that promises what either does."""
        return self if self is other else Guarantee.EXACTLY_ONCE


_WORK = {
    Guarantee.AT_MOST_ONCE: RequiredWork(logs=False, dedup=False, order=False, position_first=True),
    Guarantee.AT_LEAST_ONCE: RequiredWork(
        logs=True, dedup=False, order=False, position_first=False
    ),
    Guarantee.EXACTLY_ONCE: RequiredWork(logs=True, dedup=True, order=True, position_first=False),
}


def guarantee_named(name: str | Guarantee) -> Guarantee:
    """The guarantee with a name.

    >>> guarantee_named("exactly-once").name
    'EXACTLY_ONCE'
    """
    if isinstance(name, Guarantee):
        return name
    try:
        return Guarantee(name)
    except ValueError:
        known = ", ".join(repr(guarantee.value) for guarantee in Guarantee)
        raise SettingsError(
            f"there is no guarantee {name!r}; choose one of {known}", guarantee=name
        ) from None


class FailureClass(Enum):
    """What goes wrong, from the mildest to the worst."""

    NONE = "nothing fails"
    CONNECTION = "a connection breaks"
    FREEZE = "a replica freezes, is replaced and wakes up"
    CRASH = "a replica dies"
    PATH = "as many replicas die along a path as tables are kept for"
    GROUP = "all replicas of a stage die, and none next to it"
    BEYOND = "more replicas die along a path than tables are kept for"


class May(NamedTuple):
    """What may happen to rows in flight."""

    lose: bool
    double: bool


_FAULTLESS, _AT_MOST, _AT_LEAST = May(False, False), May(True, False), May(False, True)

PROMISES: Mapping[Guarantee, Mapping[FailureClass, May]] = {
    Guarantee.AT_MOST_ONCE: {
        failure: _FAULTLESS if failure is FailureClass.NONE else _AT_MOST
        for failure in FailureClass
    },
    Guarantee.AT_LEAST_ONCE: {
        FailureClass.NONE: _FAULTLESS,
        **{failure: _AT_LEAST for failure in FailureClass if failure is not FailureClass.NONE},
        FailureClass.BEYOND: May(True, True),
    },
    Guarantee.EXACTLY_ONCE: {
        failure: _AT_MOST if failure is FailureClass.BEYOND else _FAULTLESS
        for failure in FailureClass
    },
}
"""What each guarantee allows in each class of failure.

Beyond the declared depth rows can be lost; those of which a record survived are reported.  Where
the rings begin anew then, as they do in a running flow, nothing is.
"""


def promise(guarantee: Guarantee, failure: FailureClass) -> May:
    """What may happen under a guarantee in a class of failure."""
    return PROMISES[guarantee][failure]


@dataclass(frozen=True)
class GuaranteedStage:
    """A stage, source or sink as far as guarantees care."""

    name: str
    children: tuple[str, ...] = ()
    guarantee: Guarantee | None = None
    """Chosen for this stage; None: whatever its children need."""
    replayable: bool = True
    """A source that can be read again from a position."""
    idempotent: bool = True
    """A sink that ignores what it has already."""


def resolve(flow: Guarantee, members: Mapping[str, GuaranteedStage]) -> dict[str, Guarantee]:
    """The guarantee of every stage, or an error that says which two do not go together.

    A sink has its own guarantee or the flow's; a stage has its own, which must cover those of its
    children, or just what they need.

    >>> stages = {"a": GuaranteedStage("a", ("b", "c")), "b": GuaranteedStage("b"),
    ...           "c": GuaranteedStage("c", guarantee=Guarantee.AT_MOST_ONCE)}
    >>> [g.value for g in resolve(Guarantee.AT_MOST_ONCE, stages).values()]
    ['at-most-once', 'at-most-once', 'at-most-once']
    >>> [g.value for g in resolve(Guarantee.EXACTLY_ONCE, stages).values()]
    ['exactly-once', 'exactly-once', 'at-most-once']
    """
    for member in members.values():
        for child in member.children:
            if child not in members:
                raise GraphError(f"stage {member.name!r} feeds {child!r}, which is not in the flow")
    found = {name: _needed(name, flow, members) for name in members}
    for member in members.values():
        _check(member, found, members)
    return found


def _needed(name: str, flow: Guarantee, members: Mapping[str, GuaranteedStage]) -> Guarantee:
    """A stage's own guarantee, or what the nearest ones with one need of it."""
    needed: Guarantee | None = None
    seen, waiting = {name}, [name]
    while waiting:
        member = members[waiting.pop()]
        if member.guarantee is not None or not member.children:
            own = member.guarantee or flow
            needed = own if needed is None else needed.join(own)
            continue
        fresh = [child for child in member.children if child not in seen]
        seen.update(fresh)
        waiting += fresh
    return flow if needed is None else needed


def _check(
    member: GuaranteedStage, found: Mapping[str, Guarantee], members: Mapping[str, GuaranteedStage]
) -> None:
    own = found[member.name]
    for child in member.children:
        wanted = found[child]
        if not own.covers(wanted):
            what = "lose" if wanted.loses_nothing and not own.loses_nothing else "double"
            raise SettingsError(
                f"stage {child!r} is {wanted.value} but is fed by stage {member.name!r}, which is "
                f"{own.value} and may {what} rows before they get there; make {member.name!r} "
                f"{own.join(wanted).value}, or {child!r} {own.value}",
                stage=member.name,
                child=child,
            )
    is_source = not any(member.name in other.children for other in members.values())
    if is_source and own.loses_nothing and not member.replayable:
        raise SettingsError(
            f"source {member.name!r} cannot be read again, so it cannot be {own.value}; make what "
            f"it feeds at-most-once, or put the input where it can be read again",
            stage=member.name,
        )
    if not member.children and own is Guarantee.EXACTLY_ONCE and not member.idempotent:
        raise SettingsError(
            f"sink {member.name!r} cannot tell what it has already, so it cannot be exactly-once; "
            f"make it at-least-once, or use a sink that publishes by epoch or id",
            stage=member.name,
        )
