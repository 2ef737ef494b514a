"""Epochs and watermarks carried in band: when is an epoch complete at a node?

Every sender marks the end of its epochs on every edge, in order with its data: ``(epoch,
watermark)`` says "nothing at or before ``epoch`` will follow; event time has reached
``watermark``".  An epoch is complete at a node when all senders of all its inputs have marked it.

Determinism ----------- A sender's watermark after epoch ``e`` is that of its last mark at or before
``e``; the node's is the least over its senders.  Completions are reported for every epoch that any
sender marked, in ascending order.  Both are functions of the marks themselves, never of the order
of their arrival.

A sender that is idle does not count, so the least can go back when it wakes.  An aligner that
*keeps* its watermark holds the greatest that it ever gave; one that does not is a function of the
senders' watermarks at one epoch, and can be restored from these alone (``restate``).

A sender that has ended holds nothing back either, but it is not one to go on with: where all others
are idle, the watermark stays where it is.  Else everything that an idle one brings would be late.

This is exact for graphs without cycles and needs no coordinator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.errors import PeerError

__all__ = [
    "EPOCH_END",
    "WATERMARK_END",
    "WATERMARK_IDLE",
    "WATERMARK_UNREAD",
    "Completion",
    "MarkAligner",
    "least_watermark",
]

EPOCH_END = 1 << 62
"""The epoch that marks the end of a stream: nothing follows."""
WATERMARK_IDLE = -(1 << 62)
"""The watermark (µs) of a sender that has seen no rows for a while: others do not wait for it."""
WATERMARK_END = (1 << 63) - 1
"""The watermark (µs) after the last row of a stream that has been used up."""
WATERMARK_UNREAD = 1 - (1 << 62)
"""A source ended an epoch without rows and knows of unread ones: said instead of no watermark.

It is recorded with the cut and stays in the source's node: no mark carries it."""

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True)
class Completion:
    """An epoch is complete; ``watermark_us`` is the event-time watermark after it."""

    epoch: int
    watermark_us: int | None


def least_watermark(watermarks_us: Iterable[int | None]) -> int | None:
    """The least watermark of the senders that are not idle, None while one has none.

    >>> least_watermark([20, WATERMARK_IDLE, WATERMARK_END]), least_watermark([20, None])
    (20, None)
    >>> least_watermark([WATERMARK_IDLE, WATERMARK_END]) == WATERMARK_IDLE
    True
    """
    known = list(watermarks_us)
    busy = [one for one in known if one != WATERMARK_IDLE]
    if None in busy:
        return None
    least = min((one for one in busy if one is not None), default=WATERMARK_IDLE)
    return WATERMARK_IDLE if least == WATERMARK_END and len(busy) < len(known) else least


@dataclass
class _Sender:
    marks: deque[tuple[int, int | None]] = field(default_factory=deque)
    """Marks above the node's completed epoch, ascending."""
    closed: int = -1
    watermark_us: int | None = None
    """Watermark at the node's completed epoch."""


class MarkAligner(Generic[S]):
    """Aligns the marks of all senders of a node.

    >>> aligner = MarkAligner(["a", "b"])
    >>> aligner.mark("a", 0, 10)
    []
    >>> aligner.mark("a", 1, 20)
    []
    >>> aligner.mark("b", 1, 15)
    [Completion(epoch=0, watermark_us=None), Completion(epoch=1, watermark_us=15)]
    """

    def __init__(
        self,
        senders: Iterable[S],
        completed: int = -1,
        keeps: bool = True,
        watermark_us: int | None = None,
    ) -> None:
        self._senders: dict[S, _Sender] = {sender: _Sender(closed=completed) for sender in senders}
        self.completed = completed
        self._keeps = keeps
        self.watermark_us = watermark_us
        """After the last completed epoch."""

    def mark(self, sender: S, epoch: int, watermark_us: int | None) -> list[Completion]:
        """Take a mark; give the epochs that are complete now, oldest first."""
        state = self._senders.get(sender)
        if state is None:
            raise PeerError(f"a mark from {sender!r}, which does not send here")
        if epoch <= state.closed:
            raise PeerError(
                f"{sender!r} marked epoch {epoch} after {state.closed}: marks must ascend"
            )
        state.closed = epoch
        state.marks.append((epoch, watermark_us))
        return self._reached()

    def through(self, sender: S, epoch: int) -> list[Completion]:
        """A sender has nothing left up to an epoch, though it does not mark it.

        When none has, that epoch is complete, too: others have to learn of it.

        >>> aligner = MarkAligner(["a", "b"])
        >>> aligner.mark("a", 1, 20), aligner.through("b", 3)
        ([], [Completion(epoch=1, watermark_us=None)])
        >>> aligner.through("a", 3)
        [Completion(epoch=3, watermark_us=None)]
        """
        state = self._senders[sender]
        state.closed = max(state.closed, epoch)
        before = self.completed
        found = self._reached()
        if before < self.completed == epoch and not (found and found[-1].epoch == epoch):
            found.append(Completion(epoch, self._watermark_at(epoch)))
        return found

    def _reached(self) -> list[Completion]:
        reached = min(s.closed for s in self._senders.values())
        if reached <= self.completed:
            return []
        epochs = sorted({e for s in self._senders.values() for e, _ in s.marks if e <= reached})
        completions = [Completion(e, self._watermark_at(e)) for e in epochs]
        self.completed = reached
        return completions

    def restate(self, watermarks_us: Mapping[S, int | None]) -> int | None:
        """Take every sender's watermark at the completed epoch; give the node's.

        >>> aligner = MarkAligner(["a", "b"], completed=4)
        >>> aligner.restate({"a": 10, "b": 15})
        10
        >>> aligner.mark("a", 9, 20), aligner.mark("b", 5, 30)
        ([], [Completion(epoch=5, watermark_us=10)])
        """
        for sender, watermark_us in watermarks_us.items():
            self._senders[sender].watermark_us = watermark_us
        return self._watermark_at(self.completed)

    def _watermark_at(self, epoch: int) -> int | None:
        """The least watermark of the senders that are not idle."""
        for state in self._senders.values():
            while state.marks and state.marks[0][0] <= epoch:
                state.watermark_us = state.marks.popleft()[1]
        least = least_watermark(state.watermark_us for state in self._senders.values())
        if not self._keeps:
            self.watermark_us = least
        elif least is not None and least != WATERMARK_IDLE:
            known = self.watermark_us
            self.watermark_us = least if known is None else max(known, least)
        return self.watermark_us
