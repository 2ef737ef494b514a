"""What the controller of the rings remembers, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.delivery.ids import Role
from penstock.core.delivery.routing import NO_HOST, Seat

__all__ = [
    "FenceRoles",
    "PersistRing",
    "RingControllerEffect",
    "RingRecord",
    "Start",
    "StopHost",
    "TellConfirm",
    "TellHandOver",
    "TellLost",
    "TellMembers",
    "TellNext",
    "TellRewired",
    "TellTake",
]


@dataclass(frozen=True)
class RingRecord:
    """What the controller must not forget."""

    seats: Mapping[Role, Seat]
    homes: Mapping[Role, int]
    """The slot of its stage to which a role belongs."""
    rings: Mapping[int, Mapping[int, int]]
    """Per stage: the host in each slot."""
    fences: Mapping[Role, int] = field(default_factory=dict)
    ready: frozenset[int] = frozenset()
    taking: frozenset[Role] = frozenset()
    fresh: frozenset[Role] = frozenset()
    """Roles that were taken without anybody's records, and have not recovered."""
    moving: Mapping[Role, Seat] = field(default_factory=dict)
    orphans: frozenset[Role] = frozenset()
    lost: frozenset[int] = frozenset()

    def settled_seats(self) -> dict[Role, Seat]:
        """Who plays what, as far as hosts may know: not those who are still taking a role."""
        return {
            role: Seat(NO_HOST, seat.incarnation - 1) if role in self.taking else seat
            for role, seat in self.seats.items()
        }

    def members(self, stage: int) -> tuple[int, ...]:
        """The hosts of a stage, in the order of the ring."""
        return tuple(host for _, host in sorted(self.rings[stage].items()))

    def hosts(self) -> tuple[int, ...]:
        """All hosts, stage by stage."""
        return tuple(host for stage in sorted(self.rings) for host in self.members(stage))

    def place_of(self, host: int) -> tuple[int, int] | None:
        """The stage and slot of a host."""
        for stage, ring in self.rings.items():
            for slot, member in ring.items():
                if member == host:
                    return stage, slot
        return None


class PersistRing(NamedTuple):
    """Make the record durable before performing anything that follows."""

    record: RingRecord


class FenceRoles(NamedTuple):
    """Let stores refuse older incarnations of these roles, at once."""

    fences: Mapping[Role, int]


class StopHost(NamedTuple):
    """A host that was given up: end it, or have it refused."""

    host: int


class Start(NamedTuple):
    """Build the machine of a host that joins, with the record's settled seats."""

    host: int
    stage: int
    record: RingRecord


class TellLost(NamedTuple):
    """Tell a host that another is gone."""

    to: int
    host: int


class TellMembers(NamedTuple):
    """Tell a host who its siblings are."""

    to: int
    members: tuple[int, ...]


class TellNext(NamedTuple):
    """Tell a host whom to ping."""

    to: int
    next: int | None


class TellTake(NamedTuple):
    """Tell a host to play the role of one that was lost."""

    to: int
    role: Role
    incarnation: int
    fresh: bool


class TellHandOver(NamedTuple):
    """Tell a host to give a role to another."""

    to: int
    role: Role
    seat: Seat


class TellConfirm(NamedTuple):
    """Ask a host whether it has got a role already."""

    to: int
    role: Role
    incarnation: int


class TellRewired(NamedTuple):
    """Tell a host who plays a role."""

    to: int
    role: Role
    seat: Seat
    fence: int


RingControllerEffect = (
    PersistRing
    | FenceRoles
    | StopHost
    | Start
    | TellLost
    | TellMembers
    | TellNext
    | TellTake
    | TellHandOver
    | TellConfirm
    | TellRewired
)
