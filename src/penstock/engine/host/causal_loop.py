"""A node in a loop under causal recovery.

What its vertices send out of the loop waits until the epoch is complete in it.  Epochs are taken in
blocks with a checkpoint between two; :mod:`penstock.core.node.blocks` decides what waits and when a
block is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

from penstock.core.causal.reports import NodeReport
from penstock.core.node.blocks import (
    Admit,
    BlockEffect,
    Blocks,
    CompleteEpoch,
    RegionEpoch,
    SaveBlock,
)
from penstock.core.node.causal_effects import Flushed
from penstock.core.node.messages import Deliver, Message
from penstock.core.time import Time
from penstock.engine.host.clean_node import HoldingRunner
from penstock.engine.host.node import NodeRunner

__all__ = ["LoopRunner"]


@dataclass
class LoopRunner(HoldingRunner):
    """One node of a loop that can be restarted, together with the others."""

    block_epochs: int = field(kw_only=True)
    """Epochs from one checkpoint to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        machine = self.machine
        repeats = -1 if self.store is None else machine.repeats
        self._blocks = Blocks(self.block_epochs, machine.completed_epoch, machine.counts, repeats)

    def takes(self, message: Message) -> bool:
        machine = self.machine
        return message.link not in machine.inside or machine.accept(message)

    def next_messages(self) -> list[tuple[int, Message]]:
        if self.queue[0][1].link not in self.machine.inside:
            return [self.queue.popleft()]
        return NodeRunner.next_messages(self)

    def handle(self, messages: Iterable[Message]) -> None:
        machine = self.machine
        taken = list(messages)
        if taken[0].link not in machine.inside:
            super().handle(taken)
            return
        effects = [effect for message in taken for effect in machine.handle_inside(message)]
        self.perform(self._merged(effects) if len(effects) > 1 else effects)

    def produce(self, link: int, parts: Iterable[tuple[int, Any, int]], at: Time) -> None:
        if link in self.machine.inside:
            self.perform(self.machine.produced(link, parts, at))
        else:
            super().produce(link, parts, at)

    def _checkpoint_due(self, epoch: int, calm: bool) -> bool:
        return False  # only at the end of a block is nothing of later epochs inside

    def ask_checkpoint(self, epoch: int, now: bool) -> None:
        """The end of a block answers it."""
        completed = self.machine.completed_epoch
        if self.checkpoint_epoch >= (completed if now else epoch):
            super().ask_checkpoint(epoch, now)
        elif self.store is not None:
            self.asked = (self._blocks.answered_by(epoch, completed, now), epoch)

    def _saved(
        self, key: int, report: NodeReport, sizes: tuple[int, int, int], took_s: float
    ) -> None:
        super()._saved(key, report, sizes, took_s)
        self.host.look()  # a block that is owed may be saved now, and rows wait for that

    def not_saved(self) -> None:
        super().not_saved()
        self.host.look()

    def _deliver(self, effect: Deliver) -> None:
        if self._blocks.let_in(effect):
            super()._deliver(effect)

    def _tell_flushed(self, effect: Flushed) -> None:
        ended = self.machine.finished
        if self.store is None or self._blocks.may_tell_flushed(
            effect.epoch, self.checkpoint_epoch, ended
        ):
            super()._tell_flushed(effect)
        else:
            self._flushed = effect

    def gates_closed(self, epochs: Iterable[RegionEpoch]) -> None:
        self._blocks.closed(epochs)

    def advance(self, least_open: int) -> bool:
        worked = False
        while effects := self._over(least_open):
            worked = True
            for effect in effects:
                match effect:
                    case CompleteEpoch():
                        self.region_completed(*effect)
                    case SaveBlock():
                        self.perform(self.machine.take_checkpoint())
                    case Admit():
                        super()._deliver(effect.rows)
                    case _:
                        assert_never(effect)
        return worked

    def _over(self, least_open: int) -> list[BlockEffect]:
        machine = self.machine
        may_save = self.store is not None and not (self._writing or machine.replaying)
        return self._blocks.next(least_open, machine.completed_epoch, may_save)
