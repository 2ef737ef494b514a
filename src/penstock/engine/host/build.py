"""Building a node in its host from the plan."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from penstock.connectors.base import Reader, Source, SourceContext
from penstock.core.control.assignment import Assignment
from penstock.core.node.node import NodeMachine
from penstock.core.node.options import Outlet, Wiring
from penstock.core.node.tracking import NodeTracking
from penstock.engine.host.chain import ChainRunner
from penstock.engine.host.host import Host
from penstock.engine.host.node import Machine, NodeRunner, PlainRunner
from penstock.engine.host.source import SourceDriver
from penstock.engine.store.logs import ResumePoint
from penstock.errors import PenstockError, SourceError
from penstock.planning.physical import PhysicalPlan

__all__ = ["add_node", "inputs_of", "opened", "source_context", "wired", "wiring_of"]

R = TypeVar("R", bound=NodeRunner)


def inputs_of(plan: PhysicalPlan, node: int) -> dict[int, tuple[int, ...]]:
    """The senders on each link into a node."""
    chain = plan.chain_of_node(node)
    return {link.index: plan.senders(link, node) for link in plan.links_into(chain.index)}


def wiring_of(
    plan: PhysicalPlan,
    node: int,
    tracking: NodeTracking | None = None,
    incarnation: int = 0,
    incarnations: Mapping[int, int] | None = None,
) -> Wiring:
    """One incarnation of a node, with the links into it and out of it."""
    outlets = tuple(
        Outlet(
            link.index,
            plan.targets(link, node),
            marked=tracking is None or link.index not in tracking.links,
        )
        for link in plan.links_out_of(plan.chain_of_node(node).index)
    )
    return Wiring(node, inputs_of(plan, node), outlets, incarnation, incarnations or {})


def wired(plan: PhysicalPlan, host: Host, machine: Machine, make: Callable[..., R]) -> R:
    """A runner for a machine, with the vertices of its chain, not open yet."""
    node = machine.node
    chain = plan.chain_of_node(node)
    # Inside a loop no node waits for credit: two nodes could wait for each other.
    targets = {
        target
        for link in plan.links_out_of(chain.index)
        if not chain.loops or chain.loops[0] not in plan.chains[link.target_chain].loops
        for target in plan.targets(link, node)
    }
    runner = make(
        node,
        plan.node_name(node),
        machine,
        ChainRunner(
            plan,
            chain,
            node,
            lambda link, parts, at: runner.produce(link, parts, at),
            machine.incarnation,
        ),
        host,
        tuple(sorted(targets)),
        {link.index: (link.target_port, link.schema) for link in plan.links_into(chain.index)},
        tuple(chain.sinks),
        bool(chain.loops),
    )
    if machine.counts is not None:
        runner.chain.on_asked = machine.counts.asked
        runner.chain.on_notified = machine.counts.notified
    return runner


def add_node(
    host: Host,
    plan: PhysicalPlan,
    node: int,
    source: Callable[[PlainRunner], SourceDriver] | None = None,
    completed: int = -1,
    tracking: NodeTracking | None = None,
) -> PlainRunner:
    """Build a node without recovery, open its vertices, and let the host run it."""
    machine = NodeMachine(wiring_of(plan, node, tracking), completed, tracking)
    runner = wired(plan, host, machine, PlainRunner)
    runner.chain.open()
    if source is not None:
        runner.source = source(runner)
    host.add(runner)
    return runner


def source_context(
    run: Assignment, shard: int, shards: int, resume: ResumePoint, recorded: Any
) -> SourceContext:
    """What a reader of a shard is opened with; ``recorded`` is the newest position there is."""
    return SourceContext(
        shard,
        shards,
        resume.position,
        resume.journal,
        run.sources.available_now,
        run.sources.started_us,
        recorded=recorded,
        resumable=run.store is not None,
    )


def opened(source: Source, context: SourceContext, stage: str, node: str) -> Reader:
    """A source's reader; an error names the source and the node."""
    try:
        return source.open(replace(context, stage=stage))
    except PenstockError as error:
        error.parameters.setdefault("stage", stage)
        error.parameters.setdefault("node", node)
        raise
    except Exception as error:
        raise SourceError(
            f"source {stage!r}, node {node}: {type(error).__name__}: {error}",
            stage=stage,
            node=node,
            traceback=traceback.format_exc(),
        ) from error
