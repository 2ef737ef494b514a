"""Where a choice of regimes lets rollbacks cascade, found before anything runs.

Decides from stages, regimes and persisted edges alone; never from a run's metadata. Over an edge
whose sender loses its output (not persisted, output not kept, no replay) the two ends can only go
back together: the receiver needs the output again, and what the sender makes again replaces what
the receiver has. Stages joined by such edges are **coupled**: they end at one common epoch. That is
harmless if they have one to end at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from penstock.core.rollback.regimes import Restores, RollbackRegime

__all__ = ["Cascade", "StageEdge", "Trouble", "cascades"]


class Trouble(Enum):
    """What a choice of regimes leads to."""

    BEGINNING = "goes back to the beginning"
    DOMINO = "checkpoints that seldom coincide"
    SIDEWAYS = "a stage beside it goes back as well"


@dataclass(frozen=True, slots=True)
class StageEdge:
    """Rows from one stage to another; ``persisted`` if they are logged on the way."""

    source: str
    target: str
    persisted: bool = False


@dataclass(frozen=True, slots=True)
class Cascade:
    """A warning: the edges that let rollbacks through, and why that matters."""

    trouble: Trouble
    edges: tuple[StageEdge, ...]
    message: str


def cascades(regimes: Mapping[str, RollbackRegime], edges: Sequence[StageEdge]) -> list[Cascade]:
    """Return what would cascade, each with the reason and a remedy.

    Without a warning of ``BEGINNING`` or ``DOMINO``, coupled stages go back at most as far as the
    longest interval between checkpoints among them reaches behind what they have all completed.

    >>> from penstock.core.rollback.regimes import EPHEMERAL, lazy
    >>> two = {"window": lazy(4).stateful(), "rank": lazy(6).stateful()}
    >>> [found] = cascades(two, [StageEdge("window", "rank")])
    >>> found.trouble.name, found.message[:62]
    ('DOMINO', 'checkpoints of window (every 4 epochs) and rank (every 6) coin')
    >>> cascades(two, [StageEdge("window", "rank", persisted=True)])
    []
    """
    coupling = [edge for edge in edges if _couples(regimes, edge)]
    found: list[Cascade] = []
    for group in _groups(regimes, coupling):
        inside = tuple(edge for edge in coupling if edge.source in group)
        found += _beginnings(regimes, group, inside)
        found += _dominoes(regimes, group, inside)
    for edge in coupling:
        found += _sideways(regimes, edges, edge)
    return found


def _couples(regimes: Mapping[str, RollbackRegime], edge: StageEdge) -> bool:
    sender = regimes[edge.source]
    return not (edge.persisted or sender.keeps_output or sender.replays)


def _groups(regimes: Iterable[str], coupling: Iterable[StageEdge]) -> list[tuple[str, ...]]:
    group = {stage: [stage] for stage in regimes}
    for edge in coupling:
        one, two = group[edge.source], group[edge.target]
        if one is not two:
            one += two
            for stage in two:
                group[stage] = one
    heads = {id(members): members for members in group.values()}
    return [tuple(stage for stage in regimes if stage in set(m)) for m in heads.values()]


def _beginnings(
    regimes: Mapping[str, RollbackRegime], group: Sequence[str], inside: tuple[StageEdge, ...]
) -> list[Cascade]:
    found = []
    for stage in group:
        regime = regimes[stage]
        if regime.restores is Restores.BEGINNING and not regime.replays:
            others = [other for other in group if other != stage]
            along = f", and {', '.join(others)} with it" if others else ""
            found.append(
                Cascade(
                    Trouble.BEGINNING,
                    tuple(edge for edge in inside if stage in (edge.source, edge.target)),
                    f"{stage} has state but keeps none ({regime.name}): any rollback that reaches "
                    f"it goes back to the beginning{along}; give it checkpoints, e.g. Lazy, or log "
                    f"its inputs",
                )
            )
    return found


def _dominoes(
    regimes: Mapping[str, RollbackRegime], group: Sequence[str], inside: tuple[StageEdge, ...]
) -> list[Cascade]:
    saved = [stage for stage in group if regimes[stage].restores is Restores.CHECKPOINTS]
    saved.sort(key=lambda stage: regimes[stage].every)
    found = []
    for one, two in pairwise(saved):
        short, long = regimes[one].every, regimes[two].every
        if long % short:
            found.append(
                Cascade(
                    Trouble.DOMINO,
                    inside,
                    f"checkpoints of {one} (every {short} epochs) and {two} (every {long}) "
                    f"coincide seldom, and the stages can only go back together: each may push the "
                    f"other to an older one; make one interval a multiple of the other, or persist "
                    f"an edge between them",
                )
            )
    return found


def _sideways(
    regimes: Mapping[str, RollbackRegime], edges: Iterable[StageEdge], edge: StageEdge
) -> list[Cascade]:
    if regimes[edge.target].restores is Restores.COMPLETED:
        return []
    beside = [
        other.target
        for other in edges
        if other.source == edge.source and other.target not in (edge.target, edge.source)
    ]
    if not beside:
        return []
    return [
        Cascade(
            Trouble.SIDEWAYS,
            (edge,),
            f"when {edge.target} goes back to a checkpoint, {edge.source} runs again from there "
            f"and {', '.join(beside)} must undo what it had from {edge.source}; persist the edge "
            f"from {edge.source} to {edge.target} to stop that",
        )
    ]
