"""Which stages of a flow are replicated, and which cannot be.

A connected part is replicated as a whole: its sources, its stages without state, its sinks.  Where
a neighbour has another regime the edge is made durable, so that neither side knows of the other.
Replicas do something only for rows that must come exactly once; a part that promises less runs as
it does without them.  Whatever was to be replicated and is not is in the plan, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.api.regimes import Causal, Regime, Replicated
from penstock.api.stage import Stage
from penstock.core.delivery.guarantees import Guarantee
from penstock.errors import SettingsError
from penstock.operators.base import SourceOperator
from penstock.operators.watermark import WithWatermark
from penstock.planning.guarantees import kept_promises

if TYPE_CHECKING:
    from penstock.planning.physical import PhysicalPlan

__all__ = ["check_replicated", "check_ways", "choose_replicated", "not_replicated_lines"]

_LESS = "no sink behind it is exactly once, and replicas are for nothing else"
_MIXED = "a sink goes with who feeds it, and not all of those are replicated"
_HALF = "it keeps rows of open epochs for the sink that it is a part of"


def choose_replicated(
    stages: Sequence[Stage], default: Regime, guarantee: Guarantee
) -> dict[str, str]:
    """Set the regime of every stage that is replicated, or would be if it promised more.

    Gives the stages that were to be replicated and run as ``Causal``, with the reasons.
    """
    asked = [stage for stage in stages if _is(stage.regime or default)]
    if not asked:
        return {}
    readers: dict[Stage, list[Stage]] = {stage: [] for stage in stages}
    for stage in stages:
        for source in stage.inputs:
            readers[source.stage].append(stage)
    reasons = _settle_ends(stages, readers, default)
    plain = Causal() if isinstance(default, Replicated) else default
    found = {s: s.regime or default for s in stages}
    wishes = [replace(s, regime=Causal()) if _is(found[s]) else s for s in stages]
    promised = kept_promises(wishes, guarantee, plain)
    for part in _parts(stages, found):
        exact = any(promised[stage.name] is Guarantee.EXACTLY_ONCE for stage in part)
        for stage in part:
            stage.regime = found[stage] if exact else Causal()
            if not exact:
                reasons[stage] = _LESS
    return {stage.name: reasons[stage] for stage in asked if stage in reasons}


def not_replicated_lines(reasons: Mapping[str, str]) -> list[str]:
    """What to say of stages that were to be replicated, one sentence for each reason.

    >>> not_replicated_lines({"a": "it is a test", "b": "it is a test"})
    ['a, b: Replicated was asked for and is Causal: it is a test']
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [
        f"{', '.join(some)}: Replicated was asked for and is Causal: {reason}"
        for reason, some in names.items()
    ]


def _is(regime: Regime) -> bool:
    return isinstance(regime, Replicated)


def _settle_ends(
    stages: Sequence[Stage], readers: dict[Stage, list[Stage]], default: Regime
) -> dict[Stage, str]:
    """Sinks go with the stage that feeds them, and sources with the only stage that reads them.

    Gives those who are not replicated for it, with the reasons.
    """
    reasons: dict[Stage, str] = {}
    for stage in stages:
        if isinstance(stage.operator, SourceOperator) and stage.regime is None:
            wanted = {reader.regime or default for reader in readers[stage]}
            if len(wanted) == 1 and _is(*wanted) and not _is(default):
                (stage.regime,) = wanted
    for stage in stages:
        mine = stage.regime or default
        feeders = [source.stage.regime or default for source in stage.inputs]
        if stage.operator.sink and (_is(mine) or any(map(_is, feeders))):
            together = len(set(feeders)) == 1 and _is(feeders[0])
            stage.regime = feeders[0] if together else Causal()
            if not together:
                reasons[stage] = _MIXED
        elif _is(mine) and any(reader.sink_of(stage) for reader in readers[stage]):
            stage.regime = Causal()
            reasons[stage] = _HALF
    return reasons


def _parts(stages: Sequence[Stage], found: dict[Stage, Regime]) -> Iterable[list[Stage]]:
    """Replicated stages that are connected, under one and the same regime."""
    part: dict[Stage, list[Stage]] = {s: [s] for s in stages if _is(found[s])}
    for stage in stages:
        for source in stage.inputs:
            other = source.stage
            if stage in part and other in part and found[stage] == found[other]:
                one, two = part[stage], part[other]
                if one is not two:
                    one += two
                    part.update(dict.fromkeys(two, one))
    seen: list[list[Stage]] = []
    for members in part.values():
        if not any(members is one for one in seen):
            seen.append(members)
    return seen


def check_replicated(run: Sequence[Stage]) -> None:
    """Refuse stages that replicas could not stand in for."""
    for stage in run:
        why = _why_not(run[0], stage)
        if why is not None:
            raise SettingsError(
                f"stage {stage.name!r} {why}, and the regime Replicated restores only what is in "
                "flight: give it withRegime(Causal()), or another regime, and leave the stages "
                "without state around it Replicated",
                stage=stage.name,
            )


def _why_not(head: Stage, stage: Stage) -> str | None:
    operator = stage.operator
    if stage.loop is not None:
        return "is in a loop"
    if isinstance(operator, WithWatermark) and not isinstance(head.operator, SourceOperator):
        return "sets a watermark behind an exchange, which is state"
    if operator.state != "none" and not operator.sink:
        return "keeps state"
    if operator.asks:
        return "asks for the time, random numbers or answers from outside"
    return None if operator.repeatable else "cannot be repeated"


def check_ways(plan: PhysicalPlan) -> None:
    """Refuse two ways from one replicated chain to another: a role sends another one parcel."""
    ways: set[tuple[int, int]] = set()
    for link in plan.links:
        way, source = (link.source_chain, link.target_chain), plan.chains[link.source_chain]
        if isinstance(source.regime, Replicated) and way in ways:
            name = plan.chains[link.target_chain].stages[0].name
            raise SettingsError(
                f"stage {name!r} takes two streams of {source.name!r}: under the regime Replicated "
                "put a persist() on one of them",
                stage=name,
            )
        ways.add(way)
