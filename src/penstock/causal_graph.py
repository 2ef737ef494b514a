"""A plan as recovery sees it: what each node loses when it dies, and who feeds it.

Progress inside loops is tracked rather than marked, so the nodes of loops that are joined have no
order of their own: they are one *unit*, which fails and restarts as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.causal.graph import CausalGraph, Kind
from penstock.core.delivery.guarantees import Guarantee
from penstock.operators.watermark import WithWatermark
from penstock.physical import Chain, PhysicalPlan, PlannedStage
from penstock.regimes import Ephemeral, GlobalCheckpoint

__all__ = ["causal_graph", "loop_units"]


def causal_graph(plan: PhysicalPlan) -> CausalGraph:
    """The nodes of a plan; edges inside a unit (:func:`loop_units`) are left out."""
    kinds = {node: _kind(plan, chain) for chain in plan.chains for node in chain.nodes}
    units = loop_units(plan)
    lossy = _of(plan, lambda chain: chain.guarantee is Guarantee.AT_MOST_ONCE)
    doubling = _of(plan, lambda chain: chain.guarantee is Guarantee.AT_LEAST_ONCE)
    untraced = lossy | doubling
    parents: dict[int, tuple[int, ...]] = {}
    for chain in plan.chains:
        into = plan.links_into(chain.index)
        for node in chain.nodes:
            senders = {sender for link in into for sender in plan.senders(link, node)}
            parents[node] = tuple(
                sender
                for sender in sorted(senders)
                if sender not in units or units[sender] != units.get(node)
            )
    return CausalGraph(
        kinds,
        parents,
        units,
        _nodes(plan, lambda stage: stage.operator.asks) - untraced,
        _nodes(plan, lambda stage: not stage.operator.repeatable) - untraced,
        _of(plan, _is_logless),
        _of(plan, _is_clean),
        lossy,
        doubling,
    )


def _nodes(plan: PhysicalPlan, holds: Callable[[PlannedStage], bool]) -> frozenset[int]:
    """The nodes of chains with such a stage."""
    return frozenset(
        node for chain in plan.chains if any(map(holds, chain.stages)) for node in chain.nodes
    )


def _of(plan: PhysicalPlan, holds: Callable[[Chain], bool]) -> frozenset[int]:
    return frozenset(node for chain in plan.chains if holds(chain) for node in chain.nodes)


def _is_logless(chain: Chain) -> bool:
    """Whether its nodes forget what they have sent; a source has it again anyway."""
    if chain.guarantee is Guarantee.AT_MOST_ONCE:
        return True
    if chain.is_source:
        return isinstance(chain.regime, Ephemeral | GlobalCheckpoint)
    return not chain.regime.logged


def _is_clean(chain: Chain) -> bool:
    return chain.regime.clean and not (chain.is_source or chain.loops or chain.sinks)


def loop_units(plan: PhysicalPlan) -> dict[int, int]:
    """The unit of every node that is in a loop: the least node of those that it is tracked with."""
    unit = {chain.index: chain.index for chain in plan.chains if chain.loops}
    joined = [
        (link.source_chain, link.target_chain)
        for link in plan.links
        if link.source_chain in unit and link.target_chain in unit
    ]
    for one, other in joined:
        low, high = sorted((unit[one], unit[other]))
        unit = {chain: low if found == high else found for chain, found in unit.items()}
    return {
        node: plan.chains[found].first_node
        for chain, found in unit.items()
        for node in plan.chains[chain].nodes
    }


def _kind(plan: PhysicalPlan, chain: Chain) -> Kind:
    states = {stage.operator.state for stage in chain.stages}
    if chain.is_source:
        return Kind.SOURCE
    if chain.loops:
        return Kind.STATEFUL
    if chain.sinks and not plan.links_out_of(chain.index):
        return Kind.SINK
    if chain.guarantee is Guarantee.AT_MOST_ONCE:
        return Kind.STATELESS  # it has state, but nobody restores it
    exactly = chain.guarantee is Guarantee.EXACTLY_ONCE
    if exactly and any(stage.operator.asks for stage in chain.stages):
        return Kind.ORDERED
    watermark = any(isinstance(stage.operator, WithWatermark) for stage in chain.stages)
    if _is_clean(chain):
        # Rows of open epochs come again, and in an order that is always the same.
        keeps = watermark or not states <= {"none", "epoch"}
        return Kind.STATEFUL if keeps else Kind.STATELESS
    if "ordered" in states and exactly:
        return Kind.ORDERED
    return Kind.STATELESS if states == {"none"} and not watermark else Kind.STATEFUL
