"""What a simulated process does for its loop: rows go round, blocks begin and end, counts leave."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, assert_never

from penstock.core.node.blocks import (
    Admit,
    BlockEffect,
    Blocks,
    CompleteEpoch,
    RegionEpoch,
    SaveBlock,
)
from penstock.core.node.causal_effects import Flushed
from penstock.core.node.messages import Deliver, TellClosed
from penstock.testing.simulator.loops import INSIDE, Travelling, entering, go_round

if TYPE_CHECKING:
    from penstock.testing.simulator.process import Process

__all__ = ["LoopPart"]


class LoopPart:
    """The blocks and counts of a process in a loop."""

    def __init__(self, process: Process) -> None:
        self._process = process
        machine, loops = process.machine, process.world.loops
        self.end = loops.join(process)
        self._blocks = Blocks(
            loops.block(process.node), machine.completed_epoch, machine.counts, machine.repeats
        )
        self.is_due = False
        """Whether an epoch or a block is over here."""
        self._advancing = False
        self._saved = machine.completed_epoch
        """The last epoch of the newest checkpoint that is durable."""
        self._untold: Flushed | None = None

    # -- rows ------------------------------------------------------------------------------------

    def deliver(self, effect: Deliver) -> None:
        """Rows from outside, or from inside."""
        outside = effect.link < INSIDE
        if outside:
            effect = effect._replace(time=effect.time.entered())
        if not self._blocks.let_in(effect):
            if outside:
                self.end.truth.added(effect.time.epoch)
            return
        self._go_round(effect)
        if not outside:
            self.end.truth.handled(effect.time.epoch)

    def _go_round(self, effect: Deliver) -> None:
        process = self._process
        node, rows = process.node, effect.payload
        members = process.world.shape.graph.members[node]
        travelling: Travelling
        travelling = rows if effect.link >= INSIDE else entering(node, rows)  # type: ignore[assignment, arg-type]
        settled, going = go_round(members, travelling)
        process.vertex.receive(settled, effect.time.epoch)
        parts: list[tuple[int, Any, int]] = [(target, part, 0) for target, part in going.items()]
        sends = process.machine.produced(INSIDE + node, parts, effect.time.advanced())
        process.perform_now(sends)

    # -- progress --------------------------------------------------------------------------------

    def closed(self, report: TellClosed) -> None:
        """The gate is closed, or says at which watermark it starts."""
        self._process.world.loops.closed(self._process, self.end, report)

    def gates_closed(self, epochs: Iterable[RegionEpoch]) -> None:
        """The frontier has moved, and these epochs are closed at all gates."""
        self._blocks.closed(epochs)
        self._look()

    def count(self) -> None:
        """A step is over: its counts leave together."""
        counts = self._process.machine.counts
        if counts is not None and not self._advancing:
            self._process.world.loops.count(self.end, counts.take())
            self._look()

    def _look(self) -> None:
        completed = self._process.machine.completed_epoch
        least_open = self.end.least_open
        is_owed = self._blocks.is_owed(least_open, completed, self._may_save)
        self.is_due = is_owed or self._blocks.is_due(least_open)

    def advance(self) -> None:
        """Do what the frontier allows."""
        process = self._process
        self.end.check()
        self._advancing = True
        while process.alive and (effects := self._over()):
            for effect in effects:
                match effect:
                    case CompleteEpoch():
                        process.perform(process.machine.region_completed(*effect))
                    case SaveBlock():
                        process.perform(process.machine.take_checkpoint())
                    case Admit():
                        self._go_round(effect.rows)
                        self.end.truth.handled(effect.rows.time.epoch)
                    case _:
                        assert_never(effect)
        self._advancing = False
        self.count()

    def _over(self) -> list[BlockEffect]:
        completed = self._process.machine.completed_epoch
        return self._blocks.next(self.end.least_open, completed, self._may_save)

    @property
    def _may_save(self) -> bool:
        writing = any(what == "checkpoint" for what, _ in self._process.writes)
        return not (writing or self._process.machine.replaying)

    # -- checkpoints -----------------------------------------------------------------------------

    def may_tell(self, flushed: Flushed) -> bool:
        """Whether a hold is flushed; else that is told later."""
        ended = self._process.machine.finished
        tells = self._blocks.may_tell_flushed(flushed.epoch, self._saved, ended)
        self._untold = None if tells else flushed
        return tells

    def saved(self, epoch: int) -> None:
        """A checkpoint is durable; what waited for it is told."""
        self._saved = epoch
        if self._untold is not None:
            self._process.perform([self._untold])
