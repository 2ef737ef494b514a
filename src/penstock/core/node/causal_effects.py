"""What a node with causal recovery asks the engine to do, beyond sending and delivering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.core.causal.diffs import Diff
from penstock.core.causal.logs import Bundle
from penstock.core.causal.reports import NodeReport
from penstock.core.node.messages import Effect, EndStep

__all__ = [
    "CausalEffect",
    "Checkpoint",
    "Contradicted",
    "Flushed",
    "ReadAgain",
    "Recall",
    "Restated",
    "ResumeReading",
    "Retire",
    "Spill",
    "StoreCut",
    "StoreDeterminants",
    "TakeCheckpoint",
    "TellOpened",
    "TellRecovered",
    "TellReport",
]


class Checkpoint(NamedTuple):
    """A node at one moment, but for its vertices' state; the logs are what others need of it."""

    report: NodeReport
    log: Mapping[int, tuple[Bundle, ...]]


class TakeCheckpoint(NamedTuple):
    """Copy the vertices' state now and store it with this, in the background."""

    checkpoint: Checkpoint
    last: bool = False
    """Whether the node ends next: this cannot be put off, and is stored before it has finished."""


class Flushed(NamedTuple):
    """Tell the controller, when what was to be stored before is durable: the node has handled
    everything up to the epoch after which it holds its input."""

    epoch: int
    waiting: int | None
    """The least epoch of what it holds, if that is known."""


class Contradicted(NamedTuple):
    """Tell the controller that the node cannot repeat what others know of it; it stands still."""

    reason: str


class TellReport(NamedTuple):
    """Answer the controller's fence."""

    round: int
    report: NodeReport


class TellOpened(NamedTuple):
    """Tell the controller that an edge is open."""

    child: int
    incarnation: int
    """The child's."""


class TellRecovered(NamedTuple):
    """Tell the controller that every target was hit: the node is as good as any other."""


class Recall(NamedTuple):
    """The step that begins now was done before: give its vertices what it ``noted`` then."""

    values: bytes


class Restated(NamedTuple):
    """This is the watermark at the epoch of the start: set it, then call ``restated``."""

    epoch: int
    watermark_us: int | None


class Retire(NamedTuple):
    """Another incarnation has taken the node's place: stop, and send nothing more."""


class StoreDeterminants(NamedTuple):
    """Make the order of inputs durable, then call ``determinants_stored``."""

    diffs: tuple[Diff, ...]


class StoreCut(NamedTuple):
    """Make the end of a source's epoch durable, then call ``cut_stored``."""

    epoch: int
    offset: int
    watermark_us: int | None


class ReadAgain(NamedTuple):
    """Read a range of a source again as one batch: ``produced`` …, then ``end_step``."""

    start: int
    end: int
    epoch: int


class ResumeReading(NamedTuple):
    """The source may read on from here, in this epoch."""

    offset: int
    epoch: int
    begun: bool = False
    """Whether rows of the epoch are out: then it is the next to be cut, and none before it."""


class Spill(NamedTuple):
    """Move a bundle's payloads out of memory, then call ``spilled``."""

    child: int
    bundle: Bundle


CausalEffect = (
    Effect
    | EndStep
    | TakeCheckpoint
    | Contradicted
    | Flushed
    | TellReport
    | TellOpened
    | Recall
    | TellRecovered
    | Restated
    | Retire
    | StoreDeterminants
    | StoreCut
    | ReadAgain
    | ResumeReading
    | Spill
)
