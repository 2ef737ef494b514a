"""What may be forgotten: nothing behind it is ever asked for, whatever fails.

The plan after losing every node but the sources is the **watermark**.  Logs are cut by the **low
epoch**, which is known from the epochs of what is durable alone and is never past the watermark.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.causal.clocks import Floor
from penstock.core.causal.diffs import Diff
from penstock.core.causal.graph import CausalGraph, Kind
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import Plan, Report, Stored

__all__ = [
    "keep_from",
    "keeps_determinant",
    "low_epoch",
    "publishable",
    "watermark",
    "watermark_epoch",
]


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


def low_epoch(graph: CausalGraph, stored: Mapping[int, Stored]) -> int:
    """No recovery goes back behind this epoch: a cheap bound, at or before the watermark.

    It is the least over the nodes with state of the epoch at the older of their two newest
    checkpoints (in a loop, or below an unrepeatable node: of those that all of them have), and over
    the sinks of the last published epoch.
    """
    return min(_kept_epochs(graph, stored).values(), default=-1)


def keep_from(graph: CausalGraph, stored: Mapping[int, Stored]) -> dict[int, int]:
    """Per node with state, the oldest checkpoint that a recovery may ask for: its key."""
    return {
        node: min(saved.key for saved in stored[node].checkpoints if saved.report.completed >= low)
        for node, low in _kept_epochs(graph, stored).items()
    }


def publishable(graph: CausalGraph, sink: int, stored: Mapping[int, Stored]) -> int | None:
    """Up to which epoch a sink may publish; None: whatever is complete.

    A sink below an unrepeatable node may publish what nobody will ever go back behind: epochs at
    which everybody who would go back with it has a checkpoint (a sink: the epoch's rows, durable).
    """
    if sink not in graph.tainted:
        return None
    return max(_common(graph, sink, stored), default=-1)


def keeps_determinant(diff: Diff, low: int) -> bool:
    """Whether a recovery may ask for a determinant (link, what it was made from, …).

    >>> from penstock.core.causal.diffs import Link
    >>> keeps_determinant((Link(2, (5,), -1), Link(1, (3,), 8)), 7)
    True
    """
    return max(diff[0].epoch, diff[1].epoch) > low


def _kept_epochs(graph: CausalGraph, stored: Mapping[int, Stored]) -> dict[int, int]:
    found: dict[int, int] = {}
    for node in stored:
        if graph.kinds[node] in (Kind.SOURCE, Kind.STATELESS):
            continue
        found[node] = min(sorted(_common(graph, node, stored))[-2:], default=-1)
    return found


def _common(graph: CausalGraph, node: int, stored: Mapping[int, Stored]) -> set[int]:
    """The epochs at which all of those who may start with a node have checkpoints."""
    return set.intersection(
        *(
            {saved.report.completed for saved in stored[member].checkpoints}
            for member in graph.together[node]
        )
    )
