"""The blocks of epochs of a node in a loop: what waits, when an epoch or a block is over.

Theory of operation
-------------------
All nodes of a loop start from one epoch together, so they need checkpoints of the same epochs, and
a checkpoint must hold nothing of later ones.  Vertices in a loop may hold rows of several epochs at
once.  Epochs are therefore taken in blocks, at multiples of a number that all nodes of the loop
share, with a checkpoint between two blocks:

    let_in(rows)                      ->  False: they wait, because their block has not begun
    closed(epochs)                        these are closed at all gates of the loop
    next(least open epoch, …)         ->  CompleteEpoch                     an epoch is over
                                          SaveBlock, Admit …                a block is over

An epoch is over at a node when the frontier has passed it, a block when the frontier has passed its
last epoch.  The epochs of a block are completed before the block ends, however far the frontier is
ahead, so that all nodes save the same epochs.  The next block is that of the least epoch that is
closed and not complete, or open.

*Rows from inside wait, too.*  The end of a block reaches one host before another.  A node that
knows of it admits rows of the next block and sends them round, to nodes that have not saved the
present one yet.  Rows that wait are counted as if a notification had been asked for, so their epoch
is not taken for complete.

*A node that replays* may complete epochs of later blocks before it is done, so its blocks do not
wait for the end of the replay.  A checkpoint that cannot be taken at the end of a block is owed: it
is taken as soon as it can be and everything that was let in is complete.  Until then it would hold
rows of a later epoch.  A replay takes rows of epochs after all that it repeats: where a sender
skipped an epoch, its next mark lies behind them.  These wait until what is owed is saved.  Else,
where all nodes hold their input for each other's checkpoints, this one would wait for the end of an
epoch that the hold keeps from ending.  Where the last epoch that is repeated is one that senders
skip here, the epoch after it completes both: it is repeated, too, once the frontier has come to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.node.messages import Deliver
from penstock.core.node.tracking import NodeCounts
from penstock.core.progress.marks import EPOCH_END

__all__ = ["Admit", "BlockEffect", "Blocks", "CompleteEpoch", "RegionEpoch", "SaveBlock"]

RegionEpoch = tuple[int, int | None, int]
"""An epoch that is closed at all gates of a loop; its watermark, and when it was cut."""


class CompleteEpoch(NamedTuple):
    """Tell the node that nothing of an epoch is under way in its loop (``region_completed``)."""

    epoch: int
    watermark_us: int | None
    cut_us: int


class SaveBlock(NamedTuple):
    """Take a checkpoint now: nothing of a later epoch is inside."""


class Admit(NamedTuple):
    """Give the vertices rows that waited for their block."""

    rows: Deliver


BlockEffect = CompleteEpoch | SaveBlock | Admit


class Blocks:
    """The present block of a node, and what waits for the next one.

    Laws
      * rows reach the vertices only while their block is the present one or over;
      * ``SaveBlock`` comes when the node has completed all epochs of the block, and before any
        rows of the next block;
      * what waits is counted from ``let_in`` until ``Admit``.

    >>> from penstock.core.node.tracking import NodeTracking
    >>> from penstock.core.time import Time
    >>> blocks = Blocks(2, -1, NodeCounts(NodeTracking(0, {}, None, depth=1), 0))
    >>> blocks.end, blocks.let_in(Deliver(3, "rows", Time(2, (0,))))
    (1, False)
    >>> blocks.closed([(1, None, 0)])
    >>> blocks.next(2, completed=-1, may_save=True)
    [CompleteEpoch(epoch=1, watermark_us=None, cut_us=0)]
    >>> [type(effect).__name__ for effect in blocks.next(2, completed=1, may_save=True)]
    ['SaveBlock', 'Admit']
    >>> blocks.end, blocks.next(2, completed=1, may_save=True)
    (3, [])
    """

    def __init__(
        self, epochs: int, completed: int, counts: NodeCounts | None, repeats: int = -1
    ) -> None:
        self._epochs = epochs
        self._counts = counts
        self.end = self._end_of(completed + 1)
        """The last epoch of the present block."""
        self._closed: deque[RegionEpoch] = deque()
        self._waiting: list[Deliver] = []
        self._given = completed
        """The last epoch that the node was told to complete."""
        self._saved = completed
        """The last epoch of the newest checkpoint that was asked for."""
        self._owed = False
        """Whether a block has ended that is not saved."""
        self._newest = completed
        """The last epoch of which rows were let in."""
        self._repeats = repeats if repeats > self.end else EPOCH_END
        """The last epoch that is repeated, until it is complete and what was owed then is saved."""

    def _end_of(self, epoch: int) -> int:
        return (epoch // self._epochs + 1) * self._epochs - 1

    def let_in(self, rows: Deliver) -> bool:
        """Whether rows reach the vertices now; else they wait for their block."""
        epoch = rows.time.epoch
        if self._counts is None or epoch <= min(self.end, self._repeats):
            self._newest = max(self._newest, epoch)
            return True
        self._waiting.append(rows)
        self._counts.asked(rows.time)
        return False

    def closed(self, epochs: Iterable[RegionEpoch]) -> None:
        """These epochs are closed at all gates of the loop."""
        self._closed.extend(epochs)

    def is_due(self, least_open: int) -> bool:
        """Whether an epoch or the block is over; ``least_open`` is what the frontier says."""
        if self._closed and self._closed[0][0] <= self.end:
            return self._closed[0][0] < least_open
        return self.end < min(least_open, EPOCH_END)

    def next(self, least_open: int, completed: int, may_save: bool) -> list[BlockEffect]:
        """The next thing that is over; call it again when the effects were performed.

        ``completed`` is the last epoch that the node has completed, ``may_save`` says whether it
        can take a checkpoint now.
        """
        while self.is_due(least_open):
            if self._closed and self._closed[0][0] <= self.end:
                done = CompleteEpoch(*self._closed.popleft())
                self._given = done.epoch
                return [done]
            effects = self._end_block(least_open, completed, may_save)
            if effects:
                return effects
        effects = self._saved_now(completed) if may_save else []
        if self._goes_on(least_open, completed):
            repeated = completed >= self._repeats
            self._repeats = EPOCH_END if repeated else min(least_open, EPOCH_END)
            effects += self._admitted()
        return effects

    def is_owed(self, least_open: int, completed: int, may_save: bool) -> bool:
        """Whether a replay left something to do: a block to save, or rows that may go on."""
        return (may_save and self._owes(completed)) or self._goes_on(least_open, completed)

    def _owes(self, completed: int) -> bool:
        """Whether a block that has ended can be saved now: all that was let in is complete."""
        return self._owed and completed >= max(self._given, self._newest)

    def _goes_on(self, least_open: int, completed: int) -> bool:
        """Whether all is repeated and saved, or the last epoch to repeat was skipped."""
        if self._repeats == EPOCH_END:
            return False
        if completed >= self._repeats:
            return not self._owed
        pending = bool(self._closed) and self._closed[0][0] <= self._repeats
        return least_open > self._repeats and not pending and completed >= self._given

    def _saved_now(self, completed: int) -> list[BlockEffect]:
        if not self._owes(completed):
            return []
        self._owed, self._saved = False, completed
        return [SaveBlock()]

    def _end_block(self, least_open: int, completed: int, may_save: bool) -> list[BlockEffect]:
        self._owed = max(self._given, completed) > self._saved
        effects = self._saved_now(completed) if may_save else []
        first = min(least_open, EPOCH_END, *(epoch for epoch, _, _ in self._closed))
        self.end = self._end_of(first)
        return [*effects, *self._admitted()]

    def _admitted(self) -> list[Admit]:
        """Rows whose block has come; their counts are given up in the step that handles them."""
        waiting, self._waiting = self._waiting, []
        admitted = []
        for rows in waiting:
            if rows.time.epoch > min(self.end, self._repeats):
                self._waiting.append(rows)
                continue
            admitted.append(Admit(rows))
            self._newest = max(self._newest, rows.time.epoch)
            if self._counts is not None:
                self._counts.notified(rows.time)
        return admitted

    def may_tell_flushed(self, epoch: int, saved: int, ended: bool) -> bool:
        """Whether a hold is flushed: its checkpoint is durable, or none follows.

        None follows at a node that has ``ended``, unless a replay left one to take.
        """
        return saved >= epoch or (ended and not self._owed and saved >= self._saved)

    def answered_by(self, epoch: int, completed: int, now: bool) -> int:
        """The epoch from which on the end of a block answers a request for a checkpoint.

        Nothing is saved within a block, so ``now`` means at its end, whatever is complete then.
        """
        return min(epoch, completed) if now else epoch
