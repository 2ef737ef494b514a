"""A plan as its replicas see it: chains are stages, nodes are roles, hosts are members of rings."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.api.regimes import Replicated
from penstock.core.causal.graph import CausalGraph
from penstock.core.delivery.ids import Role
from penstock.core.delivery.routing import Stages
from penstock.planning.physical import Chain, PhysicalPlan

__all__ = [
    "Members",
    "causal_part",
    "is_replicated",
    "longest_run",
    "node_of",
    "paths_of",
    "replica_lines",
    "replicated_nodes",
    "replicated_stages",
    "rings_of",
    "role_of",
]

Members = Mapping[int, tuple[int, ...]]
"""Per chain: the hosts of its ring, by slot."""


def is_replicated(chain: Chain) -> bool:
    """Whether the nodes of a chain are roles that replicas play."""
    return isinstance(chain.regime, Replicated)


def replicated_nodes(plan: PhysicalPlan) -> frozenset[int]:
    """The nodes that replicas play."""
    return frozenset(n for chain in plan.chains if is_replicated(chain) for n in chain.nodes)


def replicated_stages(plan: PhysicalPlan) -> Stages:
    """The replicated chains, which feeds which."""
    roles = {chain.index: chain.shards for chain in plan.chains if is_replicated(chain)}
    children = {
        index: tuple(sorted({link.target_chain for link in plan.links_out_of(index)}))
        for index in roles
    }
    return Stages(roles, children)


def causal_part(plan: PhysicalPlan, graph: CausalGraph) -> CausalGraph:
    """The graph without the nodes that replicas play: these are connected only with each other."""
    nodes = replicated_nodes(plan)
    if not nodes:
        return graph
    sets = ("noted", "logless", "clean", "lossy", "doubling")
    return CausalGraph(
        {node: kind for node, kind in graph.kinds.items() if node not in nodes},
        {node: above for node, above in graph.parents.items() if node not in nodes},
        {node: unit for node, unit in graph.units.items() if node not in nodes},
        **{name: getattr(graph, name) - nodes for name in sets},
    )


def role_of(plan: PhysicalPlan, node: int) -> Role:
    """The role that a node is."""
    chain = plan.chain_of_node(node)
    return Role(chain.index, node - chain.first_node)


def node_of(plan: PhysicalPlan, role: Role) -> int:
    """The node that a role is."""
    return plan.chains[role.stage].first_node + role.place


def rings_of(plan: PhysicalPlan, placement: Mapping[int, int], driver: int) -> Members:
    """The hosts of every ring: those that play its roles, and a second one if that is one only."""
    hosts = sorted({host for host in placement.values() if host != driver})
    rings: dict[int, tuple[int, ...]] = {}
    for chain in plan.chains:
        if is_replicated(chain):
            ring = list(dict.fromkeys(placement[node] for node in chain.nodes))
            others = [host for host in hosts if host > ring[0]] + hosts
            if len(ring) == 1 and not chain.on_driver:
                ring += [host for host in others if host != ring[0]][:1]
            rings[chain.index] = tuple(ring)
    return rings


def longest_run(plan: PhysicalPlan, rings: Members, driver: int) -> int:
    """The most stages in a row of which one host can hold copies: it dies with all of them."""
    runs: dict[tuple[int, int], int] = {}
    for chain in plan.chains:  # a chain comes after those that feed it
        feeders = [link.source_chain for link in plan.links_into(chain.index)]
        for host in rings.get(chain.index, ()):
            if host != driver:
                before = [runs.get((feeder, host), 0) for feeder in feeders]
                runs[chain.index, host] = 1 + max(before, default=0)
    return max(runs.values(), default=1)


def paths_of(plan: PhysicalPlan, node: int) -> dict[int, int]:
    """Per source node that reaches a node: on how many ways."""
    chain = plan.chain_of_node(node)
    if chain.is_source:
        return {node: 1}
    found: dict[int, int] = {}
    for link in plan.links_into(chain.index):
        for sender in plan.senders(link, node):
            for source, ways in paths_of(plan, sender).items():
                found[source] = found.get(source, 0) + ways
    return found


def replica_lines(
    plan: PhysicalPlan, chain: Chain, placement: Mapping[int, int], driver: int = 0
) -> list[str]:
    """For explain(): how a chain's nodes stand in for each other."""
    regime = chain.regime
    if not isinstance(regime, Replicated):
        return []
    if regime.acknowledged:
        return [f"      {regime}: sources wait until what they read is published"]
    if not placement:
        return [f"      {regime}"]
    rings = rings_of(plan, placement, driver)
    run = longest_run(plan, rings, driver)
    replicas = len(rings[chain.index])
    if regime.mirrored:
        return [f"      {regime}: {replicas} replicas, which have each other's rows"]
    kept = regime.settings(run).depth
    return [
        f"      {regime}: {replicas} replicas; what is sent is kept for {kept} stages, since a "
        f"host plays {run} in a row"
    ]
