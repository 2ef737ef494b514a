"""What a Kafka sink does that publishes each epoch by one transaction.

Theory of operation
-------------------
A sink has one transactional id and one *mark*: an offset of its consumer group, committed in the
same transaction as the rows.  The mark says which epoch was committed last, by which run of the
flow and by which incarnation of the sink's node.

The broker lets only the producer that registered last with a transactional id commit (it *fences*
the others).  So a producer registers first and reads the mark then: nobody else can move it any
more.  Then it *claims* the mark: a transaction without rows that puts its own run and incarnation
there.  :func:`standing` says whether it may: a process of an earlier run, or an earlier
incarnation, that was frozen and wakes up finds the mark of its successor and stops.  It looks
before it registers, too, so that it does not disturb its successor.

Epochs are committed in order, each at most once: one that is not after the mark was committed
before, by this producer or an earlier one.  That also answers what became of a commit that was
asked for and never answered: a new producer registers, which ends the old transaction one way or
the other, and reads the mark.

Rows are given to the broker as they come, in a transaction of the least open epoch.  Rows of
later epochs wait; if a transaction turns out to be of a later epoch than the one that is complete
first, it is aborted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.errors import require

__all__ = [
    "Abort",
    "Begin",
    "CommitEpoch",
    "EpochTransactions",
    "Mark",
    "Produce",
    "Claim",
    "WriterEffect",
    "standing",
]


@dataclass(frozen=True)
class Mark:
    """How far a sink has got, and who may write."""

    epoch: int
    """The last epoch committed; -1: none."""
    run: str
    incarnation: int


class Claim(Enum):
    """Whether a producer may write."""

    MAY_CLAIM = "may claim"
    OTHER_RUN = "another run has the sink"
    REPLACED = "a later incarnation has the sink"


def standing(mark: Mark | None, run: str, incarnation: int) -> Claim:
    """Whether an incarnation of a run's sink may claim the mark that it has read.

    >>> standing(Mark(7, "b", 3), "b", 4).value, standing(Mark(7, "b", 3), "b", 2).value
    ('may claim', 'a later incarnation has the sink')
    >>> standing(Mark(7, "b", 3), "a", 9).value
    'another run has the sink'
    """
    if mark is None:
        return Claim.MAY_CLAIM
    if mark.run != run:
        return Claim.OTHER_RUN
    return Claim.REPLACED if mark.incarnation > incarnation else Claim.MAY_CLAIM


@dataclass(frozen=True)
class Begin:
    """Begin a transaction."""


@dataclass(frozen=True)
class Produce:
    """Give the broker batches of an epoch: from the first on, before the end."""

    epoch: int
    first: int
    end: int


@dataclass(frozen=True)
class Abort:
    """Give the transaction up."""


@dataclass(frozen=True)
class CommitEpoch:
    """Commit the transaction with the mark at this epoch."""

    epoch: int


WriterEffect = Begin | Produce | Abort | CommitEpoch


class EpochTransactions:
    """Which transaction is open, and what is in it.

    >>> machine = EpochTransactions(committed=4)
    >>> machine.received({5: 1}); machine.received({5: 1, 6: 1}); machine.completed(5, batches=2)
    [Begin(), Produce(epoch=5, first=0, end=1)]
    []
    [Produce(epoch=5, first=1, end=2), CommitEpoch(epoch=5)]
    >>> machine.was_committed(5); machine.completed(5, batches=2)
    []
    """

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self.epoch: int | None = None
        """The epoch whose transaction is open."""
        self._given = 0
        """How many of its batches the broker has."""

    def received(self, waiting: dict[int, int]) -> list[WriterEffect]:
        """Batches have come; ``waiting`` has the number of batches of each open epoch."""
        fresh = [epoch for epoch in waiting if epoch > self.committed]
        if not fresh:
            return []
        epoch = min(fresh) if self.epoch is None else self.epoch
        return self._give(epoch, waiting.get(epoch, 0))

    def completed(self, epoch: int, batches: int) -> list[WriterEffect]:
        """An epoch is complete with this number of batches: publish it, unless it is."""
        if epoch <= self.committed:
            return []
        effects: list[WriterEffect] = []
        if self.epoch is not None and self.epoch != epoch:
            require(self.epoch > epoch, f"epoch {epoch} is complete before {self.epoch}")
            effects.append(Abort())
            self.epoch = None
        return [*effects, *self._give(epoch, batches), CommitEpoch(epoch)]

    def was_committed(self, epoch: int) -> None:
        """The transaction of an epoch was committed."""
        self.committed, self.epoch = epoch, None

    def _give(self, epoch: int, batches: int) -> list[WriterEffect]:
        effects: list[WriterEffect] = []
        if self.epoch is None:
            self.epoch, self._given = epoch, 0
            effects.append(Begin())
        if batches > self._given:
            effects.append(Produce(epoch, self._given, batches))
            self._given = batches
        return effects
