"""What the controller of the rings remembers, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.control.host_orders import JoinRing, RoleOrder
from penstock.core.delivery.ids import Role
from penstock.core.delivery.routing import NO_HOST, Seat

__all__ = [
    "FenceSourceRoles",
    "PersistRing",
    "PersistRings",
    "RingControllerEffect",
    "RingRecord",
    "RingsEffect",
    "Tell",
    "TellHost",
    "WarnMissed",
]


@dataclass(frozen=True)
class RingRecord:
    """What the controller must not forget.  Hosts appear under their numbers as members."""

    seats: Mapping[Role, Seat]
    homes: Mapping[Role, int]
    """The slot of its stage to which a role belongs."""
    rings: Mapping[int, Mapping[int, int]]
    """Per stage: the member in each slot."""
    fences: Mapping[Role, int] = field(default_factory=dict)
    ready: frozenset[int] = frozenset()
    taking: frozenset[Role] = frozenset()
    fresh: frozenset[Role] = frozenset()
    """Roles that were taken without any host's records, and have not recovered."""
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
        """The members of a stage, in the order of the ring."""
        return tuple(host for _, host in sorted(self.rings[stage].items()))

    def hosts(self) -> tuple[int, ...]:
        """All members, stage by stage."""
        return tuple(host for stage in sorted(self.rings) for host in self.members(stage))

    def place_of(self, host: int) -> tuple[int, int] | None:
        """The stage and slot of a member."""
        for stage, ring in self.rings.items():
            for slot, member in ring.items():
                if member == host:
                    return stage, slot
        return None

    def join(self, stage: int, joining: bool, lows: Mapping[Role, int]) -> JoinRing:
        """What a member of a ring must know."""
        return JoinRing(
            stage,
            self.settled_seats(),
            dict(self.fences),
            self.members(stage),
            frozenset(self.lost),
            joining,
            dict(lows),
        )

    @property
    def newest(self) -> int:
        """The greatest incarnation that was given to any role."""
        given = (*self.seats.values(), *self.moving.values())
        return max((seat.incarnation for seat in given), default=0)


class PersistRing(NamedTuple):
    """Make the record durable before performing anything that follows."""

    record: RingRecord


class Tell(NamedTuple):
    """Give an order to the host of a member."""

    to: int
    order: RoleOrder


RingControllerEffect = PersistRing | Tell


# -- what the driver performs ----------------------------------------------------------------------


class PersistRings(NamedTuple):
    """Make the record durable; call ``stored`` with the number."""

    number: int
    incarnation: int
    """The greatest one that was given to any role so far."""
    generation: int
    record: RingRecord


class FenceSourceRoles(NamedTuple):
    """Let the logs of sources refuse older incarnations; call ``fenced`` with the number.

    The answer says for each source and sink which epoch is the last that need not be made again.
    """

    number: int
    fences: Mapping[Role, int]


class TellHost(NamedTuple):
    """Give a host orders, to carry out with nothing in between."""

    host: int
    orders: tuple[RoleOrder, ...]


class WarnMissed(NamedTuple):
    """Tell the user that too many hosts were lost at once."""

    node: str
    missing: str


RingsEffect = PersistRings | FenceSourceRoles | TellHost | WarnMissed
