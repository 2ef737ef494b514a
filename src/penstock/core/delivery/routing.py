"""Which role gets a row, and which stages feed which: both functions of the flow alone.

Routing never depends on who plays a role at the moment, so that a row that is sent again goes to
the same role.  Who plays it is a :class:`Seat`, which only the controller changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.core.delivery.ids import Lane, ParcelId, Role, mix64
from penstock.errors import GraphError, SettingsError

__all__ = ["NO_HOST", "Routing", "RoutingKind", "Seat", "Stages", "routing_named"]

_HASH = re.compile(r"hash\(\s*([^()]+?)\s*\)")


NO_HOST = -1
"""In a seat: no host plays the role, or none that may be told yet."""


class Seat(NamedTuple):
    """Who plays a role, under which incarnation."""

    host: int
    incarnation: int


class RoutingKind(Enum):
    """How rows choose among the roles of a stage."""

    HASH = "hash"
    RANDOM = "random"
    PRIMARY = "primary"


@dataclass(frozen=True)
class Routing:
    """A way to choose a role.

    >>> routing_named("primary").place(12345, 4), routing_named("hash(user)").column
    (0, 'user')
    """

    kind: RoutingKind
    column: str | None = None

    def place(self, hashed: int, roles: int) -> int:
        """The role's place for a 64-bit hash of the key, or of the row's id; as shards are cut."""
        if self.kind is RoutingKind.PRIMARY or roles == 1:
            return 0
        return (hashed >> 32) * roles >> 32

    def row_hash(self, parcel: ParcelId, row: int) -> int:
        """What ``random`` hashes: the row's id, so that a row always goes the same way."""
        return mix64((*parcel.lane, parcel.number, parcel.branch, row))


def routing_named(text: str | Routing) -> Routing:
    """A routing from its name: ``hash(column)``, ``random`` or ``primary``."""
    if isinstance(text, Routing):
        return text
    if found := _HASH.fullmatch(text.strip()):
        return Routing(RoutingKind.HASH, found.group(1))
    if text in (RoutingKind.RANDOM.value, RoutingKind.PRIMARY.value):
        return Routing(RoutingKind(text))
    raise SettingsError(
        f"there is no routing {text!r}; write hash(column), random or primary", routing=text
    )


@dataclass(frozen=True)
class Stages:
    """Stages, how many roles each has, and which feeds which; without cycles.

    ``carriers[stage][lane]`` are the roles from which parcels of a lane can come to a stage.

    >>> stages = Stages({0: 2, 1: 3, 2: 1}, {0: (1,), 1: (2,)})
    >>> stages.sources, stages.sinks, len(stages.carriers[1]), stages.length
    ((0,), (2,), 2, 2)
    """

    roles: Mapping[int, int]
    children: Mapping[int, tuple[int, ...]]
    parents: Mapping[int, tuple[int, ...]] = field(init=False)
    carriers: Mapping[int, Mapping[Lane, tuple[Role, ...]]] = field(init=False)
    above: Mapping[int, int] = field(init=False)
    """Per stage: the most stages that a parcel comes through before it."""

    def __post_init__(self) -> None:
        parents: dict[int, tuple[int, ...]] = dict.fromkeys(self.roles, ())
        for stage, children in self.children.items():
            for child in children:
                if child not in parents:
                    raise GraphError(f"stage {stage} feeds stage {child}, which does not exist")
                parents[child] += (stage,)
        object.__setattr__(self, "parents", parents)
        lanes: dict[int, tuple[Lane, ...]] = {}
        carriers: dict[int, dict[Lane, tuple[Role, ...]]] = {}
        for stage in self._order(parents):
            if not parents[stage]:
                lanes[stage], carriers[stage] = self.of(stage), {}
                continue
            found: dict[Lane, tuple[Role, ...]] = {}
            for parent in parents[stage]:
                for lane in lanes[parent]:
                    from_here = self.of(parent) if parents[parent] else (lane,)
                    found[lane] = found.get(lane, ()) + from_here
            lanes[stage], carriers[stage] = tuple(found), found
        object.__setattr__(self, "carriers", carriers)
        far: dict[int, int] = {}
        for stage in self._order(parents):
            far[stage] = 1 + max((far[parent] for parent in parents[stage]), default=-1)
        object.__setattr__(self, "above", far)

    def of(self, stage: int) -> tuple[Role, ...]:
        """The roles of a stage."""
        return tuple(Role(stage, place) for place in range(self.roles[stage]))

    def upstream(self, stage: int) -> tuple[Role, ...]:
        """The roles that feed a stage."""
        return tuple(role for parent in self.parents[stage] for role in self.of(parent))

    def downstream(self, stage: int) -> tuple[Role, ...]:
        """The roles that a stage feeds."""
        return tuple(role for child in self.children.get(stage, ()) for role in self.of(child))

    def connected(self, stage: int) -> list[int]:
        """The stages of the part of the flow that a stage belongs to, itself among them."""
        found = [stage]
        for one in found:
            near = (*self.parents[one], *self.children.get(one, ()))
            found += [other for other in dict.fromkeys(near) if other not in found]
        return found

    @property
    def sources(self) -> tuple[int, ...]:
        """Stages without inputs."""
        return tuple(stage for stage in self.roles if not self.parents[stage])

    @property
    def sinks(self) -> tuple[int, ...]:
        """Stages without outputs."""
        return tuple(stage for stage in self.roles if not self.children.get(stage))

    @property
    def length(self) -> int:
        """Edges on the longest path."""
        return max(self.above.values(), default=0)

    def _order(self, parents: Mapping[int, tuple[int, ...]]) -> list[int]:
        order: list[int] = []
        while len(order) < len(parents):
            ready = [s for s in parents if s not in order and all(p in order for p in parents[s])]
            if not ready:
                raise GraphError("stages feed each other in a circle; replicas need a flow without")
            order += ready
        return order
