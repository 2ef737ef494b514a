"""What a rollback would rewind, per stage, before anybody does it.

Decides nothing new: asks the solver, and puts its answer in words. For a failure, the failed nodes
lose the offer to go on; for a rollback that a person asks for, every node loses what lies beyond
the epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from penstock.core.rollback.metadata import Kept, RollbackGraph
from penstock.core.rollback.solver import Cause, Rollback, solve
from penstock.core.rollback.spans import EMPTY, TOP, Span
from penstock.core.time import Time
from penstock.errors import UsageError

__all__ = ["Preview", "Rewind", "preview"]


@dataclass(frozen=True, slots=True)
class Rewind:
    """What happens to a stage: how many nodes go back, from where at most, to where at least."""

    stage: str
    nodes: int
    rewound: int
    from_span: Span
    to_span: Span
    because: str

    @property
    def goes_on(self) -> bool:
        """Whether no node of the stage goes back."""
        return not self.rewound


@dataclass(frozen=True, slots=True)
class Preview:
    """The rollback, and its rows: one per stage, in the order in which stages first appear."""

    rollback: Rollback
    rows: tuple[Rewind, ...]


def preview(
    graph: RollbackGraph,
    kept: Sequence[Kept],
    stages: Sequence[str],
    *,
    failed: Collection[int] = (),
    to: int | None = None,
) -> Preview:
    """Return what would rewind if these nodes failed, or if all went back to the end of an epoch.

    ``kept`` has the live nodes' offers to go on; ``stages`` names each node's stage. Where a node
    has nothing as old as ``to``, :class:`UsageError` says so.

    >>> from penstock.core.rollback.metadata import Edge
    >>> graph = RollbackGraph(2, [Edge(0, 1, logged=True)])
    >>> kept = [Kept.spans(EMPTY, Span.epoch(3), Span.epoch(6)).alive(Span.epoch(8)) for _ in "ab"]
    >>> for row in preview(graph, kept, ["parse", "count"], failed=[1]).rows:
    ...     print(row.stage, row.rewound, row.to_span, row.because)
    parse 0 TOP goes on
    count 1 Span(Time(6)) failed
    >>> [str(row.to_span) for row in preview(graph, kept, ["parse", "count"], to=5).rows]
    ['Span(Time(3))', 'Span(Time(3))']
    """
    known = list(kept)
    for node in failed:
        left = tuple(offer for offer in known[node].offers if offer.span is not TOP)
        known[node] = replace(known[node], offers=left)
    if to is not None:
        for node, have in enumerate(known):
            if _by_epoch(have):
                known[node] = _within(have, to, stages[node])
    found = solve(graph, known)
    return Preview(found, _rows(kept, stages, found, to is not None))


def _rows(
    kept: Sequence[Kept], stages: Sequence[str], found: Rollback, asked: bool
) -> tuple[Rewind, ...]:
    members: dict[str, list[int]] = {}
    for node, stage in enumerate(stages):
        members.setdefault(stage, []).append(node)
    rows = []
    for stage, nodes in members.items():
        back = [node for node in nodes if found.spans[node] is not TOP]
        reached, lowest, why = EMPTY, TOP, "goes on"
        for node in back:
            reached = reached | kept[node].offers[-1].events
            lowest = lowest & found.spans[node]
            why = _why(stages, found.causes[node], "asked for" if asked else "failed")
        rows.append(Rewind(stage, len(nodes), len(back), reached, lowest, why))
    return tuple(rows)


def _why(stages: Sequence[str], cause: Cause | None, of_itself: str) -> str:
    if cause is None:
        return of_itself
    return f"{cause.reason.value}: {stages[cause.node]} goes back"


def _by_epoch(kept: Kept) -> bool:
    """Whether a node's times have epochs; where they are numbers, its senders push it back."""
    return any(isinstance(top, Time) for offer in kept.offers for top in offer.span.tops)


def _within(kept: Kept, to: int, stage: str) -> Kept:
    left = tuple(o for o in kept.offers if o.span is not TOP and _ends_by(o.span, to))
    if not left:
        raise UsageError(
            f"{stage} keeps nothing as old as epoch {to}: its oldest is {kept.offers[0].span}; "
            f"ask for a later epoch",
            stage=stage,
            epoch=to,
        )
    return replace(kept, offers=left)


def _ends_by(span: Span, epoch: int) -> bool:
    return all(isinstance(top, Time) and top.epoch <= epoch for top in span.tops)
