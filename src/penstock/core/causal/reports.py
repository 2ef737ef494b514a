"""What a plan is made from, and what it consists of: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff, DiffLink
from penstock.core.causal.logs import Fact
from penstock.core.causal.times import ZERO, Stamp

__all__ = ["Cut", "NodeReport", "RecoveryPlan", "Saved", "Start", "Stored", "Target"]


@dataclass(frozen=True)
class NodeReport:
    """What a node knows at one moment: a survivor's answer, or the facts of a checkpoint."""

    node: int
    stamp: Stamp = ZERO
    completed: int = -1
    newest: int = -1
    """The largest epoch of anything it handled or made."""
    clock: Mapping[int, Position] = field(default_factory=dict)
    """Per sender: the last stamp that it handled, the last epoch that was marked."""
    floors: Mapping[int, Floor] = field(default_factory=dict)
    """Per child: how far back its payload log reaches."""
    diffs: tuple[Diff, ...] = ()
    facts: tuple[Fact, ...] = ()
    watermark_us: int | None = None
    """The node's own, after ``completed``."""
    rows: int = -1
    """The largest epoch of rows that it handled or made; the end of a stream is none."""


class Saved(NamedTuple):
    """A durable checkpoint: where its state is, and what it knows."""

    key: int
    report: NodeReport


class Cut(NamedTuple):
    """A durable end of an epoch at a source."""

    epoch: int
    offset: int
    watermark_us: int | None = None


@dataclass(frozen=True)
class Stored:
    """What the store has of a node."""

    checkpoints: tuple[Saved, ...] = ()
    """Oldest first; the last resort (the initial state, or the base) is among them."""
    determinants: tuple[Diff, ...] = ()
    cuts: tuple[Cut, ...] = ()
    through: int = -1
    """No record of an epoch up to this one is missing, though there may be none of it."""
    ahead: tuple[int, int] = (0, -1)
    """(Sources of nodes that promise at most once) the offset that was noted before the last rows
    left, and their epoch."""


class Target(NamedTuple):
    """A step that a survivor has seen: at this stamp, this input.

    A *loose* target is the completion of an epoch whose stamp is unknown, but which must come
    before this stamp: a child completed the epoch before it handled that message.
    """

    stamp: Stamp
    made_from: DiffLink
    loose: bool = False
    values: bytes = b""
    """What the step noted."""

    @property
    def order(self) -> tuple[Stamp, bool, int]:
        """Loose targets come just before the step that they must precede."""
        return self.stamp, not self.loose, self.made_from.epoch


@dataclass(frozen=True)
class Start:
    """Where a node of the failed set starts."""

    node: int
    checkpoint: int | None
    """The key of the state to load; None: no state."""
    stamp: Stamp
    completed: int
    clock: Mapping[int, Position]
    positions: Mapping[int, Position]
    """Per child: where to resume sending."""
    targets: tuple[Target, ...] = ()
    taken: Mapping[Stamp, DiffLink | None] = field(default_factory=dict)
    """Steps that a survivor knows and that are no targets: their stamps are never given away again,
    and later inputs of their rows go after them."""
    top: Stamp = ZERO
    """The greatest stamp of this node that any node knows."""
    horizon: int = -1
    trim: Stamp = ZERO
    """Determinants after this one are void."""
    offset: int = 0
    """(Sources) where to read on."""
    cuts: tuple[Cut, ...] = ()
    """(Sources) durable cuts after ``completed``."""
    watermark_us: int | None = None
    """(Sources) the watermark of the last cut at or before ``completed``."""
    begun: int = -1
    """(Sources) the newest epoch of which a survivor has rows."""
    observed: int = -1
    """The newest epoch that a node below is known to have completed."""
    settled: int = -1
    """The last epoch that all have completed who know steps of this node."""
    ahead: int = 0
    """(Sources) rows before this offset that are in no cut belong to ``begun``."""


@dataclass(frozen=True)
class RecoveryPlan:
    """What to do about a failed set."""

    failed: frozenset[int]
    joining: tuple[int, ...] = ()
    """Live nodes that must restart too: fence them, ask again, plan again."""
    starts: Mapping[int, Start] = field(default_factory=dict)
    impossible: str | None = None

    def position(self, sender: int, target: int) -> Position:
        """Where the edge between two nodes resumes; one of them must be in the failed set."""
        if target in self.starts:
            return self.starts[target].clock[sender]
        return self.starts[sender].positions[target]

    def edges(self) -> list[tuple[int, int]]:
        """Every edge to open, once."""
        found = {(sender, node) for node, start in self.starts.items() for sender in start.clock}
        found |= {(node, child) for node, start in self.starts.items() for child in start.positions}
        return sorted(found)
