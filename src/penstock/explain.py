"""explain(): a flow as text, as the user wrote it and as it runs."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.flow import Flow
from penstock.physical import PhysicalPlan, physical_plan, route
from penstock.stage import Stage

__all__ = ["explain", "explain_plan"]


def explain(flow: Flow, parallelism: int = 2) -> str:
    """The stages with their schemas, then the chains they are fused into."""
    lines = [f"Flow {flow.name}", "== Stages =="]
    for stage in flow.stages:
        lines.append(_stage_line(stage))
        for port, schema in enumerate(stage.outputs):
            columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
            lines.append(f"      out{port if len(stage.outputs) > 1 else ''}: [{columns}]")
    if any(stage.operator.sink for stage in flow.stages):
        lines += ["", explain_plan(physical_plan(flow, parallelism), {})]
    return "\n".join(lines)


def _stage_line(stage: Stage) -> str:
    inputs = ", ".join(
        f"{source.stage.name}{f'.{source.port}' if source.port else ''} {route(source.exchange)}"
        for source in stage.inputs
    )
    about = stage.operator.describe()
    return (
        f"({stage.index}) {stage.name}: {stage.operator.kind}"
        + (f"({about})" if about else "")
        + (f"  <- {inputs}" if inputs else "")
    )


def explain_plan(plan: PhysicalPlan, placement: Mapping[int, int]) -> str:
    """The chains (fused stages), their shards and hosts, and the links between them."""
    lines = ["== Nodes =="]
    for chain in plan.chains:
        stages = " + ".join(stage.name for stage in chain.stages)
        hosts = sorted({placement[node] for node in chain.nodes if node in placement})
        where = " on the driver" if chain.on_driver else ""
        if hosts and not chain.on_driver:
            where = f" on host {', '.join(map(str, hosts))}"
        plural = "s" if chain.shards > 1 else ""
        lines.append(f"[{chain.index}] {chain.name}: {chain.shards} node{plural}{where}: {stages}")
        for link in plan.links_out_of(chain.index):
            target = plan.chains[link.target_chain]
            lines.append(f"      -> [{target.index}] {target.name}  {route(link.exchange)}")
    return "\n".join(lines)
