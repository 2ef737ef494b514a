"""A node in a loop under causal recovery.

What its vertices send out of the loop waits until the epoch is complete in it.

All nodes of a loop start from one epoch together, so they take their checkpoints at the same one,
and a checkpoint must hold nothing of later epochs.  Epochs are therefore taken in blocks: rows of
the next block that come into the loop wait until the present block is complete, and between the two
there is a checkpoint.  What waits is counted, so its epoch is not taken for complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.core.node.causal_effects import Flushed
from penstock.core.node.messages import Deliver, Message
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time
from penstock.engine.host.clean_node import HoldingRunner
from penstock.engine.host.node import NodeRunner

__all__ = ["LoopRunner"]


@dataclass
class LoopRunner(HoldingRunner):
    """One node of a loop that can be restarted, together with the others."""

    block_epochs: int = field(kw_only=True)
    """Epochs from one checkpoint to the next."""
    _waiting: deque[Deliver] = field(default_factory=deque)
    _block_end: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._next_block(self.machine.completed_epoch + 1)

    def _next_block(self, epoch: int) -> None:
        self._block_end = (epoch // self.block_epochs + 1) * self.block_epochs - 1

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
        return False

    def ask_checkpoint(self, epoch: int, now: bool) -> None:
        """The next end of a block answers it: only there is nothing of later epochs inside."""
        if self.checkpoint_epoch >= epoch:
            super().ask_checkpoint(epoch, now)
        elif self.store is not None:
            self.asked = (min(epoch, self._block_end) if now else epoch, epoch)

    def _deliver(self, effect: Deliver) -> None:
        outside = effect.link not in self.machine.inside
        counts = self.machine.counts
        if outside and effect.time.epoch > self._block_end and counts is not None:
            self._waiting.append(effect)
            counts.asked(effect.time)
        else:
            super()._deliver(effect)

    def _tell_flushed(self, effect: Flushed) -> None:
        # Its checkpoint is taken when nothing of the block is under way inside any more.
        ended = self.machine.newest >= EPOCH_END
        if self.store is None or ended or self.checkpoint_epoch >= effect.epoch:
            super()._tell_flushed(effect)
        else:
            self._flushed = effect

    def passed(self, is_passed: Callable[[int], bool]) -> bool:
        if not is_passed(self._block_end):
            return False
        machine = self.machine
        if self.store is not None and machine.newest < EPOCH_END and not self._writing:
            self.perform(machine.take_checkpoint())
        first = min((effect.time.epoch for effect in self._waiting), default=self._block_end + 1)
        self._next_block(min(first, EPOCH_END))
        waiting, self._waiting = self._waiting, deque()
        for effect in waiting:
            if effect.time.epoch <= self._block_end and machine.counts is not None:
                super()._deliver(effect)
                machine.counts.notified(effect.time)
            else:
                self._waiting.append(effect)
        return True
