"""What a simulated run is about: stages, routing, settings, and the rows that must come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from penstock.core.delivery.guarantees import Guarantee
from penstock.core.delivery.ids import ParcelId, Role, derive, mix64
from penstock.core.delivery.messages import Parcel
from penstock.core.delivery.replicated import ReplicaSettings
from penstock.core.delivery.routing import Routing, RoutingKind, Stages

__all__ = ["Row", "Shape", "describe", "shape_of"]

Row = tuple[int, ...]
"""Lane and place at the source, then stage and copy for each step on the way."""
FUNCTIONS = ("map", "map", "filter", "duplicate")


@dataclass(frozen=True)
class Shape:
    """One flow of replicas; ``hosts`` are slots per stage."""

    stages: Stages
    hosts: Mapping[int, int]
    functions: Mapping[int, str]
    routings: Mapping[int, Routing]
    settings: ReplicaSettings
    spares: int
    """Hosts that have no slot, and take the places of others at once."""
    rows: int
    """Number of rows of each source role."""
    rows_max: int
    """Most rows of a read."""

    def source_rows(self, role: Role, places: Iterable[int]) -> list[Row]:
        """Rows of a source role."""
        return [(role.place, place) for place in places]

    def apply(self, stage: int, rows: list[Row]) -> list[Row]:
        """What a stage makes of rows; never depends on more than the rows."""
        function = self.functions[stage]
        if function == "filter":
            rows = [row for row in rows if mix64((stage, *row)) % 3]
        copies = (0, 1) if function == "duplicate" else (0,)
        return [(*row, stage, copy) for row in rows for copy in copies]

    def divide(self, stage: int, parent: ParcelId, rows: list[Row]) -> dict[Role, Parcel]:
        """What goes to which role of the stages that a stage feeds."""
        parts: dict[Role, list[Row]] = {}
        for child in self.stages.children.get(stage, ()):
            routing, roles = self.routings[child], self.stages.roles[child]
            for place, row in enumerate(rows):
                if routing.kind is RoutingKind.RANDOM:
                    hashed = routing.row_hash(parent, place)
                else:
                    hashed = mix64((row[1] % 5,))
                parts.setdefault(Role(child, routing.place(hashed, roles)), []).append(row)
        return {
            role: Parcel(parent, tuple(found), 100 * len(found)) for role, found in parts.items()
        }

    def expected(self) -> frozenset[Row]:
        """All that has to come out at the sinks."""
        found: set[Row] = set()
        for source in self.stages.sources:
            for role in self.stages.of(source):
                found.update(self._follow(source, self.source_rows(role, range(self.rows))))
        return frozenset(found)

    def arrivals(self, lane: Role, number: int, places: Iterable[int]) -> dict[ParcelId, Role]:
        """The parcels that come to sinks of one read, and their sinks' roles."""
        found: dict[ParcelId, Role] = {}
        waiting = [(lane, ParcelId(lane, number), self.source_rows(lane, places))]
        while waiting:
            role, id_, rows = waiting.pop()
            if not self.stages.children.get(role.stage):
                found[id_] = role
                continue
            made = self.apply(role.stage, rows) if self.stages.parents[role.stage] else rows
            for target, parcel in self.divide(role.stage, id_, made).items():
                waiting.append((target, derive(id_, target), list(parcel.payload)))
        return found

    def _follow(self, stage: int, rows: list[Row]) -> set[Row]:
        if not self.stages.children.get(stage):
            return set(rows)
        made = self.apply(stage, rows) if self.stages.parents[stage] else rows
        return {row for child in self.stages.children[stage] for row in self._follow(child, made)}


def shape_of(random: Random, settings: ReplicaSettings | None = None) -> Shape:
    """A random flow: a source stage, one to three stages between, a sink stage."""
    inner = random.choice((1, 1, 2, 2, 3))
    sink = inner + 1
    children: dict[int, list[int]] = {stage: [] for stage in range(sink)}
    for stage in range(1, sink):
        feeders = {random.randrange(stage)}
        if random.random() < 0.25:
            feeders.add(random.randrange(stage))
        for feeder in sorted(feeders):
            children[feeder].append(stage)
    for stage in range(sink):
        if not children[stage]:
            children[stage].append(sink)
    hosts = {stage: random.choice((1, 2, 2, 3)) for stage in range(sink + 1)}
    roles = {
        stage: hosts[stage] * random.choice((1, 1, 2)) if stage else hosts[0]
        for stage in range(sink + 1)
    }
    kinds = (RoutingKind.HASH, RoutingKind.HASH, RoutingKind.RANDOM, RoutingKind.PRIMARY)
    return Shape(
        Stages(roles, {stage: tuple(fed) for stage, fed in children.items()}),
        hosts,
        {stage: random.choice(FUNCTIONS) for stage in range(1, sink)},
        {stage: Routing(random.choice(kinds), "key") for stage in range(1, sink + 1)},
        settings or _settings(random),
        random.choice((0, 0, 0, 1)),
        random.choice((4, 8, 14)),
        random.choice((1, 2, 3)),
    )


def _settings(random: Random) -> ReplicaSettings:
    guarantee = random.choice(
        (
            Guarantee.AT_MOST_ONCE,
            Guarantee.AT_LEAST_ONCE,
            Guarantee.EXACTLY_ONCE,
            Guarantee.EXACTLY_ONCE,
            Guarantee.EXACTLY_ONCE,
        )
    )
    way = random.random()
    if way < 0.15:
        return ReplicaSettings(guarantee, mirrored=True)
    if way < 0.25:
        return ReplicaSettings(guarantee, acknowledged=True)
    return ReplicaSettings(guarantee, depth=random.choice((1, 1, 2, 3)))


def describe(shape: Shape) -> list[str]:
    """The flow, one line a stage."""
    settings = shape.settings
    way = (
        "mirrored" if settings.mirrored else "acknowledged" if settings.acknowledged else "records"
    )
    lines = [
        f"{settings.guarantee.value}, {way}, depth {settings.depth}, {shape.rows} rows a source "
        f"role, at most {shape.rows_max} a read, {shape.spares} spare hosts"
    ]
    for stage, hosts in shape.hosts.items():
        kind = shape.functions.get(stage, "sink" if stage else "source")
        routing = f", {shape.routings[stage].kind.value}" if stage in shape.routings else ""
        feeds = ", ".join(map(str, shape.stages.children.get(stage, ())))
        lines.append(
            f"stage {stage}: {kind}{routing}, {shape.stages.roles[stage]} roles on {hosts} hosts"
            + (f", feeds {feeds}" if feeds else "")
        )
    return lines
