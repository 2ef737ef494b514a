"""What may be forgotten: nothing behind it is ever asked for, whatever fails.

The plan after losing every node but the sources is the **watermark**.  What may go is decided by a
bound that needs only the epochs of what is durable, and is never past the watermark: where each
node would start, from the sinks upwards.

    sink        its last published epoch
    stateless   the least of its children
    stateful    its newest checkpoint; if it keeps no log, its newest at or before all its children
    in a loop   the newest epoch of which all nodes of the loop have checkpoints

A checkpoint counts from when its log reaches back to where every child would start
(:func:`serves_from`): the log of a node that was restarted begins in the middle of an epoch.

Where everybody restarts together nobody starts later than the last one has a checkpoint.

With ``spare``, so many older checkpoints count instead of the newest, in case it is damaged.

Law: more failures never keep more, so no recovery takes a node behind its own bound.  Connected
nodes are a **region**; the **low epoch** of a region is the least bound in it.  Nobody in a region
ever goes back behind it, and nothing that happens in another region moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.causal.clocks import Floor
from penstock.core.causal.diffs import Diff
from penstock.core.causal.graph import CausalGraph, Kind
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import Plan, Report, Stored
from penstock.core.causal.times import ZERO

__all__ = [
    "durable_epochs",
    "keep_from",
    "keeps_determinant",
    "low_epochs",
    "publishable",
    "rollback_from",
    "serves_from",
    "watermark",
    "watermark_epoch",
]

_NEVER = 1 << 63
_PASSING = (Kind.SOURCE, Kind.STATELESS)


def watermark(graph: CausalGraph, stored: Mapping[int, Stored]) -> Plan:
    """The plan after losing every node but the sources: nothing behind it is ever asked for.

    It needs no reports: only what is durable survives such a failure.
    """
    failed = frozenset(node for node in graph.order if graph.kinds[node] is not Kind.SOURCE)
    always = {
        node: Report(node, floors=dict.fromkeys(graph.children[node], Floor()))
        for node in graph.order
        if node not in failed
    }
    return plan(graph, failed, always, stored)


def watermark_epoch(found: Plan) -> int:
    """Every epoch up to this one is behind the watermark at every node."""
    return min((start.completed for start in found.starts.values()), default=-1)


def low_epochs(
    graph: CausalGraph,
    saved: Mapping[int, Iterable[int]],
    published: Mapping[int, int],
    spare: int = 1,
    all_together: bool = False,
) -> dict[int, int]:
    """Per node the low epoch of its region: no recovery of that region goes back behind it.

    ``saved`` has the epochs of each node's durable checkpoints (the initial state is -1), mapped
    to what :func:`serves_from` says of them if that matters; ``published`` the last epoch of each
    sink.

    >>> kinds = {0: Kind.SOURCE, 1: Kind.STATEFUL, 2: Kind.STATEFUL, 3: Kind.SINK}
    >>> parents = {1: (0,), 2: (1,), 3: (2,)}
    >>> saved = {1: [2, 6, 8], 2: [3, 5]}
    >>> low_epochs(CausalGraph(kinds, parents), saved, {3: 7}, spare=0)[0]
    5
    >>> low_epochs(CausalGraph(kinds, parents, logless=frozenset({1})), saved, {3: 7}, spare=0)[0]
    2
    """
    lows: dict[int, int] = {}
    for node, start in _starts(graph, saved, published, spare, all_together).items():
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
    all_together: bool = False,
) -> dict[int, int]:
    """Per node with state the epoch of the oldest checkpoint that a recovery may ask for."""
    return {
        node: start
        for node, start in _starts(graph, saved, published, spare, all_together).items()
        if graph.kinds[node] in (Kind.STATEFUL, Kind.ORDERED)
    }


def rollback_from(
    graph: CausalGraph,
    saved: Mapping[int, Iterable[int]],
    published: Mapping[int, int],
    spare: int = 1,
    all_together: bool = False,
) -> dict[int, int]:
    """Per node the oldest epoch to which its region can be taken back by hand.

    From there on every node with state has a checkpoint that fits the others'.
    """
    found: dict[int, int] = {}
    for node, epoch in keep_from(graph, saved, published, spare, all_together).items():
        region = graph.regions[node]
        found[region] = max(found.get(region, -1), epoch)
    return {node: found.get(region, -1) for node, region in graph.regions.items()}


def durable_epochs(
    graph: CausalGraph, stored: Mapping[int, Stored]
) -> tuple[dict[int, dict[int, int]], dict[int, int]]:
    """``saved`` and ``published`` of what the store has; staged epochs of sinks are saved ones."""
    saved: dict[int, dict[int, int]] = {}
    published: dict[int, int] = {}
    for node, kept in stored.items():
        reports = [one.report for one in kept.checkpoints]
        if graph.kinds[node] is Kind.SINK:
            published[node] = reports[0].completed if reports else -1
        if graph.kinds[node] not in _PASSING:
            saved[node] = {report.completed: serves_from(report) for report in reports}
    return saved, published


def serves_from(report: Report) -> int:
    """The log of a checkpoint serves every child that starts at the end of this epoch or later.

    >>> serves_from(Report(1, completed=7, floors={2: Floor(ZERO, 4, 6), 3: Floor((9,), 4, 6)}))
    6
    >>> serves_from(Report(1, completed=7, floors={2: Floor((9,), 7, 3)}))
    7
    """
    floors = report.floors.values()
    return max((max(f.epoch, f.horizon if f.stamp > ZERO else -1) for f in floors), default=-1)


def publishable(graph: CausalGraph, sink: int, stored: Mapping[int, Stored]) -> int | None:
    """Up to which epoch a sink may publish; None: whatever is complete.

    A sink below an unrepeatable node may publish what nobody will ever go back behind: epochs at
    which everybody who would go back with it has a checkpoint (a sink: the epoch's rows, durable).
    """
    if sink not in graph.tainted:
        return None
    saved, _ = durable_epochs(graph, stored)
    return max(_common(graph.together[sink], saved), default=-1)


def keeps_determinant(diff: Diff, low: int) -> bool:
    """Whether a recovery may ask for a determinant (link, what it was made from, …).

    >>> from penstock.core.causal.diffs import Link
    >>> keeps_determinant((Link(2, (5,), -1), Link(1, (3,), 8)), 7)
    True
    """
    return max(diff[0].epoch, diff[1].epoch) > low


def _starts(
    graph: CausalGraph,
    saved: Mapping[int, Iterable[int]],
    published: Mapping[int, int],
    spare: int,
    all_together: bool,
) -> dict[int, int]:
    """The least epoch at which each node may have to start."""
    serves = {
        node: epochs if isinstance(epochs, Mapping) else dict.fromkeys(epochs, -1)
        for node, epochs in saved.items()
    }
    if all_together:  # whoever is ahead goes back to where the last one is
        stateful = [node for node in serves if graph.kinds[node] is not Kind.SINK]
        cap = min((max(serves[node], default=-1) for node in stateful), default=_NEVER)
        serves = {
            node: {e: since for e, since in epochs.items() if e <= cap}
            for node, epochs in serves.items()
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
        elif kind is Kind.SINK and node not in graph.tainted:
            found[node] = published.get(node, -1)
        else:
            group = graph.together[node]
            usable = {
                one: [e for e, since in serves.get(one, {}).items() if since <= children_at(one)]
                if node not in graph.tainted
                else list(serves.get(one, ()))
                for one in group
            }
            limit = _NEVER
            if node not in graph.tainted:  # else all below them are in the group, too
                limit = min(
                    (children_at(one) for one in group if one in graph.logless), default=limit
                )
            epochs = sorted(epoch for epoch in _common(group, usable) if epoch <= limit)
            start = epochs[max(0, len(epochs) - 1 - spare)] if epochs else -1
            found.update(dict.fromkeys(group, start))
    return found


def _common(group: Iterable[int], saved: Mapping[int, Iterable[int]]) -> set[int]:
    """The epochs at which all of those who may start together have checkpoints."""
    return set.intersection(*(set(saved.get(member, ())) for member in group))
