"""explain(): a flow as text, as the user wrote it and as it runs; see ``explain_svg`` for pictures.

Times are written with letters: ``(e, i, j)`` is epoch e, iteration i of the outer loop and j of the
inner one.  A path summary such as ``(e, i) -> (e, i+1)`` says what the shortest way from one node
to another does to a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.api.flow import Flow
from penstock.api.loops import Loop
from penstock.api.stage import Stage
from penstock.core.control.figures import NodeFigures
from penstock.core.order import minimal
from penstock.core.progress.marks import EPOCH_END
from penstock.core.progress.reachability import Reachability
from penstock.core.progress.summary import PathSummary
from penstock.core.time import CONVERGED
from penstock.operators.loop import TimeShift
from penstock.planning.explain_regimes import cascade_warnings
from penstock.planning.explain_svg import Picture
from penstock.planning.physical import Chain, Link, PhysicalPlan, physical_plan, route
from penstock.planning.promises import notes_of
from penstock.planning.replica_plan import replica_lines
from penstock.planning.replica_regimes import not_replicated_lines
from penstock.planning.tracking import graph_of

__all__ = ["draw", "explain", "explain_plan", "frontiers"]

LETTERS = "eijklmnop"
Frontiers = Mapping[int, str]
"""What may still happen at each chain, in words."""


def explain(flow: Flow, parallelism: int = 2) -> str:
    """The stages with their schemas, then the chains they are fused into, then what paths do."""
    lines = [f"Flow {flow.name}", "== Stages =="]
    for stage in flow.stages:
        margin = "  " * len(_around(stage))
        lines.append(margin + _stage_line(stage))
        for port, schema in enumerate(stage.outputs):
            columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
            lines.append(f"{margin}      out{port if len(stage.outputs) > 1 else ''}: [{columns}]")
    if any(stage.operator.sink for stage in flow.stages):
        plan = physical_plan(flow, parallelism)
        lines += ["", explain_plan(plan, {})]
        notes = notes_of(plan, restarts=True)
        if notes:
            lines += ["", "== Promises ==", *notes]
        warnings = cascade_warnings(plan)
        if warnings:
            lines += ["", "== Rollbacks may cascade ==", *warnings]
        if any(chain.loops for chain in plan.chains):
            lines += ["", "== Path summaries ==", *_summaries(plan)]
    return "\n".join(lines)


def _stage_line(stage: Stage) -> str:
    inputs = ", ".join(
        f"{source.stage.name}{f'.{source.port}' if source.port else ''} {route(source.exchange)}"
        for source in stage.inputs
    )
    about = stage.operator.describe()
    loops = _around(stage)
    return (
        f"({stage.index}) {stage.name}: {stage.operator.kind}"
        + (f"({about})" if about else "")
        + (f"  <- {inputs}" if inputs else "")
        + (f"  [in loop {' > '.join(loops)}]" if loops else "")
    )


def _around(stage: Stage) -> tuple[str, ...]:
    """The loops that a stage is drawn in: what leaves a loop is still within it."""
    return _names(_context(stage))


def _context(stage: Stage) -> Loop | None:
    if isinstance(stage.operator, TimeShift) and stage.operator.kind == "leave":
        return stage.inputs[0].stage.loop
    return stage.loop


def _names(loop: Loop | None) -> tuple[str, ...]:
    return () if loop is None else (*_names(loop.parent), loop.name)


# -- as it runs ------------------------------------------------------------------------------------


def explain_plan(
    plan: PhysicalPlan, placement: Mapping[int, int], moved: Frontiers | None = None
) -> str:
    """The chains (fused stages), their shards, hosts and frontiers, and the links between them."""
    lines = ["== Nodes =="]
    for chain in plan.chains:
        lines.append(_chain_line(chain, placement))
        lines += replica_lines(plan, chain, placement)
        if moved is not None and chain.index in moved:
            lines.append(f"      frontier {moved[chain.index]}")
        for link in plan.links_out_of(chain.index):
            target = plan.chains[link.target_chain]
            way = f"      -> [{target.index}] {target.name}  {route(link.exchange)}"
            lines.append(way + _crossing(link, chain))
    if plan.not_replicated:
        lines += ["", "== Not replicated ==", *not_replicated_lines(plan.not_replicated)]
    return "\n".join(lines)


def _chain_line(chain: Chain, placement: Mapping[int, int]) -> str:
    stages = " + ".join(stage.name for stage in chain.stages)
    hosts = sorted({placement[node] for node in chain.nodes if node in placement})
    where = " on the driver" if chain.on_driver else ""
    if hosts and not chain.on_driver:
        where = f" on host {', '.join(map(str, hosts))}"
    if chain.loops:
        where += f" in loop {' > '.join(chain.loops)}"
    plural = "s" if chain.shards > 1 else ""
    return f"[{chain.index}] {chain.name}: {chain.shards} node{plural}{where}: {stages}"


def _crossing(link: Link, source: Chain) -> str:
    """What a link does to times, in words and letters."""
    if not link.shifts:
        return ""
    summary = PathSummary.identity(len(source.loops))
    words = []
    for shift in link.shifts:
        depth = summary.depth
        if shift.kind == "enter":
            summary = summary.then(PathSummary.ingress(depth))
        elif shift.kind == "leave":
            summary = summary.then(PathSummary.egress(depth))
        else:
            summary = summary.then(PathSummary.feedback(depth))
        bound = "" if shift.iterations_max is None else f", at most {shift.iterations_max}"
        name = {"enter": "into", "leave": "out of", "again": "feedback of"}[shift.kind]
        words.append(f"{name} loop {shift.loop}{bound}")
    return f"  {'; '.join(words)}: {_letters(len(source.loops))} -> {_result(summary)}"


def _summaries(plan: PhysicalPlan) -> Iterable[str]:
    """The minimal summaries between the chains that are in loops or next to one."""
    graph = graph_of(plan, plan.chains)
    reach = Reachability(graph.graph)
    for source in plan.chains:
        ways: dict[str, list[str]] = {}
        for target in plan.chains:
            if not (source.loops or target.loops):
                continue
            start, end = graph.chains[source.index], graph.chains[target.index]
            found: Iterable[PathSummary] = reach.summaries(start, end)
            if source is target:
                found = minimal(reach.round_trips(start))
            ways.setdefault(" or ".join(map(_result, found)), []).append(target.name)
        ways.pop("", None)
        for way, targets in ways.items():
            yield f"{source.name} {_letters(len(source.loops))} -> {way} at {', '.join(targets)}"


def _letters(depth: int) -> str:
    return f"({', '.join(LETTERS[: depth + 1])})"


def _result(summary: PathSummary) -> str:
    parts = list(LETTERS[: summary.kept + 1])
    if summary.increment:
        parts[-1] += f"+{summary.increment}"
    return f"({', '.join([*parts, *map(str, summary.appended)])})"


def frontiers(
    plan: PhysicalPlan,
    figures: Mapping[int, NodeFigures],
    tracked: Mapping[int, Iterable[tuple[int, ...]]] | None,
) -> dict[int, str]:
    """The earliest times that may still happen at each chain: counted, or the next epoch."""
    result = {}
    for chain in plan.chains:
        times = None if tracked is None else tracked.get(chain.index)
        if times is None:
            known = [figures[node].epoch for node in chain.nodes if node in figures]
            epoch = min(known, default=-1)
            times = [] if epoch >= EPOCH_END else [(epoch + 1,)]
        words = [f"({', '.join(map(_coordinate, time))})" for time in sorted(times)]
        result[chain.index] = ", ".join(words) or "end"
    return result


def _coordinate(value: int) -> str:
    return "converged" if value >= CONVERGED else str(value)


# -- as a picture ----------------------------------------------------------------------------------


def draw(
    flow: Flow, path: str, plan: PhysicalPlan | None = None, moved: Frontiers | None = None
) -> None:
    """Draw a flow into an SVG file; with a plan and frontiers, these as well."""
    at: dict[str, str] = {}
    if plan is not None and moved is not None:
        for chain in plan.chains:
            at.update((stage.name, moved[chain.index]) for stage in chain.stages)
    picture = Picture(flow.name)
    for loop in flow._loops:
        depth = len(_names(loop))
        bound = "" if loop.maxIterations is None else f", at most {loop.maxIterations}"
        picture.group(loop.name, loop.parent.name if loop.parent else None, _letters(depth) + bound)
    for stage in flow.stages:
        context = _context(stage)
        about = stage.operator.describe()
        picture.box(
            stage.index,
            stage.name,
            f"{stage.operator.kind}({about})" if about else stage.operator.kind,
            f"frontier {at[stage.name]}" if stage.name in at else "",
            context.name if context else None,
            small=isinstance(stage.operator, TimeShift),
        )
    for stage in flow.stages:
        back = stage.operator.kind == "again"
        for source in stage.inputs:
            label = route(source.exchange)
            if back and stage.loop is not None:
                inner = PathSummary.feedback(len(_names(stage.loop)))
                label = f"feedback {_letters(inner.depth)} -> {_result(inner)}"
            picture.arrow(
                source.stage.index, stage.index, "" if label == "forward" else label, back
            )
    Path(path).write_text(picture.svg(), encoding="utf-8")
