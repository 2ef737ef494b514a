"""A source under causal recovery: its inputs are ranges of offsets that can be read again.

Where it cut its batches is known from its children's diffs (the range is the last link); where it
cut its epochs is durable before any mark leaves.  A restarted source first goes through a script
made of both: ranges that a survivor knows are read again exactly, gaps between them as one batch
each, and durable cuts are made again where they were.  Then it reads on.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.causal.diffs import COMPLETION, DiffLink, completion, origin
from penstock.core.causal.replay import Turn
from penstock.core.causal.reports import Cut, Start
from penstock.core.causal.times import Stamp
from penstock.core.node.causal import CausalMachine
from penstock.core.node.causal_effects import (
    CausalEffect,
    ReadAgain,
    Restated,
    ResumeReading,
    StoreCut,
)
from penstock.core.node.messages import Complete
from penstock.core.node.options import DEFAULTS, NodeOptions, Wiring
from penstock.core.node.standing import FREE, Item, Step
from penstock.errors import InvariantError, require

__all__ = ["CausalSource", "script"]


class Scripted(NamedTuple):
    """A range to read again, or a cut to make again."""

    start: int
    end: int
    epoch: int
    cut: Cut | None
    exactly: Stamp | None = None
    before: Stamp | None = None


def script(start: Start) -> list[Scripted]:
    """Everything that a restarted source does before it reads on, in order.

    >>> from penstock.core.causal.reports import Target
    >>> target = Target((3,), DiffLink(-2, (30, 20), 1))
    >>> found = script(Start(0, None, (1,), -1, {}, {}, (target,), offset=5, cuts=(Cut(0, 12),)))
    >>> [(item.start, item.end, item.exactly) for item in found]
    [(5, 12, None), (12, 12, None), (12, 20, None), (20, 30, (3,))]
    """
    found: list[Scripted] = []
    cuts = list(start.cuts)
    cursor = start.offset
    exact = [target for target in start.targets if not target.loose]
    known = {t.made_from.epoch: t.stamp for t in exact if t.made_from.node == COMPLETION}
    missing = known.keys() - {cut.epoch for cut in cuts}
    require(not missing, f"source {start.node}: the cuts of {sorted(missing)} are not durable")

    def read_to(end: int, epoch: int, before: Stamp | None) -> None:
        nonlocal cursor
        if cursor < end:
            found.append(Scripted(cursor, end, epoch, None, before=before))
            cursor = end

    def cuts_before(epoch: int | None, before: Stamp | None) -> None:
        while cuts and (epoch is None or cuts[0].epoch < epoch):
            cut = cuts.pop(0)
            # The rows of an epoch are before its cut, whatever their stamps say.
            exactly = known.get(cut.epoch)
            limit = before if exactly is None else exactly
            read_to(cut.offset, cut.epoch, limit)
            found.append(
                Scripted(
                    cut.offset, cut.offset, cut.epoch, cut, exactly, None if exactly else before
                )
            )

    ranges = [target for target in exact if target.made_from.node != COMPLETION]
    for target in sorted(ranges, key=lambda target: target.made_from.stamp):
        end, begin = target.made_from.stamp
        cuts_before(target.made_from.epoch, target.stamp)
        read_to(begin, target.made_from.epoch, target.stamp)
        found.append(Scripted(begin, end, target.made_from.epoch, None, target.stamp))
        cursor = max(cursor, end)
    cuts_before(None, None)
    read_to(start.ahead, start.begun, None)
    return found


class CausalSource(CausalMachine):
    """A source's node: its steps are ranges of its own input instead of senders' bundles.

    >>> from penstock.core.node.options import Outlet
    >>> node = CausalSource(Wiring(5, outlets=(Outlet(9, (7,)),)))
    >>> node.read(0, 10, 0); node.cut(0, None, 10)
    Traceback (most recent call last):
    penstock.errors.InvariantError: source 5: a cut inside of a step
    """

    def __init__(
        self, wiring: Wiring, options: NodeOptions = DEFAULTS, start: Start | None = None
    ) -> None:
        super().__init__(wiring, options, start)
        self.offset = start.offset if start is not None else 0
        self._script = script(start) if start is not None else []
        self._cut: Cut | None = None
        self._start_us = start.watermark_us if start is not None else None
        self._begun = start.begun if start is not None else -1

    def begin(self) -> list[CausalEffect]:
        """Called once, after a start: a source has its watermark from its last cut alone."""
        if not self.standing.restating:
            return self._pump()
        self.standing.watermark_us = self._start_us
        return [Restated(self.completed_epoch, self._start_us)]

    def read(self, start: int, end: int, epoch: int) -> None:
        """The reader has a batch: ``produced`` … and ``end_step`` follow."""
        require(self._step is None, f"source {self.node}: a batch inside of a step")
        require(start == self.offset, f"source {self.node}: rows {start} after {self.offset}")
        self.offset = end
        self.standing.saw_rows(epoch)
        self._step = Step((DiffLink(origin(self.node), (end, start), epoch),), FREE)

    def cut(self, epoch: int, watermark_us: int | None, offset: int) -> list[CausalEffect]:
        """The reader has come to the end of an epoch: make that durable first."""
        require(self._step is None, f"source {self.node}: a cut inside of a step")
        if epoch <= self.completed_epoch or self._cut is not None:
            raise InvariantError(
                f"source {self.node}: cannot cut epoch {epoch} after {self.completed_epoch}"
            )
        self._cut = Cut(epoch, offset, watermark_us)
        return [StoreCut(epoch, offset, watermark_us)]

    def cut_stored(self, epoch: int) -> list[CausalEffect]:
        """The end of an epoch is durable: it may be marked."""
        cut, self._cut = self._cut, None
        if cut is None or cut.epoch != epoch:
            raise InvariantError(f"source {self.node}: no cut of {epoch} was to be stored")
        self._step = Step((completion(epoch),), FREE)
        return [Complete(epoch, cut.watermark_us, 0)]

    def _turn(self, effects: list[CausalEffect]) -> Turn[Item] | None:
        if self._replay is None or self._script:
            return FREE if self._script else None
        if not self.finished:
            begun = self._begun > self.completed_epoch
            epoch = self._begun if begun else self.completed_epoch + 1
            effects.append(ResumeReading(self.offset, epoch, begun))
        self._replayed(effects)
        return None

    def _begin(self, turn: Turn[Item]) -> list[CausalEffect]:
        item = self._script.pop(0)
        turn = Turn(None, item.exactly, item.before)
        if item.cut is not None:
            self._step = Step((completion(item.epoch),), turn)
            return [Complete(item.epoch, item.cut.watermark_us, 0)]
        self.offset = item.end
        self.standing.saw_rows(item.epoch)
        made_from = DiffLink(origin(self.node), (item.end, item.start), item.epoch)
        self._step = Step((made_from,), turn)
        return [ReadAgain(item.start, item.end, item.epoch)]
