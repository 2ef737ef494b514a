"""A node in a loop under causal recovery.

What its vertices send out of the loop waits until the epoch is complete in it.  Checkpoints of all
nodes of a loop are taken at the same epochs, chosen by number, because they start from one epoch
together; they hold nothing of later epochs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.core.machine.causal_loop import CausalLoop
from penstock.core.machine.messages import Message
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time
from penstock.engine.causal_node import CausalRunner
from penstock.engine.node import NodeRunner
from penstock.errors import InvariantError

__all__ = ["LoopRunner"]


@dataclass
class LoopRunner(CausalRunner):
    """One node of a loop that can be restarted, together with the others."""

    checkpoint_epochs: int = field(kw_only=True)
    """Epochs from one checkpoint to the next."""
    ordered: bool = field(kw_only=True)
    """Whether its state is what it is, not a function of the epochs that are complete."""
    _held: dict[int, list[tuple[int, list[tuple[int, Any, int]], Time]]] = field(
        default_factory=dict
    )
    _saved_epoch: int = -1
    _newest: int = -1

    @property
    def looping(self) -> CausalLoop:
        """The machine, by its full type."""
        machine = self.machine
        if not isinstance(machine, CausalLoop):
            raise InvariantError(f"node {self.name} is not in a loop")
        return machine

    def takes(self, message: Message) -> bool:
        machine = self.looping
        return message.link not in machine.inside or machine.accept(message)

    def next_messages(self) -> list[tuple[int, Message]]:
        if self.queue[0][1].link not in self.looping.inside:
            return [self.queue.popleft()]
        return NodeRunner.next_messages(self)

    def handle(self, messages: Iterable[Message]) -> None:
        machine = self.looping
        taken = list(messages)
        self._newest = max(self._newest, *(message.time.epoch for message in taken))
        if taken[0].link not in machine.inside:
            super().handle(taken)
            return
        effects = [effect for message in taken for effect in machine.handle(message)]
        self.perform(self._merged(effects) if len(effects) > 1 else effects)  # type: ignore[arg-type]

    def produce(self, link: int, parts: Iterable[tuple[int, Any, int]], at: Time) -> None:
        if link in self.looping.inside:
            self.perform(self.looping.produced(link, parts, at))
        else:
            self._held.setdefault(at.epoch, []).append((link, list(parts), at))

    def _release(self, epoch: int) -> None:
        for done in sorted(other for other in self._held if other <= epoch):
            for link, parts, at in self._held.pop(done):
                self.machine.produced(link, parts, at)

    def _checkpoint_due(self, epoch: int) -> bool:
        due = epoch // self.checkpoint_epochs > self._saved_epoch // self.checkpoint_epochs
        if not due or self._writing or epoch >= EPOCH_END:
            return False
        if self.ordered and self._newest > epoch:
            return False
        self._saved_epoch = epoch
        return True
