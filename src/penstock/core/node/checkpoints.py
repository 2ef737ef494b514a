"""When a node takes a checkpoint, and what is in it.

A checkpoint is taken between two steps: when it is asked for, at the multiples of a number of
epochs, when everything up to the epoch of a hold was handled, or before the node ends.

A run that starts later goes on after the last epochs, not after the ends of their streams.  So a
checkpoint says nothing of such an end, whichever senders have come to theirs already; marks beyond
the completed epoch are asked for again in any case.  Only a node that has completed the end itself,
or whose state may have rows of it, has no checkpoint that a later run can use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.core.causal.clocks import Position
from penstock.core.causal.logs import Bundle
from penstock.core.causal.reports import NodeReport
from penstock.core.causal.times import ZERO
from penstock.core.node.causal_effects import Checkpoint, Flushed
from penstock.core.node.options import NodeOptions
from penstock.core.progress.marks import EPOCH_END

__all__ = ["Checkpoints", "in_the_midst", "whole_epochs"]


class Checkpoints:
    """A node's schedule of checkpoints."""

    def __init__(self, options: NodeOptions, completed: int) -> None:
        self._stateful = options.stateful
        # A node in a loop saves at the ends of blocks: later, rows of the end are inside.  Of one
        # that is not clean, what it knows of the end cannot be told from the rest.
        cleanly = options.stateful and options.clean and not options.inside
        self._saves_end = options.resumable and cleanly
        self.due = False
        """Set it, and a checkpoint is taken between the present step and the next."""
        self.every = options.checkpoint_every
        """A checkpoint is taken where each multiple of this many epochs ends."""
        self.flushed: Flushed | None = None
        """The last one that was said."""
        self._taken_at = completed

    def taken(self, completed: int) -> None:
        """A checkpoint of the node as it is now is taken."""
        self.due = False
        self._taken_at = completed

    def ended(self, epoch: int) -> None:
        """The node has completed an epoch."""
        if self.every is not None and (epoch + 1) % self.every == 0:
            self.due = True

    def is_last_chance(self, epoch: int, completed: int) -> bool:
        """Whether the node ends, or goes on to an epoch past a multiple that no epoch ends at."""
        every = self.every
        passes = every is not None and epoch // every > (completed + 1) // every
        ends = self._saves_end and epoch >= EPOCH_END
        if passes or ends:  # before the end in any case: one that was taken may have been put off
            self.due = self.due or ends or self._taken_at < completed
        return passes or ends

    def is_flushed(self, epoch: int, completed: int) -> bool:
        """Whether everything up to the epoch of a hold was handled, and that was not said yet."""
        said = self.flushed is not None and self.flushed.epoch >= epoch
        return completed >= epoch and not said

    def flush(self, flushed: Flushed, completed: int) -> None:
        """Say that everything was handled; a checkpoint comes first if there is none of it."""
        self.flushed = flushed
        saves = self._stateful or self.every is not None
        if saves and self._taken_at < completed:
            self.due = True


def whole_epochs(
    report: NodeReport, log: Mapping[int, tuple[Bundle, ...]], senders: Iterable[int]
) -> Checkpoint:
    """A checkpoint with nothing of epochs after the completed one: all of it comes again."""
    epoch = report.completed
    clock = {sender: Position(ZERO, epoch) for sender in senders}
    diffs = tuple(diff for diff in report.diffs if diff[0].epoch <= epoch)
    rows = epoch if report.rows >= EPOCH_END else report.rows
    return Checkpoint(_without_end(replace(report, clock=clock, diffs=diffs, rows=rows)), log)


def in_the_midst(report: NodeReport, log: Mapping[int, tuple[Bundle, ...]]) -> Checkpoint:
    """A checkpoint of everything that was handled.

    Marks beyond the completed epoch are asked for again, so the gate is not kept.
    """
    epoch = report.completed
    clock = {sender: Position(known.stamp, epoch) for sender, known in report.clock.items()}
    return Checkpoint(replace(report, clock=clock), log)


def _without_end(report: NodeReport) -> NodeReport:
    """What a checkpoint knows, without the ends of senders' streams."""
    if report.newest < EPOCH_END or max(report.completed, report.rows) >= EPOCH_END:
        return report
    diffs = tuple(d for d in report.diffs if all(link.epoch < EPOCH_END for link in d))
    known = (link.epoch for diff in diffs for link in diff)
    return replace(report, diffs=diffs, newest=max([report.completed, report.rows, *known]))
