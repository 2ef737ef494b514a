"""How far a node has come, and the step that it is in: what its parts share."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.causal.diffs import Diff
from penstock.core.causal.logs import Part
from penstock.core.causal.replay import Turn
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.node.messages import Message

__all__ = ["FREE", "Item", "Standing", "Step"]

Item = tuple[Message, ...]
"""What one step of a sender sent here."""
FREE: Turn[Item] = Turn(None, None, None)


@dataclass(slots=True)
class Standing:
    """How far a node has come."""

    node: int
    completed: int = -1
    """The last epoch that it has completed."""
    newest: int = -1
    """The largest epoch of anything that was handled or made."""
    newest_rows: int = -1
    """The largest epoch of rows that were handled or made."""
    stamp: Stamp = ZERO
    """Of its last step."""
    watermark_us: int | None = None
    """After the completed epoch."""
    restating: bool = False
    """Whether its watermark at its start is not known yet."""

    def saw_rows(self, epoch: int) -> None:
        """Rows of an epoch are handled or made."""
        self.newest = max(self.newest, epoch)
        self.newest_rows = max(self.newest_rows, epoch)


@dataclass(slots=True)
class Step:
    """What is being handled, and what it has made so far, per child."""

    made_from: Diff
    turn: Turn[Item]
    parts: dict[int, list[Part]] = field(default_factory=dict)
    values: bytes = b""
    """What it has noted."""

    def add(self, target: int, part: Part) -> None:
        """The step sends a child something."""
        self.parts.setdefault(target, []).append(part)
