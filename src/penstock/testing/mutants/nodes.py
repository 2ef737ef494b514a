"""Mutants of a node: what it accepts, logs, sends again, replays and saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.core.causal.clocks import Position
from penstock.core.causal.replay import Replay
from penstock.core.causal.reports import Start, Target
from penstock.core.causal.times import ZERO, after
from penstock.core.node.causal_effects import (
    CausalEffect,
    Checkpoint,
    Recall,
    StoreDeterminants,
)
from penstock.core.node.messages import Message
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END, WATERMARK_IDLE, Completion
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["NODES"]

_MACHINE = "penstock.core.node.causal:CausalMachine"
_CHECKPOINT = f"{_MACHINE}.checkpoint"
_GATE = "penstock.core.node.gate:Gate"
_INBOX = "penstock.core.node.inbox:Inbox"
_INTAKE = "penstock.core.node.intake:Intake"
_OUTPUT = "penstock.core.node.output:Output"
_SENDERS = "penstock.core.node.senders:Senders"
_SOURCE = "penstock.core.node.source:CausalSource"
_SCRIPT = "penstock.core.node.source:script"
_LOG = "penstock.core.causal.logs:PayloadLog"
_LOOP_GATE = "penstock.core.node.gate:LoopGate"
_MARKS = "penstock.core.progress.marks"
_REPLAY = "penstock.core.causal.replay:Replay"

# -- what a node accepts and sends again -----------------------------------------------------------


@mutant("receivers refuse other incarnations (14)", f"{_INTAKE}.accept", seed=256)
def no_fence(real: Replacement, self: Any, message: Message) -> bool:
    key = (message.link, message.sender)
    if message.sequence != self._received[key] + 1:
        return False
    self._received[key] = message.sequence
    return True


@mutant(
    "what was sent to another incarnation of the receiver does not count (14)",
    f"{_INTAKE}.accept",
    flows=Flows.MIXED_ROUGH,
    seed=3,
)
def takes_what_was_for_the_one_before(real: Replacement, self: Any, message: Message) -> bool:
    own, self._own = self._own, None
    accepted: bool = real(self, message)
    self._own = own
    return accepted


def _clock_at_zero(real: Replacement, self: Any, *start: Any) -> None:
    real(self, *start)
    self.clock = dict.fromkeys(self.clock, ZERO)


@mutant(
    "positions on edges (16)", f"{_OUTPUT}.open", also={f"{_SENDERS}.start": _clock_at_zero}, seed=2
)
def no_dedup(
    real: Replacement, self: Any, child: int, incarnation: int, position: Position
) -> list[CausalEffect]:
    found: list[CausalEffect] = real(self, child, incarnation, Position())
    return found


@mutant("resume right after t (1)", f"{_OUTPUT}.open", seed=10)
def resume_too_late(
    real: Replacement, self: Any, child: int, incarnation: int, position: Position
) -> list[CausalEffect]:
    later = position._replace(stamp=after(position.stamp))
    found: list[CausalEffect] = real(self, child, incarnation, later)
    return found


@mutant("the replay rule (2)", f"{_MACHINE}._start", seed=33)
def arrival_order(real: Replacement, self: Any, start: Start, saved: Checkpoint | None) -> None:
    real(self, replace(start, targets=()), saved)


@mutant("two phases (15)", f"{_OUTPUT}.start", seed=2)
def output_before_open(real: Replacement, self: Any, *start: Any) -> None:
    real(self, *start)
    self._open = dict.fromkeys(self._open, True)


@mutant("send again to live children (16)", f"{_OUTPUT}.open", seed=9)
def nothing_again(
    real: Replacement, self: Any, child: int, incarnation: int, position: Position
) -> list[CausalEffect]:
    self._open[child] = True
    while self.log.take(child) is not None:
        self.log.taken(child)
    self._open[child] = False
    found: list[CausalEffect] = real(
        self, child, incarnation, position._replace(stamp=self._standing.stamp)
    )
    return found


@mutant("a fence drops what is unfinished (14)", f"{_INBOX}.fence", seed=10)
def keeps_half_a_step(real: Replacement, self: Any, sender: int) -> None:
    partial = dict(self._partial)
    real(self, sender)
    self._partial = partial


@mutant(
    "who starts anew is told of marks that are not kept",
    f"{_OUTPUT}._state",
    flows=Flows.PROMISED,
    seed=37943389,
)
def tells_beginners_of_no_marks(
    real: Replacement, self: Any, child: int, epoch: int
) -> list[CausalEffect]:
    told: list[CausalEffect] = real(self, child, epoch)
    return told if epoch >= 0 else []


# -- determinants and what was noted ---------------------------------------------------------------


@mutant("determinants before output (9)", f"{_OUTPUT}.flush", seed=9)
def unheld_output(real: Replacement, self: Any, child: int) -> list[CausalEffect]:
    self._durable = max(self._durable, self._standing.stamp)
    effects: list[CausalEffect] = real(self, child)
    return effects


@mutant("determinants (9)", f"{_OUTPUT}.log_step")
def no_determinants(real: Replacement, self: Any, step: Any) -> list[CausalEffect]:
    effects = [e for e in real(self, step) if not isinstance(e, StoreDeterminants)]
    self._durable = self._standing.stamp
    flushed: list[CausalEffect] = self.flush_all()
    return effects + flushed


@mutant("replays recall what was noted", f"{_MACHINE}._pump", seed=38)
def draws_again(real: Replacement, self: Any) -> list[CausalEffect]:
    return [effect for effect in real(self) if not isinstance(effect, Recall)]


# -- stamps ----------------------------------------------------------------------------------------


@mutant("dense times after all known ones (1)", f"{_OUTPUT}.start", seed=10)
def reuses_stamps(real: Replacement, self: Any, start: Start, *saved: Any) -> None:
    real(self, start, *saved)
    self._taken = {}
    self._top = start.stamp


@mutant(
    "what nobody knows comes after the epochs that all have completed who know the node",
    f"{_REPLAY}._unknown",
    flows=Flows.PLANNED,
    seed=507295838,
)
def takes_the_unknown_at_once(
    real: Replacement, self: Any, row: Any, target: Target, marked: Mapping[int, int]
) -> Any:
    return real(self, row, target, dict.fromkeys(self._rows, EPOCH_END))


def _all_of_one_epoch(
    real: Replacement,
    self: Any,
    sender: int,
    stamp: Any,
    epoch: int,
    item: Any,
    only_marks: bool = False,
    marked: int = -1,
) -> None:
    """Everything before a mark is part of the epoch that the mark ends."""
    real(self, sender, stamp, -1, item, False, marked)


def without_deadlines(real: Replacement, *args: Any) -> Any:
    """Plan without completions that have to keep their place."""
    found = real(*args)
    starts = {
        node: replace(start, targets=tuple(t for t in start.targets if not t.loose))
        for node, start in found.starts.items()
    }
    return replace(found, starts=starts)


@mutant(
    "marks overtake rows, and completions keep their place (2); one alone seems to do",
    f"{_MACHINE}._start",
    also={
        f"{_REPLAY}.arrived": _all_of_one_epoch,
        "penstock.core.causal.plan:plan": without_deadlines,
    },
    seed=1277,
)
def marks_anywhere(real: Replacement, self: Any, start: Start, saved: Checkpoint | None) -> None:
    real(self, start, saved)
    self._replay = Replay(start.targets, self.senders.ids)


# -- watermarks ------------------------------------------------------------------------------------


@mutant("senders restate their watermarks", f"{_MACHINE}._told", seed=2)
def states_nothing(real: Replacement, self: Any, item: Any) -> list[CausalEffect]:
    silent = tuple(message._replace(watermark_us=None) for message in item)
    effects: list[CausalEffect] = real(self, silent)
    return effects


@mutant("watermarks are restated when they are certain", f"{_OUTPUT}._state", seed=2)
def states_too_soon(real: Replacement, self: Any, child: int, epoch: int) -> list[CausalEffect]:
    standing = self._standing
    completed, standing.completed = standing.completed, max(standing.completed, epoch)
    effects: list[CausalEffect] = real(self, child, epoch)
    standing.completed = completed
    return effects


@mutant("a checkpoint has the watermark of its epoch", _CHECKPOINT, seed=8)
def watermark_ahead(real: Replacement, self: Any) -> Checkpoint:
    self.standing.watermark_us = self._gate.aligner.watermark_us
    found: Checkpoint = real(self)
    return found


@mutant("a node that keeps a watermark saves it", f"{_MACHINE}._start", seed=19)
def keeps_watermarks(real: Replacement, self: Any, start: Start, saved: Checkpoint | None) -> None:
    self._gate.aligner._keeps = True
    real(self, start, saved)


@mutant("an ended sender is not waited for while others are idle (28)", f"{_GATE}._aligned", seed=7)
def goes_on_with_the_ended(real: Replacement, self: Any, completions: list[Completion]) -> None:
    last = {sender.watermark_us for sender in self.aligner._senders.values()}
    if completions and WATERMARK_END in last <= {WATERMARK_END, WATERMARK_IDLE}:
        completions[-1] = replace(completions[-1], watermark_us=WATERMARK_END)
    real(self, completions)


# -- checkpoints and logs --------------------------------------------------------------------------


@mutant("logs in checkpoints (8)", _CHECKPOINT, seed=9)
def checkpoint_without_payloads(real: Replacement, self: Any) -> Checkpoint:
    found: Checkpoint = real(self)
    return found._replace(log={})


@mutant("logs in checkpoints (8)", _CHECKPOINT, seed=21)
def checkpoint_without_diffs(real: Replacement, self: Any) -> Checkpoint:
    found: Checkpoint = real(self)
    return found._replace(report=replace(found.report, diffs=()))


@mutant("the newest mark behind a truncation is kept", f"{_OUTPUT}.truncate", seed=39)
def forgets_marks(real: Replacement, self: Any, positions: Mapping[int, Position]) -> None:
    real(self, positions)
    for child in self.children:
        self.log._outgoing[child].stated.clear()


@mutant(
    "nodes that may go back save nothing of later epochs (10)",
    _CHECKPOINT,
    flows=Flows.MIXED_ROUGH,
    seed=33,
)
def keeps_later_epochs(real: Replacement, self: Any) -> Checkpoint:
    clean, self.clean = self.clean, self.clean and bool(self.inside)
    found: Checkpoint = real(self)
    self.clean = clean
    return found


@mutant("a loop's checkpoints have nothing of later epochs (20)", _CHECKPOINT, seed=125)
def loop_keeps_clock(real: Replacement, self: Any) -> Checkpoint:
    self.clean = self.clean and not self.inside
    found: Checkpoint = real(self)
    return found


@mutant("a stamp in the log is never given away again (1)", _CHECKPOINT, seed=198)
def loop_forgets_stamp(real: Replacement, self: Any) -> Checkpoint:
    found: Checkpoint = real(self)
    return found._replace(report=replace(found.report, stamp=ZERO)) if self.inside else found


@mutant("an epoch that some node has rows of is the next to be cut", f"{_SOURCE}.begin", seed=176)
def forgets_begun_epochs(real: Replacement, self: Any) -> list[CausalEffect]:
    self._begun = -1
    effects: list[CausalEffect] = real(self)
    return effects


# -- without a log, eager, holds -------------------------------------------------------------------


@mutant(
    "without a log, what was not sent is kept", f"{_OUTPUT}._forget_sent", flows=Flows.MIXED, seed=8
)
def forgets_the_unsent(real: Replacement, self: Any, child: int) -> None:
    if not self._logged:
        while self.log.take(child) is not None:
            self.log.taken(child)
    real(self, child)


@mutant("without a log, the floor rises", f"{_OUTPUT}._forget_sent", flows=Flows.MIXED, seed=4)
def floor_stays(real: Replacement, self: Any, child: int) -> None:
    floor = self.log.floors()[child]
    real(self, child)
    self.log.set_floor(child, floor)


@mutant(
    "marks are kept until the child knows the watermark where it stands",
    f"{_OUTPUT}._forget_sent",
    flows=Flows.MIXED,
    seed=287,
)
def forgets_untold_marks(real: Replacement, self: Any, child: int) -> None:
    unstated, self._unstated = self._unstated, set()
    real(self, child)
    self._unstated = unstated


@mutant(
    "what an eager node makes leaves after its checkpoint",
    f"{_OUTPUT}.flush",
    flows=Flows.MIXED,
    seed=8,
)
def eager_at_once(real: Replacement, self: Any, child: int) -> list[CausalEffect]:
    self._released = None
    effects: list[CausalEffect] = real(self, child)
    return effects


@mutant(
    "only a durable cut ends the epochs before it (28)",
    f"{_INBOX}.ended_by",
    flows=Flows.MIXED,
    seed=93,
)
def ends_epochs_by_rows(real: Replacement, self: Any, marked: Mapping[int, int]) -> frozenset[int]:
    self._held_marks.update(self._held)
    found: frozenset[int] = real(self, marked)
    return found


# -- fences, reports and replays -------------------------------------------------------------------


@mutant("edges to fenced nodes close (15)", f"{_OUTPUT}.close", seed=2)
def fence_leaves_edges_open(real: Replacement, self: Any, child: int, incarnation: int) -> None:
    is_open = dict(self._open)
    real(self, child, incarnation)
    self._open = is_open


@mutant("survivors report what they have received (3)", f"{_MACHINE}.report", seed=1)
def reports_no_diffs(real: Replacement, self: Any) -> Any:
    return replace(real(self), diffs=())


@mutant(
    "a new incarnation of a child is sent everything from its position (16)",
    f"{_LOG}.rewind",
    seed=2,
)
def rewinds_nothing(real: Replacement, *_: Any) -> None:
    return


# -- epochs and watermarks -------------------------------------------------------------------------


@mutant("the watermark is the least of the senders'", f"{_MARKS}:least_watermark", seed=1)
def greatest_watermark(real: Replacement, watermarks_us: Any) -> int | None:
    return max((one for one in watermarks_us if one is not None), default=None)


@mutant("an epoch is complete when all senders have marked it", f"{_MARKS}:MarkAligner._reached")
def completes_at_the_first_mark(real: Replacement, self: Any) -> list[Completion]:
    last = max(sender.closed for sender in self._senders.values())
    for sender in self._senders.values():
        sender.closed = last
    found: list[Completion] = real(self)
    return found


@mutant("a cut is durable before its mark leaves", f"{_SOURCE}.cut")
def marks_before_the_cut(
    real: Replacement, self: Any, epoch: int, watermark_us: int | None, offset: int
) -> list[CausalEffect]:
    stored: list[CausalEffect] = real(self, epoch, watermark_us, offset)
    marked: list[CausalEffect] = self.cut_stored(epoch)
    return [*stored, *marked]


@mutant("known ranges are read again as they were", _SCRIPT, seed=45)
def reads_other_ranges(real: Replacement, start: Start) -> Any:
    return real(replace(start, targets=()))


@mutant(
    "durable cuts are made again where they were",
    _SCRIPT,
    seed=1,
)
def forgets_cuts(real: Replacement, start: Start) -> Any:
    return real(replace(start, cuts=()))


# -- global checkpoints and loops ------------------------------------------------------------------


@mutant("rows after a hold wait", f"{_INBOX}._holds", flows=Flows.MIXED, seed=17)
def holds_nothing(real: Replacement, *_: Any) -> bool:
    return False


@mutant("a loop's watermark never goes back", f"{_LOOP_GATE}.region_completed", seed=8)
def loop_watermark_goes_back(
    real: Replacement, self: Any, done: Completion, cut_us: int, last_us: int | None
) -> None:
    self.complete = type(self.complete)(replace(one, watermark_us=None) for one in self.complete)
    real(self, done, cut_us, None)


@mutant("rows leave a loop when their epoch is complete", f"{_LOOP_GATE}._aligned", seed=4)
def loop_completes_at_its_gate(real: Replacement, self: Any, completions: list[Completion]) -> None:
    real(self, completions)
    self.complete.extend(completions)


NODES: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
