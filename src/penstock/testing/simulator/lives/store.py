"""What is durable in a simulated life: checkpoints of nodes, rows that are passed over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.control.deadly_rows import SkippedRow
from penstock.core.control.host_orders import CheckpointNews

__all__ = ["SavedAt", "LifeStore"]


class SavedAt(NamedTuple):
    """A checkpoint of a node."""

    news: CheckpointNews
    epoch: int


@dataclass
class LifeStore:
    """Outlives every driver."""

    saved: dict[int, list[SavedAt]] = field(default_factory=dict)
    skipped: list[SkippedRow] = field(default_factory=list)
    committed: int = -1
    """The last epoch that is recorded as complete at all sinks."""

    def save(self, node: int, incarnation: int, epoch: int) -> SavedAt:
        """A node saves; keys go on from the newest checkpoint that counts."""
        kept = self.saved.setdefault(node, [])
        key = kept[-1].news.key + 1 if kept else 1
        kept.append(SavedAt(CheckpointNews(incarnation, key, 100 + epoch), epoch))
        return kept[-1]

    def restarted(self, node: int, damaged: bool) -> int:
        """A node starts from its newest checkpoint, or from the one before."""
        kept = self.saved.get(node, [])
        if damaged and kept:
            kept.pop()
        return kept[-1].epoch if kept else -1

    def has(self, node: int, news: CheckpointNews) -> bool:
        """Whether a checkpoint can be read."""
        return any(one.news == news for one in self.saved.get(node, []))
