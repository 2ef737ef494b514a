"""Nodes that send nothing of an epoch before the epoch is complete in them.

What their vertices make waits until then, so every child gets an epoch at once or not at all, and
what it gets is a function of the rows of complete epochs.  Their checkpoints are taken at the ends
of epochs and have nothing of later ones: vertices of the library keep the rows of open epochs
apart.  Where a vertex does not, or an epoch is to be worked on as a whole, rows wait before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.api.regimes import Batch, Lazy
from penstock.core.node.messages import Complete, Deliver
from penstock.core.time import Time
from penstock.engine.host.causal_node import CausalRunner
from penstock.operators.user_vertex import UserVertex
from penstock.planning.physical import Chain

__all__ = ["CleanRunner", "HoldingRunner", "waits"]


def waits(chain: Chain) -> str:
    """For what rows wait before the vertices of a chain, see :attr:`CleanRunner.waits`."""
    regime = chain.regime
    ordered = any(stage.operator.state == "ordered" for stage in chain.stages)
    if isinstance(regime, Batch) or ordered:
        return "whole"
    apart = not any(
        isinstance(stage.operator, UserVertex) and stage.operator.state != "none"
        for stage in chain.stages
    )
    return "" if apart and not (isinstance(regime, Lazy) and not regime.selective) else "turn"


@dataclass
class HoldingRunner(CausalRunner):
    """A node whose output waits for the completion of its epoch."""

    _held: dict[int, list[tuple[int, list[tuple[int, Any, int]], Time]]] = field(
        default_factory=dict
    )

    def produce(self, link: int, parts: Iterable[tuple[int, Any, int]], at: Time) -> None:
        self._held.setdefault(at.epoch, []).append((link, list(parts), at))

    def _release(self, epoch: int) -> None:
        for done in sorted(other for other in self._held if other <= epoch):
            for link, parts, at in self._held.pop(done):
                self.machine.produced(link, parts, at)


@dataclass
class CleanRunner(HoldingRunner):
    """One node of a stage that is kept at the ends of epochs."""

    waits: str = field(kw_only=True)
    """For what rows wait: "" (nothing), "turn" (earlier epochs), "whole" (all of their epoch)."""
    _waiting: dict[int, list[Deliver]] = field(default_factory=dict)

    def _deliver(self, effect: Deliver) -> None:
        epoch = effect.time.epoch
        turn = self.waits == "turn" and epoch == self.machine.completed_epoch + 1
        if self.waits and not turn:
            self._waiting.setdefault(epoch, []).append(effect)
        else:
            super()._deliver(effect)

    def _complete(self, effect: Complete) -> None:
        for epoch in sorted(other for other in self._waiting if other <= effect.epoch):
            self._give(epoch)
        super()._complete(effect)
        if self.waits == "turn" and not self._retired:
            self._give(effect.epoch + 1)

    def _give(self, epoch: int) -> None:
        """Give the vertices the rows of an epoch, in an order that a repetition has, too."""
        waiting = self._waiting.pop(epoch, [])
        if self.waits == "whole":
            waiting.sort(key=lambda effect: (effect.link, effect.sender))
        for effect in waiting:
            super()._deliver(effect)

    def _checkpoint_due(self, epoch: int, calm: bool) -> bool:
        if self.checkpoint_epochs is not None:
            self.machine.checkpoints.every = self.checkpoint_epochs
        return self._checkpoint_asked(epoch)  # else the machine says when
