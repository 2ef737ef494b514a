"""Recovery planning: reports in, plan out.  A pure function, for one failure or for all at once.

Theory of operation
-------------------
The planner goes through the failed set from the sinks upwards.  A live child's position on an edge
is its clock; a failed child's is where it starts itself.  So when a node's turn comes, all its
children's positions are known, and everything that any survivor knows about its steps: the
survivors' diffs, those of the checkpoints chosen below it, and bound determinants.

A **stateless** node starts at the least position of its children.  What it had handled of a parent
by then is the largest stamp in any diff at or before; what is known after becomes a target that the
replay must hit.  Inputs that no survivor knows of had no effect on any, so handling them again
is harmless.  A **stateful** node starts at its newest checkpoint whose payload log reaches its
children's positions.  One with **determinants** also binds them, up to the highest step that
any survivor observed: directly, or by having completed an epoch at or below it.  A **source** reads
on after the last range that its children know.  A **sink** starts after its last published epoch.

The nodes of a loop are one **unit**: they start from checkpoints of one epoch, the newest that all
of them have and whose logs reach all their children's positions.

A node that promises **at most once** starts at the present epoch: the newest of which any
survivor has seen a row.  Its senders send it only what comes after that; what it has sent cannot
come again.  One that promises **at least once** is planned like any other.  But its steps are
not known, so it is sent all of its open epochs again, and makes them again at stamps that no node
has seen.

A live sender whose log does not reach back to a failed child's position joins the failed set
(``joining``); the controller then fences it, asks again and plans again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.core.causal.clocks import Position
from penstock.core.causal.diffs import COMPLETION, origin
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.knowledge import Knowledge
from penstock.core.causal.reports import NodeReport, RecoveryPlan, Saved, Start, Stored
from penstock.core.causal.times import END, ZERO, Stamp
from penstock.core.progress.marks import EPOCH_END

__all__ = ["limited", "not_before", "plan"]

_NOTHING = Stored()


def plan(
    graph: CausalGraph,
    failed: frozenset[int],
    reports: Mapping[int, NodeReport],
    stored: Mapping[int, Stored],
) -> RecoveryPlan:
    """Where every failed node starts, or who else must join them."""
    known = Knowledge()
    for node in sorted(reports):
        if node not in failed:
            known.learn(reports[node], completes=node not in graph.lossy)
    known.newest = _not_begun(known, stored)
    starts: dict[int, Start] = {}
    commons: dict[int, int | None] = {}
    """Per node in a loop: the epoch at which the loop starts."""
    present = _present(failed, reports, stored)
    rows_of_end = any(r.rows >= EPOCH_END for node, r in reports.items() if node not in failed)
    skipping = set(graph.lossy)
    """Who starts after an epoch that need not have been complete there."""
    for node in reversed(graph.order):
        if node not in failed:
            continue
        positions = _positions(graph, node, reports, starts)
        if node in graph.lossy:
            found = stored.get(node, _NOTHING)
            starts[node] = _start_at(
                graph, node, present, positions, found, known.newest, rows_of_end
            )
            continue
        if node in graph.units and node not in commons:
            members = {m: _positions(graph, m, reports, starts) for m in graph.members[node]}
            commons.update(dict.fromkeys(members, _common_epoch(stored, members)))
        deadlines = _deadlines(graph, node, starts)
        observed = known.observed(graph, node)
        # The nodes of a loop need each other to complete an epoch: they repeat it together.
        unit = [_positions(graph, member, reports, starts) for member in graph.members[node]]
        if observed > min((p.epoch for ends in unit for p in ends.values()), default=observed):
            deadlines.setdefault(observed, END)
        found = stored.get(node, _NOTHING)
        ends = (p.epoch for child, p in positions.items() if child not in skipping)
        needed = max([observed, *ends])
        if node in stored and (lost := _lost(graph, node, found, needed)):
            return RecoveryPlan(failed, impossible=lost)
        if node in commons:
            found = _only(found, commons[node])
        start = _start(graph, node, positions, known, found, deadlines)
        if isinstance(start, str):
            return RecoveryPlan(failed, impossible=start)
        starts[node] = replace(start, observed=needed)
        if start.checkpoint is None and start.completed > needed:
            skipping.add(node)
        else:
            known.completes(node, start.completed)
    return RecoveryPlan(failed, _joining(graph, failed, reports, starts), starts)


def limited(stored: Mapping[int, Stored], limits: Mapping[int, int]) -> Mapping[int, Stored]:
    """What is stored, without checkpoints of epochs after these; sinks keep what they have."""
    if not limits:
        return stored
    found = dict(stored)
    for node, to in limits.items():
        if node in found and found[node].checkpoints:
            kept = tuple(s for s in found[node].checkpoints if s.report.completed <= to)
            found[node] = replace(found[node], checkpoints=kept)
    return found


def not_before(stored: Mapping[int, Stored], gone: Mapping[int, int]) -> Mapping[int, Stored]:
    """What is stored, without checkpoints that are older than what may be forgotten."""
    found = dict(stored)
    for node, kept in stored.items():
        usable = tuple(s for s in kept.checkpoints if s.report.completed >= gone.get(node, -1))
        if len(usable) < len(kept.checkpoints):
            found[node] = replace(kept, checkpoints=usable)
    return found


def _not_begun(known: Knowledge, stored: Mapping[int, Stored]) -> int:
    """The first epoch that no lost step can have belonged to.

    The end of a stream is the last epoch: a log whose horizon lay behind it would serve no child
    that has come to its end.
    """
    cut = max((cut.epoch for found in stored.values() for cut in found.cuts), default=-1)
    return min(max(known.newest, cut) + 1, EPOCH_END)


def _positions(
    graph: CausalGraph, node: int, reports: Mapping[int, NodeReport], starts: Mapping[int, Start]
) -> dict[int, Position]:
    """Where the edges to a node's children resume."""
    return {
        child: starts[child].clock[node] if child in starts else reports[child].clock[node]
        for child in graph.children[node]
    }


def _common_epoch(
    stored: Mapping[int, Stored], positions: Mapping[int, Mapping[int, Position]]
) -> int | None:
    """The newest epoch at which all of these nodes have a checkpoint that will do."""
    common: set[int] | None = None
    for member, ends in positions.items():
        epochs = {
            saved.report.completed
            for saved in stored.get(member, _NOTHING).checkpoints
            if _reaches(saved, ends)
        }
        common = epochs if common is None else common & epochs
    return max(common, default=None) if common else None


def _only(stored: Stored, epoch: int | None) -> Stored:
    """What is stored, with the checkpoints of one epoch."""
    kept = tuple(saved for saved in stored.checkpoints if saved.report.completed == epoch)
    return replace(stored, checkpoints=kept)


def _lost(graph: CausalGraph, node: int, stored: Stored, needed: int) -> str | None:
    """Whether the end of a node's log is missing: then it would do again otherwise what it did.

    A mark leaves a source after its cut is durable, and a node with determinants after that of the
    completion is.  So there is a record of the newest epoch that any node below has, or of a later
    one.
    """
    if graph.kinds[node] is NodeKind.SOURCE:
        there = [cut.epoch for cut in stored.cuts]
    elif node in graph.determined and graph.kinds[node] is NodeKind.ORDERED:
        there = [saved.report.completed for saved in stored.checkpoints]
        there += [d[1].epoch for d in stored.determinants if d[1].node == COMPLETION]
    else:
        return None
    last = max([stored.through, *there])
    if last >= needed:
        return None
    return (
        f"the records of node {node} end at epoch {last}, but epoch {needed} was complete below "
        "it: the end of its log is lost"
    )


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
    reports: Mapping[int, NodeReport],
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
                and node not in graph.lossy
                and not reports[parent].floors[node].reaches(starts[node].clock[parent])
            }
        )
    )


def _present(
    failed: frozenset[int], reports: Mapping[int, NodeReport], stored: Mapping[int, Stored]
) -> int:
    """The newest epoch that anything which survives knows of; ends of streams do not count."""
    known = [-1]
    for node, report in reports.items():
        if node not in failed:
            marked = (position.epoch for position in report.clock.values())
            known += [report.rows, report.newest, report.completed, *marked]
    for found in stored.values():
        known += [found.through, *(cut.epoch for cut in found.cuts)]
        for saved in found.checkpoints:
            known += [saved.report.completed, saved.report.newest, saved.report.rows]
    return max(epoch for epoch in known if epoch < EPOCH_END)


def _start_at(
    graph: CausalGraph,
    node: int,
    epoch: int,
    positions: Mapping[int, Position],
    stored: Stored,
    horizon: int,
    rows_of_end: bool,
) -> Start:
    """Start with nothing, after an epoch, and after what it has ended or published itself."""
    if graph.kinds[node] is not NodeKind.SINK and rows_of_end:
        epoch = EPOCH_END  # it may have sent these: it must not send them again
    ended = [cut.epoch for cut in stored.cuts]
    ended += [saved.report.completed for saved in stored.checkpoints]
    completed = max([epoch, *ended, *(position.epoch for position in positions.values())])
    top = max([ZERO, *(position.stamp for position in positions.values())])
    past = [cut for cut in stored.cuts if cut.epoch <= completed]
    return Start(
        node,
        None,
        top,
        completed,
        {parent: Position(ZERO, completed) for parent in graph.parents[node]},
        positions,
        top=top,
        horizon=horizon,
        offset=max([stored.ahead[0], *(cut.offset for cut in past)]),
        watermark_us=past[-1].watermark_us if past else None,
        observed=completed,
    )


def _start(
    graph: CausalGraph,
    node: int,
    positions: Mapping[int, Position],
    known: Knowledge,
    stored: Stored,
    deadlines: Mapping[int, Stamp],
) -> Start | str:
    top = max([known.last.get(node, ZERO), *(p.stamp for p in positions.values())])
    kind = graph.kinds[node]
    if kind in (NodeKind.STATELESS, NodeKind.SOURCE):
        return _start_stateless(graph, node, positions, known, stored, deadlines, top)
    saved = _newest_feasible(stored.checkpoints, positions)
    if saved is None:
        return (
            f"node {node} has no checkpoint whose log reaches its children's positions "
            f"({dict(positions)})"
        )
    report = saved.report
    # A clean checkpoint has nothing of later epochs: steps with their rows are done again.
    after = ZERO if graph.is_clean(node) else report.stamp
    trim = _bind(graph, node, known, stored, max(top, report.stamp), after, report.completed)
    known.learn(report)
    targets = known.targets(node, after, report.completed, deadlines)
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
        settled=known.settled.get(node, -1),
    )


def _start_stateless(
    graph: CausalGraph,
    node: int,
    positions: Mapping[int, Position],
    known: Knowledge,
    stored: Stored,
    deadlines: Mapping[int, Stamp],
    top: Stamp,
) -> Start:
    # A source without children has nothing to do again.
    last = max((cut.epoch for cut in stored.cuts), default=-1)
    stamp = min((position.stamp for position in positions.values()), default=ZERO)
    if graph.is_clean(node):
        stamp = ZERO
    completed = min((position.epoch for position in positions.values()), default=last)
    trim = _bind(graph, node, known, stored, top, ZERO, completed)
    offset = ahead = 0
    begun = -1
    cuts = stored.cuts
    past = [cut for cut in cuts if cut.epoch <= completed]
    if graph.kinds[node] is NodeKind.SOURCE:
        handled = known.handled(node, origin(node), stamp)
        offset = max([handled[0] if handled else 0, *(cut.offset for cut in past)])
        read = [link for link in known.steps.get(node, {}).values() if link is not None]
        begun = max((link.epoch for link in read if link.node == origin(node)), default=-1)
        if stored.ahead[1] > max(last, completed):
            # What was read of an open epoch stays in it: those who skip it must not get it again.
            ahead, begun = stored.ahead[0], max(begun, stored.ahead[1])
        elif stored.ahead[1] > last:  # all its children start later
            offset, begun = max(offset, stored.ahead[0]), -1
    targets = known.targets(node, stamp, completed, deadlines)
    return Start(
        node,
        None,
        stamp,
        completed,
        {
            parent: Position(known.handled(node, parent, stamp, completed), completed)
            for parent in graph.parents[node]
        },
        positions,
        targets,
        known.taken(node, targets),
        max(top, trim),
        known.newest,
        trim,
        offset=offset,
        cuts=tuple(cut for cut in cuts if cut.epoch > completed),
        watermark_us=past[-1].watermark_us if past else None,
        begun=begun,
        ahead=ahead,
        settled=known.settled.get(node, -1),
    )


def _bind(
    graph: CausalGraph,
    node: int,
    known: Knowledge,
    stored: Stored,
    top: Stamp,
    after: Stamp,
    completed: int,
) -> Stamp:
    """Learn the determinants of steps that a node may have observed; the last one's stamp.

    It starts after an epoch that it has ``completed``.
    """
    if node not in graph.determined:
        return ZERO
    observed = known.observed(graph, node)
    ends = [diff for diff in stored.determinants if diff[1].node == COMPLETION]
    trim = max([top, *(diff[0].stamp for diff in ends if diff[1].epoch <= observed)])
    completed = max((d[1].epoch for d in ends if d[0].stamp <= trim), default=completed)
    for diff in stored.determinants:
        if after < diff[0].stamp <= trim:
            known.learn_diff(diff, completed)
    return trim


def _newest_feasible(
    checkpoints: tuple[Saved, ...], positions: Mapping[int, Position]
) -> Saved | None:
    return next((saved for saved in reversed(checkpoints) if _reaches(saved, positions)), None)


def _reaches(saved: Saved, positions: Mapping[int, Position]) -> bool:
    floors = saved.report.floors
    return all(floors[child].reaches(position) for child, position in positions.items())
