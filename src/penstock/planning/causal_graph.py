"""A plan as recovery sees it: what each node loses when it dies, and who feeds it.

Progress inside loops is tracked rather than marked, so the nodes of a loop have no order of their
own: with those of the loops inside it they are one *unit*, which fails and restarts as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.api.regimes import Causal, Ephemeral, GlobalCheckpoint
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.delivery.guarantees import Guarantee
from penstock.errors import GraphError
from penstock.operators.user_vertex import UserVertex
from penstock.operators.watermark import WithWatermark
from penstock.planning.physical import Chain, PhysicalPlan, PlannedStage

__all__ = ["causal_graph", "check_loops", "loop_units"]


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
    if chain.is_source or chain.loops or chain.sinks:
        return False
    return chain.regime.clean or _answers_by_epoch(chain)


def _answers_by_epoch(chain: Chain) -> bool:
    """Whether a causal chain keeps open epochs apart, and answers as an epoch ends.

    Stateful operators of the library do.  A checkpoint at the end of an epoch then needs nothing of
    later ones, and a restart from it binds its senders to nothing that they did after that epoch.
    """
    if not isinstance(chain.regime, Causal) or chain.guarantee is not Guarantee.EXACTLY_ONCE:
        return False
    operators = [stage.operator for stage in chain.stages]
    with_state = [operator for operator in operators if operator.state != "none"]
    states = {operator.state for operator in with_state}
    return (
        "unordered" in states
        and states <= {"unordered", "epoch"}
        and not any(isinstance(operator, UserVertex) for operator in with_state)
        and not any(operator.asks or not operator.repeatable for operator in operators)
    )


def loop_units(plan: PhysicalPlan) -> dict[int, int]:
    """The unit of every node that is in a loop: the first node of its outermost loop."""
    first: dict[str, int] = {}
    for chain in plan.chains:
        if chain.loops:
            first.setdefault(chain.loops[0], chain.first_node)
    return {
        node: first[chain.loops[0]] for chain in plan.chains if chain.loops for node in chain.nodes
    }


def check_loops(plan: PhysicalPlan) -> None:
    """Refuse a way out of a loop and into it again: the loop's epochs would wait for themselves."""
    for loop in dict.fromkeys(chain.loops[0] for chain in plan.chains if chain.loops):
        ways = [chain.index for chain in plan.chains if loop in chain.loops]
        inside = set(ways)
        seen: set[int] = set()
        while ways:
            for link in plan.links_out_of(ways.pop()):
                target = link.target_chain
                if target in inside and link.source_chain not in inside:
                    raise GraphError(
                        f"loop {loop!r}: what left it enters it again at stage "
                        f"{plan.chains[target].stages[0].name!r}, by way of "
                        f"{plan.chains[link.source_chain].name!r}, so its epochs would wait for "
                        "themselves: let it go round with a variable, or enter a loop of its own",
                        loop=loop,
                    )
                if target not in inside and target not in seen:
                    seen.add(target)
                    ways.append(target)


def _kind(plan: PhysicalPlan, chain: Chain) -> NodeKind:
    states = {stage.operator.state for stage in chain.stages}
    if chain.is_source:
        return NodeKind.SOURCE
    if chain.loops:
        return NodeKind.STATEFUL
    if chain.sinks and not plan.links_out_of(chain.index):
        return NodeKind.SINK
    if chain.guarantee is Guarantee.AT_MOST_ONCE:
        return NodeKind.STATELESS  # it has state, but that is not restored
    exactly = chain.guarantee is Guarantee.EXACTLY_ONCE
    if exactly and any(stage.operator.asks for stage in chain.stages):
        return NodeKind.ORDERED
    watermark = any(isinstance(stage.operator, WithWatermark) for stage in chain.stages)
    if _is_clean(chain):
        # Rows of open epochs come again, and in an order that is always the same.
        keeps = watermark or not states <= {"none", "epoch"}
        return NodeKind.STATEFUL if keeps else NodeKind.STATELESS
    if "ordered" in states and exactly:
        return NodeKind.ORDERED
    return NodeKind.STATELESS if states == {"none"} and not watermark else NodeKind.STATEFUL
