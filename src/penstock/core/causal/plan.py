"""Recovery planning: reports in, plan out.  A pure function, for one failure or for all at once.

Theory of operation
-------------------
The planner goes through the failed set from the sinks upwards.  A live child's position on an edge
is its clock; a failed child's is where it starts itself.  So when a node's turn comes, all its
children's positions are known, and everything that anybody who survives knows about its steps: the
survivors' diffs, those of the checkpoints chosen below it, and bound determinants.

A **stateless** node starts at the least position of its children.  What it had handled of a parent
by then is the largest stamp in any diff at or before; what is known after becomes a target that the
replay must hit.  Inputs that nobody knows of had no effect on anybody, so handling them again is
harmless.  A **stateful** node starts at its newest checkpoint whose payload log reaches its
children's positions.  An **ordered** one with determinants also binds them, up to the highest step
that anybody observed: directly, or by having completed an epoch at or below it.  A **source** reads
on after the last range that its children know.  A **sink** starts after its last published epoch.

A live sender whose log does not reach back to a failed child's position joins the failed set
(``joining``); the controller then fences it, asks again and plans again.

With all nodes but the sources failed the same plan is the watermark: no recovery ever asks for
anything behind its positions (:func:`watermark`).  Logs are cut by :func:`low_epoch`, which is
cheaper to know and never past it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import COMPLETION, Link, completion, origin, pairs
from penstock.core.causal.graph import CausalGraph, Kind
from penstock.core.causal.logs import Fact
from penstock.core.causal.reports import Plan, Report, Saved, Start, Stored, Target
from penstock.core.causal.times import END, ZERO, Stamp

__all__ = ["low_epoch", "plan", "watermark", "watermark_epoch"]

_NOTHING = Stored()
_BOTTOM = Floor()


@dataclass
class _Knowledge:
    """Everything that survives, indexed by the node that it is about."""

    steps: dict[int, dict[Stamp, Link | None]] = field(default_factory=dict)
    facts: dict[int, list[Fact]] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    newest: int = -1

    def learn(self, report: Report) -> None:
        self.completes(report.node, report.completed)
        self.newest = max(self.newest, report.newest)
        for sender, position in report.clock.items():
            self.completes(sender, position.epoch)
        for diff in report.diffs:
            self.learn_diff(diff)
        for fact in report.facts:
            self.facts.setdefault(fact.node, []).append(fact)

    def learn_diff(self, diff: tuple[Link, ...]) -> None:
        for link, made_from in pairs(diff):
            steps = self.steps.setdefault(link.node, {})
            if made_from is not None or link.stamp not in steps:
                steps[link.stamp] = made_from
            if made_from is not None and made_from.node == COMPLETION:
                self.completes(link.node, made_from.epoch)

    def completes(self, node: int, epoch: int) -> None:
        self.completed[node] = max(self.completed.get(node, -1), epoch)

    def observed(self, graph: CausalGraph, node: int) -> int:
        """The largest epoch that anybody at or below a node is known to have completed."""
        return max(self.completed.get(below, -1) for below in graph.descendants[node])

    def handled(self, node: int, parent: int, up_to: Stamp) -> Stamp:
        """The last stamp of a parent that a node is known to have handled by ``up_to``."""
        best = ZERO
        for stamp, made_from in self.steps.get(node, {}).items():
            if stamp <= up_to and made_from is not None and made_from.node == parent:
                best = max(best, made_from.stamp)
        for fact in self.facts.get(node, ()):
            if fact.parent == parent and fact.stamp <= up_to:
                best = max(best, fact.handled)
        return best

    def targets(
        self, node: int, stamp: Stamp, completed: int, deadlines: Mapping[int, Stamp]
    ) -> tuple[Target, ...]:
        """Known steps after a stamp, and known completions after an epoch, in order."""
        found = [
            Target(at, made_from)
            for at, made_from in self.steps.get(node, {}).items()
            if made_from is not None
            and made_from.epoch > completed
            and (at > stamp or made_from.node == COMPLETION)
        ]
        exact = {t.made_from.epoch: t.stamp for t in found if t.made_from.node == COMPLETION}
        before = END
        latest = completed
        for epoch in sorted({*exact, *deadlines}, reverse=True):
            # Epochs are completed in order: one that comes later bounds the ones before it.
            limit = min(exact.get(epoch, END), deadlines.get(epoch, END))
            if epoch > completed and epoch not in exact and (limit < before or epoch > latest):
                found.append(Target(limit, completion(epoch), loose=True))
            before = min(before, limit)
            latest = max(latest, epoch)
        return tuple(sorted(found, key=lambda target: target.order))

    def taken(self, node: int, targets: tuple[Target, ...]) -> dict[Stamp, Link | None]:
        """Known steps that are no targets."""
        exact = {target.stamp for target in targets if not target.loose}
        steps = self.steps.get(node, {})
        return {stamp: steps[stamp] for stamp in sorted(steps) if stamp not in exact}


def plan(
    graph: CausalGraph,
    failed: frozenset[int],
    reports: Mapping[int, Report],
    stored: Mapping[int, Stored],
) -> Plan:
    """Where every failed node starts, or who else must join them."""
    known = _Knowledge()
    for node in sorted(reports):
        if node not in failed:
            known.learn(reports[node])
    for node in sorted(stored):
        known.newest = max([known.newest, *(cut.epoch for cut in stored[node].cuts)])
    known.newest += 1
    starts: dict[int, Start] = {}
    for node in reversed(graph.order):
        if node not in failed:
            continue
        positions = {
            child: starts[child].clock[node] if child in starts else reports[child].clock[node]
            for child in graph.children[node]
        }
        deadlines = _deadlines(graph, node, starts)
        observed = known.observed(graph, node)
        if observed > min((p.epoch for p in positions.values()), default=observed):
            deadlines.setdefault(observed, END)
        start = _start(graph, node, positions, known, stored.get(node, _NOTHING), deadlines)
        if isinstance(start, str):
            return Plan(failed, impossible=start)
        starts[node] = start
        known.completes(node, start.completed)
    return Plan(failed, _joining(graph, failed, reports, starts), starts)


def _deadlines(graph: CausalGraph, node: int, starts: Mapping[int, Start]) -> dict[int, Stamp]:
    """Epochs that a node must complete before it makes certain steps again.

    A failed child that completed an epoch before it handled one of this node's messages had the
    node's mark before that message; but the stamp of the mark may have been lost with it.  Epochs
    that were completed anywhere below are completed before anything new is made (``END``).
    """
    found: dict[int, Stamp] = {}
    for child in graph.children[node]:
        completed: list[int] = []
        for target in starts[child].targets if child in starts else ():
            if target.made_from.node == COMPLETION:
                completed.append(target.made_from.epoch)
            elif target.made_from.node == node:
                for epoch in completed:
                    found[epoch] = min(
                        found.get(epoch, target.made_from.stamp), target.made_from.stamp
                    )
                completed = []
    return found


def _joining(
    graph: CausalGraph,
    failed: frozenset[int],
    reports: Mapping[int, Report],
    starts: Mapping[int, Start],
) -> tuple[int, ...]:
    """Live senders whose logs do not reach back far enough."""
    return tuple(
        sorted(
            {
                parent
                for node in failed
                for parent in graph.parents[node]
                if parent not in failed
                and not reports[parent].floors[node].reaches(starts[node].clock[parent])
            }
        )
    )


def _start(
    graph: CausalGraph,
    node: int,
    positions: Mapping[int, Position],
    known: _Knowledge,
    stored: Stored,
    deadlines: Mapping[int, Stamp],
) -> Start | str:
    top = max([*known.steps.get(node, ()), *(p.stamp for p in positions.values()), ZERO])
    kind = graph.kinds[node]
    if kind in (Kind.STATELESS, Kind.SOURCE):
        return _start_stateless(graph, node, positions, known, stored, deadlines, top)
    saved = _newest_feasible(stored.checkpoints, positions)
    if saved is None:
        return (
            f"node {node} has no checkpoint whose log reaches its children's positions "
            f"({dict(positions)})"
        )
    report = saved.report
    trim = ZERO
    if node in graph.determined:
        observed = known.observed(graph, node)
        trim = max(
            [top, report.stamp]
            + [
                diff[0].stamp
                for diff in stored.determinants
                if diff[1].node == COMPLETION and diff[1].epoch <= observed
            ]
        )
        for diff in stored.determinants:
            if report.stamp < diff[0].stamp <= trim:
                known.learn_diff(diff)
    known.learn(report)
    targets = known.targets(node, report.stamp, report.completed, deadlines)
    return Start(
        node,
        saved.key,
        report.stamp,
        report.completed,
        report.clock,
        positions,
        targets,
        known.taken(node, targets),
        max(top, trim, report.stamp),
        known.newest,
        trim,
    )


def _start_stateless(
    graph: CausalGraph,
    node: int,
    positions: Mapping[int, Position],
    known: _Knowledge,
    stored: Stored,
    deadlines: Mapping[int, Stamp],
    top: Stamp,
) -> Start:
    stamp = min(position.stamp for position in positions.values())
    completed = min(position.epoch for position in positions.values())
    offset = 0
    begun = -1
    cuts = stored.cuts
    past = [cut for cut in cuts if cut.epoch <= completed]
    if graph.kinds[node] is Kind.SOURCE:
        handled = known.handled(node, origin(node), stamp)
        offset = max([handled[0] if handled else 0, *(cut.offset for cut in past)])
        read = [link for link in known.steps.get(node, {}).values() if link is not None]
        begun = max((link.epoch for link in read if link.node == origin(node)), default=-1)
    targets = known.targets(node, stamp, completed, deadlines)
    return Start(
        node,
        None,
        stamp,
        completed,
        {
            parent: Position(known.handled(node, parent, stamp), completed)
            for parent in graph.parents[node]
        },
        positions,
        targets,
        known.taken(node, targets),
        top,
        known.newest,
        offset=offset,
        cuts=tuple(cut for cut in cuts if cut.epoch > completed),
        watermark_us=past[-1].watermark_us if past else None,
        begun=begun,
    )


def _newest_feasible(
    checkpoints: tuple[Saved, ...], positions: Mapping[int, Position]
) -> Saved | None:
    for saved in reversed(checkpoints):
        floors = saved.report.floors
        if all(floors[child].reaches(position) for child, position in positions.items()):
            return saved
    return None


def watermark(graph: CausalGraph, stored: Mapping[int, Stored]) -> Plan:
    """The plan after losing every node but the sources: nothing behind it is ever asked for.

    It needs no reports: only what is durable survives such a failure.
    """
    failed = frozenset(node for node in graph.order if graph.kinds[node] is not Kind.SOURCE)
    always = {
        node: Report(node, floors=dict.fromkeys(graph.children[node], _BOTTOM))
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
    checkpoints, and over the sinks of the last published epoch.
    """
    return min(
        (
            found.checkpoints[-2:][0].report.completed
            for node, found in stored.items()
            if graph.kinds[node] in (Kind.STATEFUL, Kind.ORDERED, Kind.SINK)
        ),
        default=-1,
    )
