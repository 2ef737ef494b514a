"""What a host must know of a run before it can take nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.causal.graph import NodeKind
from penstock.core.progress.deltas import FrontierChange

__all__ = [
    "Assignment",
    "EpochGrid",
    "NodeFacts",
    "PlanOrders",
    "RecoveryRules",
    "SourceRules",
    "UnitProgress",
]


class EpochGrid(NamedTuple):
    """How epochs are numbered by the wall clock, the same on all hosts."""

    base: int
    origin_us: int
    interval_us: int


class UnitProgress(NamedTuple):
    """Where the counts of a unit are, for a host that begins to count."""

    generation: int
    epoch: int
    sequence: int
    changes: tuple[FrontierChange, ...]


class PlanOrders(NamedTuple):
    """What the plan in force says of nodes."""

    epochs: Mapping[int, int] = {}
    """Epochs from one checkpoint of a node to the next."""
    logged: Mapping[int, bool] = {}
    """Whether a node keeps a log of what it sent."""


class Linger(NamedTuple):
    """How long rows gather at a source before they are read."""

    least_us: int
    most_us: int


@dataclass(frozen=True, slots=True)
class SourceRules:
    """How sources read."""

    started_us: int
    available_now: bool
    rows_max: int
    linger: Linger
    stopping: bool
    """Whether streams end at once: the flow is being stopped."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the causal graph says of nodes."""

    kinds: Mapping[int, NodeKind]
    determined: frozenset[int]
    logless: frozenset[int]
    clean: frozenset[int]
    untraced: frozenset[int]
    position_first: frozenset[int]
    """Sources that note where they are before their rows leave."""


@dataclass(frozen=True, slots=True)
class RecoveryRules:
    """How nodes survive failures in this run."""

    nodes: NodeFacts
    plan: PlanOrders
    store: str
    """The address of what is kept for recoveries."""
    sync: bool
    """Whether what is written must outlive the machine."""
    one_machine: bool
    """Whether all hosts share the driver's machine."""
    checkpoint_s: float | None
    """Seconds from one checkpoint to the next; None: none are taken."""
    followed_s: float | None
    """The same while standbys follow; None: none do."""
    copies: bool
    """Whether logs hold copies instead of references; for comparison only."""
    log_bytes: int
    store_timeout_s: float
    stages_in_row: int | None
    """The replicated stages in a row of which one host holds copies; None: there are none."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a host must know of a run; nodes follow later where there is recovery."""

    addresses: Mapping[int, str]
    placement: Mapping[int, int]
    epochs: EpochGrid
    resume: int
    """The last epoch that earlier runs have completed."""
    store: str | None
    """The address of the flow's store, if it has one."""
    sources: SourceRules
    progress: Mapping[int, UnitProgress]
    delays_us: Mapping[int, int]
    recovery: RecoveryRules | None
