"""Roles, and the ids of what travels between them.

The unit is a *parcel*: rows that were cut together at a source and went the same way since.  Its id
is (lane, number, branch): the source role that read it, its place there, and which way it went.
The id of what is made from a parcel is a function of the parcel's id and of where it goes, so that
it is the same whenever it is made again.  A row's id is its parcel's with its place in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "Lane",
    "ParcelId",
    "Role",
    "derive",
    "member",
    "member_host",
    "member_stage",
    "mix64",
]

STAGES = 1 << 16
"""Members of rings are numbered host by host; no flow has this many stages."""

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15


class Role(NamedTuple):
    """A part to play: one share of a stage's work.  Hosts play roles; roles outlive hosts."""

    stage: int
    place: int


Lane = Role
"""The source role from which a parcel descends."""


class ParcelId(NamedTuple):
    """Names a parcel, wherever and however often it is made."""

    lane: Lane
    number: int
    """1, 2, 3 … at the source."""
    branch: int = 0
    """0 at the source; then a stable hash of the way."""


def mix64(values: Iterable[int]) -> int:
    """A stable 64-bit hash of integers; never changes between versions or machines.

    >>> mix64([1, 2]) == mix64([1, 2]) != mix64([2, 1])
    True
    """
    state = _GOLDEN
    for value in values:
        state = (state * _GOLDEN + value) & _MASK
        state ^= state >> 33
        state = state * 0xFF51_AFD7_ED55_8CCD & _MASK
        state ^= state >> 33
        state = state * 0xC4CE_B9FE_1A85_EC53 & _MASK
        state ^= state >> 33
    return state


def derive(parent: ParcelId, target: Role) -> ParcelId:
    """The id of what is made from a parcel for a role.

    >>> one = derive(ParcelId(Role(0, 0), 7), Role(1, 0))
    >>> one == derive(ParcelId(Role(0, 0), 7), Role(1, 0)), one.lane, one.number
    (True, Role(stage=0, place=0), 7)
    """
    return ParcelId(parent.lane, parent.number, mix64((parent.branch, *target)))


def member(host: int, stage: int) -> int:
    """The number of a host as a member of a stage's ring.

    >>> member_host(member(7, 2)), member_stage(member(7, 2))
    (7, 2)
    """
    return host * STAGES + stage


def member_host(number: int) -> int:
    """The host behind a member's number; negative where there is none."""
    return number // STAGES


def member_stage(number: int) -> int:
    """The stage of a member."""
    return number % STAGES
