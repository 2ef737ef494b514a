"""When epochs are complete at a node.

An epoch is complete when every sender outside of the node's loop has marked it or a later one.  At
a node outside of loops that is all.  In a loop it closes the node's gate, which is reported, and
the epoch is complete once nothing of it is under way inside (``region_completed``).

A restarted node needs the watermark at the epoch where it starts.  Its senders restate theirs by
marks of just that epoch (``told``).  A node in a loop passes on the greatest watermark that it was
given, which is in its checkpoints; it reports the one at its gate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.core.node.causal_effects import CausalEffect, Restated
from penstock.core.node.messages import Message, TellClosed
from penstock.core.node.standing import Item, Standing
from penstock.core.node.tracking import NodeCounts
from penstock.core.progress.marks import WATERMARK_IDLE, Completion, MarkAligner

__all__ = ["Gate", "LoopGate"]

Key = tuple[int, int]
"""Link and sender."""


class Gate:
    """Marks of the senders, and the epochs that they complete."""

    def __init__(
        self,
        keys: Iterable[Key],
        completed: int,
        keeps: bool = True,
        watermark_us: int | None = None,
    ) -> None:
        self.keys = tuple(keys)
        self.aligner = MarkAligner(self.keys, completed, keeps, watermark_us)
        self.complete: deque[Completion] = deque()
        """Epochs that are complete and were not handled yet."""
        self.closed: list[CausalEffect] = []
        """Reports of a gate that was closed; in loops only."""
        self._cuts_us: dict[int, int] = {}
        self._stated: dict[Key, int | None] = {}

    def mark(self, mark: Message) -> None:
        """A sender has ended an epoch."""
        epoch = mark.time.epoch
        self._cuts_us[epoch] = max(self._cuts_us.get(epoch, 0), mark.cut_us)
        key = (mark.link, mark.sender)
        self._aligned(self.aligner.mark(key, epoch, mark.watermark_us))

    def through(self, senders: Iterable[int], epoch: int) -> None:
        """These senders have nothing left up to an epoch, marked or not."""
        for key in self.keys:
            if key[1] in senders:
                self._aligned(self.aligner.through(key, epoch))

    def _aligned(self, completions: list[Completion]) -> None:
        """All senders have marked these epochs."""
        self.complete.extend(completions)

    def cut_of(self, epoch: int) -> int:
        """When an epoch that is complete now was cut, by the last of its sources."""
        done = [other for other in self._cuts_us if other <= epoch]
        return max((self._cuts_us.pop(other) for other in done), default=0)

    def told(self, item: Item) -> None:
        """A sender restates its watermarks where the node stood."""
        self._stated.update(((m.link, m.sender), m.watermark_us) for m in item)

    def restated(self, standing: Standing) -> list[CausalEffect]:
        """The watermark at the start, once every sender has restated its own."""
        if len(self._stated) < len(self.keys):
            return []
        standing.watermark_us = self.aligner.restate(self._stated)
        return [Restated(standing.completed, standing.watermark_us)]


class LoopGate(Gate):
    """The gate of a node in a loop."""

    def __init__(self, keys: Iterable[Key], standing: Standing, counts: NodeCounts | None) -> None:
        super().__init__(keys, standing.completed, False, standing.watermark_us)
        self._counts = counts

    def _aligned(self, completions: list[Completion]) -> None:
        for done in completions:
            if self._counts is not None:
                self._counts.closed(done.epoch)
            self.closed.append(TellClosed(done.epoch, done.watermark_us, self.cut_of(done.epoch)))

    def region_completed(self, done: Completion, cut_us: int, last_us: int | None) -> None:
        """An epoch is complete in the loop; the watermark of a node never goes back."""
        if self.complete:
            last_us = self.complete[-1].watermark_us
        watermark_us = done.watermark_us
        if watermark_us is None or watermark_us == WATERMARK_IDLE:
            watermark_us = last_us
        elif last_us is not None:
            watermark_us = max(last_us, watermark_us)
        self._cuts_us[done.epoch] = cut_us
        self.complete.append(Completion(done.epoch, watermark_us))

    def restated(self, standing: Standing) -> list[CausalEffect]:
        if len(self._stated) < len(self.keys):
            return []
        effects: list[CausalEffect] = []
        if self.keys:
            gate_us = self.aligner.restate(self._stated)
            effects.append(TellClosed(standing.completed, gate_us, 0))
        return [*effects, Restated(standing.completed, standing.watermark_us)]
