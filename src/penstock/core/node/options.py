"""What a node is told when it is built: who it is, whom it is connected with, how it works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.node.tracking import NodeTracking

__all__ = ["DEFAULTS", "NodeOptions", "Outlet", "Wiring"]


@dataclass(frozen=True)
class Outlet:
    """A link that leaves the node, and the nodes behind it."""

    link: int
    targets: tuple[int, ...]
    marked: bool = True
    """Whether the ends of epochs are marked on it; links inside a tracked region are not."""


@dataclass(frozen=True)
class Wiring:
    """Which incarnation of which node it is, and the links into it and out of it."""

    node: int
    inputs: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The senders on each link into the node; a source has none."""
    outlets: tuple[Outlet, ...] = ()
    incarnation: int = 0
    incarnations: Mapping[int, int] = field(default_factory=dict)
    """Of its neighbours; 0 for those that are not named."""


@dataclass(frozen=True)
class NodeOptions:
    """How a node under causal recovery works.  The defaults are those of a node without state."""

    stateful: bool = False
    """Whether its vertices keep state, so that it takes checkpoints."""
    determined: bool = False
    """Whether output waits until the order of the inputs behind it is durable."""
    clean: bool = False
    """Whether output leaves with the completion of its epoch, and checkpoints hold whole epochs."""
    logged: bool = True
    """Whether it keeps what it has sent.  It may be changed later."""
    traced: bool = True
    """Whether what it makes says what it was made from."""
    eager: bool = False
    """Whether output waits for the checkpoint of its epoch."""
    inside: frozenset[int] = frozenset()
    """Links inside of a loop: nothing on them is stamped or logged."""
    tracking: NodeTracking | None = None
    """Where the node is in the graph whose progress is tracked."""
    budget_bytes: int | None = None
    """How much of the log stays in memory."""
    checkpoint_every: int | None = None
    """A checkpoint is taken where each multiple of this many epochs ends.  It may change later."""
    resumable: bool = False
    """Whether a later run may go on with its state, so that it is saved before its input ends."""
    hold_after: int | None = None
    """Input of epochs after this one waits until ``resume``."""


DEFAULTS = NodeOptions()
