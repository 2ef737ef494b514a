"""Where a choice of regimes lets rollbacks cascade, for explain()."""

from __future__ import annotations

from penstock.api.regimes import (
    Batch,
    Causal,
    Eager,
    Ephemeral,
    GlobalCheckpoint,
    Regime,
    Replicated,
)
from penstock.core.rollback import regimes as spans
from penstock.core.rollback.cascades import StageEdge, cascades
from penstock.planning.physical import Chain, PhysicalPlan

__all__ = ["cascade_warnings"]

INTERVAL_US = 100_000
"""Of an epoch, where a regime counts time and none is known."""


def cascade_warnings(plan: PhysicalPlan, interval_us: int = INTERVAL_US) -> list[str]:
    """What the regimes of a plan let happen, one sentence each."""
    if any(isinstance(chain.regime, GlobalCheckpoint) for chain in plan.chains):
        return []  # all go back together, to one epoch
    known = {chain.name: _spans_of(chain, interval_us) for chain in plan.chains}
    edges = [
        StageEdge(plan.chains[link.source_chain].name, plan.chains[link.target_chain].name)
        for link in plan.links
        if not link.goes_round
    ]
    return [found.message for found in cascades(known, edges)]


def _spans_of(chain: Chain, interval_us: int) -> spans.RollbackRegime:
    if chain.is_source:
        return spans.SOURCE
    if chain.sinks:
        return spans.EAGER  # what was published stays
    states = {stage.operator.state for stage in chain.stages}
    found = _regime(chain.regime, interval_us)
    return found.stateful() if states - {"none", "epoch"} else found


def _regime(regime: Regime, interval_us: int) -> spans.RollbackRegime:
    if isinstance(regime, Causal):
        return spans.CAUSAL
    if isinstance(regime, Replicated):
        return spans.REPLICATED
    if isinstance(regime, Ephemeral):
        return spans.EPHEMERAL_LOGGED if regime.logInputs else spans.EPHEMERAL
    if isinstance(regime, Eager):
        return spans.EAGER
    every = regime.epochs(interval_us) or 1
    # What a batch stage made is on a durable edge; its state goes back as a lazy one's does.
    return spans.EAGER if isinstance(regime, Batch) and every == 1 else spans.lazy(every)
