"""Regimes as data: what a stage keeps, and so what its nodes can offer after a failure.

Decides which spans a node of a regime can be restored to and which output is gone then; never how
anything is stored. Follows Falkirk Wheel, sections 1, 2 and 4.2, and adds the causal regime.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from penstock.core.rollback.metadata import NodeMetadata, Offer
from penstock.core.rollback.spans import EMPTY, Span
from penstock.errors import SettingsError

__all__ = [
    "BATCH",
    "CAUSAL",
    "EAGER",
    "EPHEMERAL",
    "EPHEMERAL_LOGGED",
    "REPLICATED",
    "SOURCE",
    "Restores",
    "RollbackRegime",
    "lazy",
]


class Restores(Enum):
    """What a failed node can be restored to."""

    BEGINNING = "only the beginning"
    CHECKPOINTS = "the spans of its checkpoints"
    COMPLETED = "any completed time"


@dataclass(frozen=True, slots=True)
class RollbackRegime:
    """How a stage survives failure.

    ``keeps_output``: what it sent can be had again, from a log or by making it again.
    ``replays``: restarted, it repeats what its children saw, so it does not force them back.
    ``every``: epochs from one checkpoint to the next.

    >>> lazy(5).stateful().restores, EPHEMERAL.stateful().restores, EAGER.stateful().restores
    (<Restores.CHECKPOINTS: 'the spans of its checkpoints'>, <Restores.BEGINNING: 'only the \
beginning'>, <Restores.COMPLETED: 'any completed time'>)
    """

    name: str
    keeps_output: bool
    with_state: Restores
    """What a stage with state between times can be restored to; without, any completed time."""
    replays: bool = False
    every: int = 1
    restores: Restores = Restores.COMPLETED

    def stateful(self) -> RollbackRegime:
        """Return the regime of a stage that has state between times."""
        return RollbackRegime(
            self.name,
            self.keeps_output,
            self.with_state,
            self.replays,
            self.every,
            self.with_state,
        )

    def kept(
        self, completed: int, checkpoints: Iterable[int] = (), *, since: int = -1, depth: int = 0
    ) -> NodeMetadata:
        """Return what a node offers that has durably completed an epoch.

        ``checkpoints`` are the epochs of its checkpoints, ``since`` the low-watermark: nothing
        before it is offered any more.

        >>> [offer.span for offer in lazy(3).stateful().kept(7, [2, 5]).offers]
        [EMPTY, Span(Time(2)), Span(Time(5))]
        """
        if self.restores is Restores.COMPLETED:
            epochs: Iterable[int] = range(since, completed + 1)
        elif self.restores is Restores.CHECKPOINTS:
            epochs = sorted({since, *(epoch for epoch in checkpoints if epoch > since)})
        else:
            epochs = (since,)
        return NodeMetadata(tuple(self.offer(epoch, depth=depth) for epoch in epochs))

    def offer(self, epoch: int, *, depth: int = 0) -> Offer:
        """Return the offer to go back to the end of an epoch."""
        span = Span.epoch(epoch, depth)
        return Offer(span, discarded=EMPTY if self.keeps_output else span)


EPHEMERAL = RollbackRegime("ephemeral", keeps_output=False, with_state=Restores.BEGINNING)
"""Keeps nothing; its senders send again."""
EPHEMERAL_LOGGED = RollbackRegime("ephemeral, inputs logged", True, Restores.COMPLETED)
"""Keeps all it was delivered, and makes the rest again."""
BATCH = RollbackRegime("batch", keeps_output=True, with_state=Restores.BEGINNING)
"""Keeps its outputs, per completed time."""
EAGER = RollbackRegime("eager", keeps_output=True, with_state=Restores.COMPLETED)
"""Keeps state and outputs at every time, before anything is released."""
CAUSAL = RollbackRegime("causal", keeps_output=False, with_state=Restores.CHECKPOINTS, replays=True)
"""Logs in memory at its senders, diffs at its receivers; checkpoints with their logs."""
REPLICATED = RollbackRegime(
    "replicated", keeps_output=True, with_state=Restores.BEGINNING, replays=True
)
"""Keeps what it sent until other stages have it; what is made again has the same ids, so that
receivers drop it.  Without state, as it has to be, it can go on after any epoch that sinks have."""
SOURCE = RollbackRegime("source", keeps_output=True, with_state=Restores.COMPLETED, replays=True)
"""Can be read again, along the same durable boundaries."""


def lazy(every: int) -> RollbackRegime:
    """Return the regime of a checkpoint every ``every`` completed epochs, and nothing else."""
    if every < 1:
        raise SettingsError(f"lazy checkpoints every {every} epochs: give a number from 1 up")
    return RollbackRegime("lazy", keeps_output=False, with_state=Restores.CHECKPOINTS, every=every)
