"""Mutants of the protocol: each leaves out one thing, and the simulator must notice.

A mutant that survives many seeds means that the simulator does not test that part of the protocol
(or that the part is not needed).  Each names what it leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.core.causal.clocks import Position
from penstock.core.causal.replay import Replay
from penstock.core.causal.reports import Plan, Report, Start, Stored
from penstock.core.causal.times import ZERO, Stamp, after
from penstock.core.machine.causal import CausalMachine
from penstock.core.machine.causal_effects import CausalEffect, Checkpoint, StoreDeterminants
from penstock.core.machine.causal_output import Item, Step
from penstock.core.machine.causal_source import CausalSource
from penstock.core.machine.messages import Message
from penstock.core.machine.recovery import Record, RecoveryEffect, RecoveryMachine

__all__ = ["MUTANTS", "REAL", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """The machines of a run: the real ones, or slightly wrong ones."""

    name: str
    leaves_out: str = ""
    machine: type[CausalMachine] = CausalMachine
    source: type[CausalSource] = CausalSource
    recovery: type[RecoveryMachine] = RecoveryMachine
    stale_writes: bool = False


REAL = Mutant("real")


class _NoFence(CausalMachine):
    def accept(self, message: Message) -> bool:
        key = (message.link, message.sender)
        if message.sequence != self._received[key] + 1:
            return False
        self._received[key] = message.sequence
        return True


class _NoDedup(CausalMachine):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        return super().open(child, incarnation, Position())

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(start, checkpoint)
        self._clock = dict.fromkeys(self._clock, ZERO)


class _NoDedupSource(CausalSource):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        return super().open(child, incarnation, Position())


class _ResumeOneTooLate(CausalMachine):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        later = position._replace(stamp=after(position.stamp))
        return super().open(child, incarnation, later)


class _ResumeOneTooLateSource(CausalSource):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        later = position._replace(stamp=after(position.stamp))
        return super().open(child, incarnation, later)


class _ArrivalOrder(CausalMachine):
    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(replace(start, targets=()), checkpoint)


class _OpenAtOnce(CausalMachine):
    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(start, checkpoint)
        self._open = dict.fromkeys(self._open, True)


class _NothingAgainToTheLiving(CausalMachine):
    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        self._open[child] = True
        while self.log.take(child) is not None:
            self.log.taken(child)
        self._open[child] = False
        return super().open(child, incarnation, position._replace(stamp=self.stamp))


class _UnheldOutput(CausalMachine):
    """Sends before the order behind it is durable."""

    def _flush(self, child: int) -> list[CausalEffect]:
        self._durable = max(self._durable, self.stamp)
        return super()._flush(child)


class _NoDeterminants(CausalMachine):
    def _log_step(self, step: Step) -> list[CausalEffect]:
        effects = super()._log_step(step)
        self._durable = self.stamp
        kept: list[CausalEffect] = [
            effect for effect in effects if not isinstance(effect, StoreDeterminants)
        ]
        return kept + [effect for child in self.children for effect in self._flush(child)]


class _NoLogsInCheckpoints(CausalMachine):
    def checkpoint(self) -> Checkpoint:
        return super().checkpoint()._replace(log={})


class _ForgetfulCheckpoints(CausalMachine):
    def checkpoint(self) -> Checkpoint:
        found = super().checkpoint()
        return found._replace(report=replace(found.report, diffs=()))


class _KeepsFencedInput(CausalMachine):
    def fence(self, fences: Mapping[int, int], round_: int) -> list[CausalEffect]:
        partial = dict(self._partial)
        effects = super().fence(fences, round_)
        self._partial = partial
        return effects


class _ReusesStamps(CausalMachine):
    """Ignores where the recipients are when it squeezes a step in."""

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(start, checkpoint)
        self._taken = {}
        self._top = start.stamp


class _AllOfOneEpoch(Replay[Item]):
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


class _ForcesLaterRows(CausalMachine):
    """Takes everything before a mark for part of the epoch that the mark ends."""

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        super()._start(start, checkpoint)
        self._replay = _AllOfOneEpoch(start.targets, self.senders)


class _StatesNothing(CausalMachine):
    """Starts without its senders' watermarks."""

    def _told(self, item: Item) -> list[CausalEffect]:
        return super()._told(tuple(message._replace(watermark_us=None) for message in item))


class _StatesTooSoon(CausalMachine):
    """Takes the newest watermark that it has for the one at the child's epoch."""

    def _state(self, child: int, epoch: int) -> list[CausalEffect]:
        completed, self.completed_epoch = self.completed_epoch, max(self.completed_epoch, epoch)
        effects = super()._state(child, epoch)
        self.completed_epoch = completed
        return effects


class _TruncatesTooFar(RecoveryMachine):
    def truncate_due(self, low: int) -> list[RecoveryEffect]:
        return super().truncate_due(low + 1)


class _ForgetsMarks(CausalMachine):
    def truncate(self, positions: Mapping[int, Position], epoch: int) -> None:
        super().truncate(positions, epoch)
        for child in self.children:
            self.log._outgoing[child].stated.clear()


class _NoClosure(RecoveryMachine):
    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        return replace(super().plan(failed, reports, stored), joining=())


class _NoDeadlines(RecoveryMachine):
    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        found = super().plan(failed, reports, stored)
        starts = {
            node: replace(start, targets=tuple(t for t in start.targets if not t.loose))
            for node, start in found.starts.items()
        }
        return replace(found, starts=starts)


class _OnlyDirectChildren(RecoveryMachine):
    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        near = {
            node: replace(report, diffs=tuple(diff[:2] for diff in report.diffs))
            for node, report in reports.items()
        }
        return super().plan(failed, near, stored)


class _ForgetsUnfinished(RecoveryMachine):
    def lost(self, nodes: Mapping[int, int]) -> list[RecoveryEffect]:
        self.record = Record(self.record.incarnations, frozenset(), self.record.recoveries)
        return super().lost(nodes)


class _RecoveredTooSoon(RecoveryMachine):
    def recovered(self, node: int, incarnation: int) -> list[RecoveryEffect]:
        waiting, self._unopened = self._unopened, set()
        current, self._round = self._round, None
        effects = super().recovered(node, incarnation)
        self._unopened, self._round = waiting, current
        return effects


class _StartsTooLate(RecoveryMachine):
    """Takes the greatest position of the children for the least."""

    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        found = super().plan(failed, reports, stored)
        starts = {}
        for node, start in found.starts.items():
            if start.checkpoint is None and start.positions and start.clock:
                top: Stamp = max(position.stamp for position in start.positions.values())
                handled = {
                    sender: position._replace(
                        stamp=max(
                            [position.stamp]
                            + [
                                t.made_from.stamp
                                for t in start.targets
                                if t.made_from.node == sender and t.stamp <= top
                            ]
                        )
                    )
                    for sender, position in start.clock.items()
                }
                start = replace(
                    start,
                    stamp=top,
                    clock=handled,
                    targets=tuple(
                        t for t in start.targets if t.stamp > top or t.made_from.node < 0
                    ),
                )
            starts[node] = start
        return replace(found, starts=starts)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("no-fence", "receivers refuse other incarnations (14)", _NoFence),
    Mutant("no-store-fence", "the store refuses other incarnations (14)", stale_writes=True),
    Mutant("no-dedup", "positions on edges (16)", _NoDedup, _NoDedupSource),
    Mutant(
        "resume-too-late", "resume right after t (1)", _ResumeOneTooLate, _ResumeOneTooLateSource
    ),
    Mutant("arrival-order", "the replay rule (2)", _ArrivalOrder),
    Mutant("output-before-open", "two phases (15)", _OpenAtOnce),
    Mutant("nothing-again", "send again to live children (16)", _NothingAgainToTheLiving),
    Mutant("unheld-output", "determinants before output (9)", _UnheldOutput),
    Mutant("no-determinants", "determinants (9)", _NoDeterminants),
    Mutant("checkpoint-without-payloads", "logs in checkpoints (8)", _NoLogsInCheckpoints),
    Mutant("checkpoint-without-diffs", "logs in checkpoints (8)", _ForgetfulCheckpoints),
    Mutant("keeps-half-a-step", "a fence drops what is unfinished (14)", _KeepsFencedInput),
    Mutant("reuses-stamps", "dense times after all known ones (1)", _ReusesStamps),
    Mutant("states-nothing", "senders restate their watermarks", _StatesNothing),
    Mutant("states-too-soon", "watermarks are restated when they are certain", _StatesTooSoon),
    Mutant("truncates-too-far", "one watermark (12)", recovery=_TruncatesTooFar),
    Mutant("forgets-marks", "the newest mark behind a truncation is kept", _ForgetsMarks),
    Mutant("no-closure", "closure (6)", recovery=_NoClosure),
    Mutant("direct-children-only", "all witnesses (5)", recovery=_OnlyDirectChildren),
    Mutant("forgets-unfinished", "failed until recovered (4)", recovery=_ForgetsUnfinished),
    Mutant("recovered-too-soon", "failed until opened (4)", recovery=_RecoveredTooSoon),
    Mutant(
        "marks-anywhere",
        "marks overtake rows, and completions keep their place (2); one alone seems to do",
        _ForcesLaterRows,
        recovery=_NoDeadlines,
    ),
    Mutant("starts-too-late", "the least position (5)", recovery=_StartsTooLate),
)
