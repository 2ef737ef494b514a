"""Nodes that leave out one thing each; see :mod:`.mutants`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.core.causal.clocks import Position
from penstock.core.causal.replay import Replay
from penstock.core.causal.reports import Start
from penstock.core.causal.times import ZERO, Stamp, after
from penstock.core.machine.causal import CausalMachine
from penstock.core.machine.causal_effects import CausalEffect, Checkpoint, Recall, StoreDeterminants
from penstock.core.machine.causal_loop import CausalLoop
from penstock.core.machine.causal_output import Item, Step
from penstock.core.machine.causal_source import CausalSource
from penstock.core.machine.messages import Message


class NoFence(CausalMachine):
    def accept(self, message: Message) -> bool:
        key = (message.link, message.sender)
        if message.sequence != self._received[key] + 1:
            return False
        self._received[key] = message.sequence
        return True


class NoDedup(CausalMachine):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        return super().open(child, incarnation, Position())

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(start, checkpoint)
        self._clock = dict.fromkeys(self._clock, ZERO)


class NoDedupSource(CausalSource):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        return super().open(child, incarnation, Position())


class ResumeOneTooLate(CausalMachine):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        later = position._replace(stamp=after(position.stamp))
        return super().open(child, incarnation, later)


class ResumeOneTooLateSource(CausalSource):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        later = position._replace(stamp=after(position.stamp))
        return super().open(child, incarnation, later)


class ArrivalOrder(CausalMachine):
    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(replace(start, targets=()), checkpoint)


class OpenAtOnce(CausalMachine):
    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(start, checkpoint)
        self._open = dict.fromkeys(self._open, True)


class NothingAgainToTheLiving(CausalMachine):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        self._open[child] = True
        while self.log.take(child) is not None:
            self.log.taken(child)
        self._open[child] = False
        return super().open(child, incarnation, position._replace(stamp=self.stamp))


class UnheldOutput(CausalMachine):
    """Sends before the order behind it is durable."""

    def _flush(self, child: int) -> list[CausalEffect]:
        self._durable = max(self._durable, self.stamp)
        return super()._flush(child)


class NoDeterminants(CausalMachine):
    def _log_step(self, step: Step) -> list[CausalEffect]:
        effects = super()._log_step(step)
        self._durable = self.stamp
        kept: list[CausalEffect] = [
            effect for effect in effects if not isinstance(effect, StoreDeterminants)
        ]
        return kept + [effect for child in self.children for effect in self._flush(child)]


class NoLogsInCheckpoints(CausalMachine):
    def checkpoint(self) -> Checkpoint:
        return super().checkpoint()._replace(log={})


class ForgetfulCheckpoints(CausalMachine):
    def checkpoint(self) -> Checkpoint:
        found = super().checkpoint()
        return found._replace(report=replace(found.report, diffs=()))


class KeepsFencedInput(CausalMachine):
    def fence(self, fences: Mapping[int, int], round_: int) -> list[CausalEffect]:
        partial = dict(self._partial)
        effects = super().fence(fences, round_)
        self._partial = partial
        return effects


class ReusesStamps(CausalMachine):
    """Ignores where the recipients are when it squeezes a step in."""

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(start, checkpoint)
        self._taken = {}
        self._top = start.stamp


class AllOfOneEpoch(Replay[Item]):
    def arrived(
        self,
        sender: int,
        stamp: Stamp,
        epoch: int,
        item: Item,
        only_marks: bool = False,
        marked: int = -1,
    ) -> None:
        super().arrived(sender, stamp, -1, item, False, marked)


class ForcesLaterRows(CausalMachine):
    """Takes everything before a mark for part of the epoch that the mark ends."""

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(start, checkpoint)
        self._replay = AllOfOneEpoch(start.targets, self.senders)


class StatesNothing(CausalMachine):
    """Starts without its senders' watermarks."""

    def _told(self, item: Item) -> list[CausalEffect]:
        return super()._told(tuple(message._replace(watermark_us=None) for message in item))


class StatesTooSoon(CausalMachine):
    """Takes the newest watermark that it has for the one at the child's epoch."""

    def _state(self, child: int, epoch: int) -> list[CausalEffect]:
        completed, self.completed_epoch = self.completed_epoch, max(self.completed_epoch, epoch)
        effects = super()._state(child, epoch)
        self.completed_epoch = completed
        return effects


class ForgetsMarks(CausalMachine):
    def truncate(self, positions: Mapping[int, Position], epoch: int) -> None:
        super().truncate(positions, epoch)
        for child in self.children:
            self.log._outgoing[child].stated.clear()


class LoopKeepsItsClock(CausalLoop):
    """Takes what it had of later epochs for part of its checkpoints."""

    def checkpoint(self) -> Checkpoint:
        self.clean = False
        return super().checkpoint()


class DrawsAgain(CausalMachine):
    def _pump(self) -> list[CausalEffect]:
        return [effect for effect in super()._pump() if not isinstance(effect, Recall)]


class KeepsLaterEpochs(CausalMachine):
    def checkpoint(self) -> Checkpoint:
        self.clean = False
        return super().checkpoint()


class LoopForgetsItsStamp(CausalLoop):
    def checkpoint(self) -> Checkpoint:
        found = super().checkpoint()
        return found._replace(report=replace(found.report, stamp=ZERO))


class WatermarkAhead(CausalMachine):
    """Takes the newest watermark that it knows for the one at its checkpoint's epoch."""

    def checkpoint(self) -> Checkpoint:
        self.watermark_us = self._aligner.watermark_us
        return super().checkpoint()


class KeepsWatermarks(CausalMachine):
    """Lets no watermark go back, without a state in which to remember the greatest."""

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        self._aligner._keeps = True
        super()._start(start, checkpoint)


class ForgetsBegunEpochs(CausalSource):
    def begin(self) -> list[CausalEffect]:
        self._begun = -1
        return super().begin()
