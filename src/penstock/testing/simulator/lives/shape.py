"""What a simulated life is about: nodes, hosts, settings, rows that processes do not survive."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from penstock.core.delivery.takeover import Takeover

__all__ = ["SINK", "STAGE", "LifeShape", "describe", "shape_of"]

STAGE, SINK = "work", "out"
EPOCHS = (6, 12, 25, 50)
TROUBLES = {
    "raises": "a stage that meets a deadly row raises, and wants to be started again",
    "brittle": "no process survives that the state of a node is restored",
    "stillborn": "processes die before they can register",
    "slow": "no host is launched in the place of a lost one",
    "alone": "hosts do not watch each other",
}
ROWS = (1, 3, 40, 90)
"""Rows of a batch; more than a stage is called with one by one when they are suspects."""


@dataclass(frozen=True)
class LifeShape:
    """A chain of stages, each a few nodes wide; every node of one feeds every node of the next."""

    stages: tuple[tuple[int, ...], ...]
    """The nodes of each stage; sources first, sinks last."""
    hosts: int
    standby: int
    homes: dict[int, int]
    """Where each node is planned; 0 is the driver's host."""
    epochs: int
    rows: int
    """Rows of each batch."""
    recovers: bool
    retried: bool
    """Whether the cluster manager starts a task that died again."""
    takeover: Takeover
    followed: bool
    movable: frozenset[int]
    skipping: frozenset[int]
    """Nodes whose stage passes over rows that its process does not survive."""
    deadly: dict[int, frozenset[int]]
    """Per node: the digests of the rows that end its process."""
    speaks: bool
    """Whether a process that is ended by a row says so first, as with ``os._exit``."""
    trouble: str
    """What else is wrong with it: one of ``TROUBLES``."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes."""
        return tuple(node for stage in self.stages for node in stage)

    @property
    def names(self) -> dict[int, str]:
        """The names of the nodes."""
        return {
            node: f"s{place}[{number}]"
            for place, stage in enumerate(self.stages)
            for number, node in enumerate(stage)
        }

    @property
    def sources(self) -> tuple[int, ...]:
        """The nodes that read."""
        return self.stages[0]

    def parents(self, node: int) -> tuple[int, ...]:
        """The nodes that feed a node."""
        place = next(place for place, stage in enumerate(self.stages) if node in stage)
        return self.stages[place - 1] if place else ()

    def batch(self, node: int, epoch: int) -> tuple[int, ...]:
        """The digests of the rows that a node works on in an epoch."""
        first = (node * 1_000 + epoch) * 1_000
        return tuple(range(first, first + self.rows))

    @property
    def is_hopeless(self) -> bool:
        """Whether a node can never get past some row."""
        return any(rows and node not in self.skipping for node, rows in self.deadly.items())


def shape_of(random: Random) -> LifeShape:
    """Draw one."""
    counter = iter(range(100))
    stages = tuple(
        tuple(next(counter) for _ in range(random.choice((1, 1, 2, 3))))
        for _ in range(random.choice((2, 3, 3, 4)))
    )
    nodes = [node for stage in stages for node in stage]
    hosts = random.choice((1, 2, 3, 4))
    at_driver = random.random() < 0.3
    homes = {
        node: 0 if at_driver and node in stages[-1] else 1 + place % hosts
        for place, node in enumerate(nodes)
    }
    epochs, rows = random.choice(EPOCHS), random.choice(ROWS)
    recovers = random.random() < 0.85
    workers = [node for node in nodes if homes[node]]
    deadly: dict[int, frozenset[int]] = {}
    if workers and random.random() < 0.45:
        deadly[random.choice(workers)] = frozenset()
    skipping = frozenset(deadly if random.random() < 0.6 else ())
    shape = LifeShape(
        stages=stages,
        hosts=hosts,
        standby=random.choice((0, 0, 1, 2)),
        homes=homes,
        epochs=epochs,
        rows=rows,
        recovers=recovers,
        retried=random.random() < 0.4,
        takeover=random.choice(list(Takeover)),
        followed=random.random() < 0.6,
        movable=frozenset(node for node in nodes if random.random() < 0.9),
        skipping=skipping,
        deadly=deadly,
        speaks=random.random() < 0.3,
        trouble=_trouble(random, bool(skipping)),
    )
    for node in deadly:
        number = random.choice((1, 2)) if node in skipping else 1
        deadly[node] = frozenset(
            random.choice(shape.batch(node, random.randrange(epochs))) for _ in range(number)
        )
    return shape


def _trouble(random: Random, skips: bool) -> str:
    """Mostly none."""
    what = random.choice(sorted(TROUBLES)) if random.random() < 0.2 else ""
    return "" if what == "raises" and skips else what


def describe(shape: LifeShape) -> list[str]:
    """The flow, one line a stage."""
    lines = [
        f"{shape.hosts} hosts, {shape.standby} spares, {shape.epochs} epochs of {shape.rows} rows, "
        f"{'recovers' if shape.recovers else 'no recovery'}"
        f"{', tasks are retried' if shape.retried else ''}, {shape.takeover.value}"
    ]
    for place, stage in enumerate(shape.stages):
        where = ", ".join(f"{node} at {shape.homes[node]}" for node in stage)
        lines.append(f"stage {place}: {where}")
    if shape.trouble:
        lines.append(TROUBLES[shape.trouble])
    for node, rows in shape.deadly.items():
        kind = "may pass over" if node in shape.skipping else "does not survive"
        lines.append(f"node {node} {kind} rows {sorted(rows)}")
    return lines
