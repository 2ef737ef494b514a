"""Where a flow does something else than it was asked for: said in words, before it starts.

``explain()`` and the handle's ``status`` list the notes, and a start logs them as one warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.api.regimes import Causal
from penstock.api.stage import Stage
from penstock.connectors.base import Sink
from penstock.connectors.persist import PersistWrite
from penstock.core.delivery.guarantees import Guarantee
from penstock.operators.base import SourceOperator
from penstock.planning.guarantees import guarantees_of

if TYPE_CHECKING:
    from penstock.planning.physical import Chain, PhysicalPlan

__all__ = ["caveats", "notes_of", "raised"]


def notes_of(plan: PhysicalPlan, restarts: bool) -> list[str]:
    """What must be known of a plan; ``restarts``: it has a store, so a driver can come back."""
    return [*plan.notes, *(caveats(plan) if restarts else ())]


def caveats(plan: PhysicalPlan) -> Iterator[str]:
    """What the restart of a driver does to rows in sources and sinks that live in its process."""
    for chain in plan.chains:
        for stage in chain.stages:
            operator = stage.operator
            if isinstance(operator, SourceOperator) and operator.source.caveat:
                yield f"source {stage.name!r}: {operator.source.caveat}"
            elif isinstance(operator, Sink) and operator.caveat:
                yield f"sink {stage.name!r}: {operator.caveat}"


def raised(stages: Sequence[Stage], chains: Sequence[Chain], guarantee: Guarantee) -> Iterator[str]:
    """The stages that promise something else than the user asked of them, each with the reason."""
    asked = guarantees_of(stages, guarantee)
    chain_of = {stage.name: chain for chain in chains for stage in chain.stages}
    for stage in stages:
        chain = chain_of.get(stage.name)
        mine = stage.operator.sink and not isinstance(stage.operator, PersistWrite)
        if chain is None or not (mine or stage.guarantee is not None):
            continue
        wanted = asked[stage.name]
        if chain.guarantee is not wanted:
            what = "sink" if stage.operator.sink else "stage"
            yield (
                f"{what} {stage.name!r} is {chain.guarantee.value} though {wanted.value} was asked "
                f"for: {_reason(stage, chain)}"
            )


def _reason(stage: Stage, chain: Chain) -> str:
    if not isinstance(chain.regime, Causal):
        return f"{chain.regime.name} knows nothing else"
    if chain.loops:
        return "a loop knows nothing else"
    others = [one.name for one in chain.stages if one.name != stage.name]
    if others:
        return f"it is in one node with {', '.join(map(repr, others))}"
    return "something that it feeds needs that"
