"""What is promised of every stage of a flow: the user's wishes, put together and checked.

The rules are :mod:`penstock.core.delivery.guarantees`'; this only tells them about the flow.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.regimes import Causal, Regime
from penstock.api.stage import Stage
from penstock.connectors.base import Sink
from penstock.connectors.persist import PersistSource, PersistWrite
from penstock.core.delivery.guarantees import Guarantee, GuaranteedStage, guarantee_named, resolve
from penstock.operators.base import SourceOperator

__all__ = ["guarantees_of", "kept_promises"]


def guarantees_of(stages: Sequence[Stage], default: str | Guarantee) -> dict[str, Guarantee]:
    """The guarantee of every stage; wishes that do not go together are refused with the reason."""
    children: dict[str, list[str]] = {stage.name: [] for stage in stages}
    for stage in stages:
        for parent in _parents(stage):
            children[parent.name].append(stage.name)
    members = {}
    for stage in stages:
        operator = stage.operator
        members[stage.name] = GuaranteedStage(
            stage.name,
            tuple(children[stage.name]),
            stage.guarantee,
            replayable=not isinstance(operator, SourceOperator) or operator.source.replayable,
            idempotent=not isinstance(operator, Sink) or operator.idempotent,
        )
    return resolve(guarantee_named(default), members)


def kept_promises(
    stages: Sequence[Stage], default: Guarantee, regime: Regime
) -> dict[str, Guarantee]:
    """What each stage does: what it was asked for or the sinks behind it need, or more.

    Loops, persisted streams and the regimes other than ``Causal`` know only exactly once; so do
    the stages that feed them.
    """
    promised = guarantees_of(stages, default)
    waiting = [stage for stage in stages if _is_exact(stage, regime)]
    seen = set(waiting)
    while waiting:
        stage = waiting.pop()
        promised[stage.name] = Guarantee.EXACTLY_ONCE
        above = [parent for parent in _parents(stage) if parent not in seen]
        seen.update(above)
        waiting += above
    return promised


def _parents(stage: Stage) -> list[Stage]:
    """Who feeds a stage; a persisted stream is fed by its sink."""
    found = [source.stage for source in stage.inputs]
    return found if stage.follows is None else [*found, stage.follows]


def _is_exact(stage: Stage, regime: Regime) -> bool:
    operator = stage.operator
    persists = isinstance(operator, PersistWrite) or (
        isinstance(operator, SourceOperator) and isinstance(operator.source, PersistSource)
    )
    causal = isinstance(stage.regime or regime, Causal)
    return persists or stage.loop is not None or not causal
