"""The slow form of retention: computed anew from everything that is durable.

Compared with :class:`penstock.core.control.retention.RetentionMachine` by property tests, and used
by the simulator to judge what that machine lets go.

The plan after losing every node but the sources is the **watermark**.  What may go is decided by a
bound that needs only the epochs of what is durable, and is never past the watermark: where each
node would start, from the sinks upwards.

    sink        its last published epoch
    stateless   the least of its children
    stateful    its newest checkpoint; if it keeps no log, its newest at or before all its children
    in a loop   the newest epoch of which all nodes of the loop have checkpoints

A checkpoint counts from when its log reaches back to where every child would start
(:func:`~penstock.core.control.retention.serves_from`): the log of a node that was restarted begins
in the middle of an epoch.

With ``spare``, that many older checkpoints count instead of the newest, in case it is damaged.

Law: more failures never keep more, so no recovery takes a node behind its own bound.  Connected
nodes are a **region**; the **low epoch** of a region is the least bound in it.  No node of a region
ever goes back behind it, and nothing that happens in another region moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.causal.clocks import Floor
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import NodeReport, RecoveryPlan, Stored
from penstock.core.control.retention import serves_from

__all__ = [
    "durable_epochs",
    "keep_from",
    "low_epochs",
    "watermark",
]

_NEVER = 1 << 63
_PASSING = (NodeKind.SOURCE, NodeKind.STATELESS)


def watermark(graph: CausalGraph, stored: Mapping[int, Stored]) -> RecoveryPlan:
    """The plan after losing every node but the sources: nothing behind it is ever asked for.

    It needs no reports: only what is durable survives such a failure.
    """
    failed = frozenset(node for node in graph.order if graph.kinds[node] is not NodeKind.SOURCE)
    always = {
        node: NodeReport(node, floors=dict.fromkeys(graph.children[node], Floor()))
        for node in graph.order
        if node not in failed
    }
    return plan(graph, failed, always, stored)


def low_epochs(
    graph: CausalGraph,
    saved: Mapping[int, Iterable[int]],
    published: Mapping[int, int],
    spare: int = 1,
) -> dict[int, int]:
    """Per node the low epoch of its region: no recovery of that region goes back behind it.

    ``saved`` has the epochs of each node's durable checkpoints (the initial state is -1), mapped
    to what :func:`serves_from` says of them if that matters; ``published`` the last epoch of each
    sink.

    >>> kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATEFUL, 2: NodeKind.STATEFUL, 3: NodeKind.SINK}
    >>> parents = {1: (0,), 2: (1,), 3: (2,)}
    >>> saved = {1: [2, 6, 8], 2: [3, 5]}
    >>> low_epochs(CausalGraph(kinds, parents), saved, {3: 7}, spare=0)[0]
    5
    >>> low_epochs(CausalGraph(kinds, parents, logless=frozenset({1})), saved, {3: 7}, spare=0)[0]
    2
    """
    lows: dict[int, int] = {}
    for node, start in _starts(graph, saved, published, spare).items():
        region = graph.regions[node]
        lows[region] = min(lows.get(region, _NEVER), start)
    return {
        node: -1 if lows[region] == _NEVER else lows[region]
        for node, region in graph.regions.items()
    }


def keep_from(
    graph: CausalGraph,
    saved: Mapping[int, Iterable[int]],
    published: Mapping[int, int],
    spare: int = 1,
) -> dict[int, int]:
    """Per node with state the epoch of the oldest checkpoint that a recovery may ask for."""
    return {
        node: start
        for node, start in _starts(graph, saved, published, spare).items()
        if graph.kinds[node] in (NodeKind.STATEFUL, NodeKind.ORDERED)
    }


def durable_epochs(
    graph: CausalGraph, stored: Mapping[int, Stored]
) -> tuple[dict[int, dict[int, int]], dict[int, int]]:
    """``saved`` and ``published`` of what the store has."""
    saved: dict[int, dict[int, int]] = {}
    published: dict[int, int] = {}
    for node, kept in stored.items():
        reports = [one.report for one in kept.checkpoints]
        if graph.kinds[node] is NodeKind.SINK:
            published[node] = reports[0].completed if reports else -1
        if graph.kinds[node] not in _PASSING:
            saved[node] = {report.completed: serves_from(report) for report in reports}
    return saved, published


def _starts(
    graph: CausalGraph,
    saved: Mapping[int, Iterable[int]],
    published: Mapping[int, int],
    spare: int,
) -> dict[int, int]:
    """The least epoch at which each node may have to start."""
    serves = {
        node: epochs if isinstance(epochs, Mapping) else dict.fromkeys(epochs, -1)
        for node, epochs in saved.items()
    }
    found: dict[int, int] = {}
    least: dict[int, int] = {}

    def children_at(node: int) -> int:
        children = graph.children[node]  # shared by nodes that have the same ones
        if id(children) not in least:
            least[id(children)] = min((found[child] for child in children), default=_NEVER)
        return least[id(children)]

    for node in reversed(graph.order):
        if node in found:
            continue
        kind = graph.kinds[node]
        if kind in _PASSING:
            found[node] = children_at(node)
        elif kind is NodeKind.SINK:
            found[node] = published.get(node, -1)
        else:
            group = graph.together[node]
            usable = {
                one: [e for e, since in serves.get(one, {}).items() if since <= children_at(one)]
                for one in group
            }
            limit = min((children_at(one) for one in group if one in graph.logless), default=_NEVER)
            epochs = sorted(epoch for epoch in _common(group, usable) if epoch <= limit)
            start = epochs[max(0, len(epochs) - 1 - spare)] if epochs else -1
            found.update(dict.fromkeys(group, start))
    return found


def _common(group: Iterable[int], saved: Mapping[int, Iterable[int]]) -> set[int]:
    """The epochs at which all of those who may start together have checkpoints."""
    return set.intersection(*(set(saved.get(member, ())) for member in group))
