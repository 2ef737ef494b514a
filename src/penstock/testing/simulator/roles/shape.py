"""What a simulated run is about: stages, routing, settings, and the rows that must come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from penstock.core.delivery.guarantees import Guarantee
from penstock.core.delivery.ids import ParcelId, Role, derive, mix64
from penstock.core.delivery.messages import Parcel
from penstock.core.delivery.replicated import ReplicaSettings
from penstock.core.delivery.routing import Routing, RoutingKind, Stages

__all__ = ["ReplicatedShape", "Row", "describe_roles", "shape_of"]

Row = tuple[int, ...]
"""Lane and place at the source (and what a sink has published there), then stage and copy for each
step on the way."""
FUNCTIONS = ("map", "map", "filter", "duplicate")


@dataclass(frozen=True)
class ReplicatedShape:
    """A part of a flow that replicas play."""

    stages: Stages
    rings: Mapping[int, tuple[int, ...]]
    """Per stage: the hosts of its ring by slot; 0 is the driver's."""
    functions: Mapping[int, str]
    routings: Mapping[int, Routing]
    settings: ReplicaSettings
    """What is sent is kept for so many stages that ``depth`` lost hosts do no harm."""
    depth: int
    """How many hosts that have a parcel may be lost without its loss."""
    nodes: Mapping[Role, int]
    """The numbers of the roles among all nodes of the flow."""
    rows: int
    """Number of rows of each source role."""
    rows_max: int
    """Most rows of a read."""
    reads: int | None = None
    """The sink whose published rows its sources read; None: they make their own."""

    @property
    def workers(self) -> int:
        """The number of hosts that have slots."""
        return max(host for ring in self.rings.values() for host in ring)

    @property
    def homes(self) -> dict[Role, int]:
        """Per role: the slot where it belongs."""
        return {role: role.place % len(self.rings[role.stage]) for role in self.nodes}

    def home_of(self, role: Role) -> int:
        """The host where a role belongs at first."""
        return self.rings[role.stage][self.homes[role]]

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

    def expected(self, rows: Mapping[Role, list[Row]]) -> frozenset[Row]:
        """All that has to come out at the sinks of what the sources read."""
        found: set[Row] = set()
        for lane, read in rows.items():
            found.update(self._follow(lane.stage, read))
        return frozenset(found)

    def arrivals(self, lane: Role, number: int, read: list[Row]) -> dict[ParcelId, Role]:
        """The parcels that come to sinks of one read, and their sinks' roles."""
        found: dict[ParcelId, Role] = {}
        waiting = [(lane, ParcelId(lane, number), read)]
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


def shape_of(
    random: Random,
    settings: ReplicaSettings | None = None,
    first: int = 0,
    shared: float = 0.4,
) -> ReplicatedShape:
    """A random part: a source stage, one to three stages between, a sink stage.

    ``first`` is the number of its first role among the nodes of the flow; ``shared`` is how often
    its rings share hosts.
    """
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
    slots = {stage: random.choice((1, 2, 2, 3)) for stage in range(sink + 1)}
    roles = {
        stage: slots[stage] * random.choice((1, 1, 2)) if stage else slots[0]
        for stage in range(sink + 1)
    }
    kinds = (RoutingKind.HASH, RoutingKind.HASH, RoutingKind.RANDOM, RoutingKind.PRIMARY)
    stages = Stages(roles, {stage: tuple(fed) for stage, fed in children.items()})
    rings = _rings(random, slots, random.random() < shared)
    wanted = settings or _settings(random)
    all_roles = [role for stage in roles for role in stages.of(stage)]
    return ReplicatedShape(
        stages,
        rings,
        {stage: random.choice(FUNCTIONS) for stage in range(1, sink)},
        {stage: Routing(random.choice(kinds), "key") for stage in range(1, sink + 1)},
        _kept_for(wanted, _longest_run(stages, rings)),
        wanted.depth,
        {role: first + number for number, role in enumerate(all_roles)},
        random.choice((4, 8, 14)),
        random.choice((1, 2, 3)),
    )


def _rings(random: Random, slots: Mapping[int, int], shared: bool) -> dict[int, tuple[int, ...]]:
    """Each ring on hosts of its own, or all on the same few; sinks may be at the driver."""
    rings: dict[int, tuple[int, ...]] = {}
    if not shared:
        before = 0
        for stage, size in slots.items():
            rings[stage] = tuple(range(before + 1, before + 1 + size))
            before += size
    else:
        workers = max(2, *slots.values()) + random.choice((0, 0, 1, 2))
        for stage, size in slots.items():
            rings[stage] = tuple(random.sample(range(1, workers + 1), size))
        used = sorted({host for ring in rings.values() for host in ring})
        rings = {s: tuple(1 + used.index(host) for host in ring) for s, ring in rings.items()}
    sink = max(slots)
    if slots[sink] == 1 and random.random() < 0.4 and _others(rings, sink):
        rings[sink] = (0,)
    return rings


def _others(rings: Mapping[int, tuple[int, ...]], stage: int) -> bool:
    """Whether the hosts of a ring have other slots, or the greatest numbers."""
    rest = {host for other, ring in rings.items() if other != stage for host in ring}
    return rest == set(range(1, max(rest) + 1))


def _longest_run(stages: Stages, rings: Mapping[int, tuple[int, ...]]) -> int:
    """The most stages in a row of which one host can hold copies: it dies with all of them."""
    runs: dict[tuple[int, int], int] = {}
    for stage in sorted(stages.roles):
        for host in rings[stage]:
            if host:
                before = [runs.get((feeder, host), 0) for feeder in stages.parents[stage]]
                runs[stage, host] = 1 + max(before, default=0)
    return max(runs.values())


def _kept_for(settings: ReplicaSettings, run: int) -> ReplicaSettings:
    """As the planner says it: what is sent is kept for more stages where hosts play several."""
    if settings.mirrored or settings.acknowledged:
        return settings
    return replace(settings, depth=settings.depth * run)


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


def describe_roles(shape: ReplicatedShape) -> list[str]:
    """The replicated part, one line a stage."""
    settings = shape.settings
    way = (
        "mirrored" if settings.mirrored else "acknowledged" if settings.acknowledged else "records"
    )
    lines = [
        f"{settings.guarantee.value}, {way}, depth {shape.depth}, kept for {settings.depth} "
        f"stages, {shape.rows} rows a source role, at most {shape.rows_max} a read"
    ]
    for stage, ring in shape.rings.items():
        kind = shape.functions.get(stage, "sink" if stage else "source")
        routing = f", {shape.routings[stage].kind.value}" if stage in shape.routings else ""
        feeds = ", ".join(map(str, shape.stages.children.get(stage, ())))
        lines.append(
            f"stage {stage}: {kind}{routing}, {shape.stages.roles[stage]} roles on hosts "
            f"{', '.join(map(str, ring))}" + (f", feeds {feeds}" if feeds else "")
        )
    return lines
