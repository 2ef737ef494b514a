"""Before a run: check the flow against its store and targets, and find where to continue."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.api.flow import Flow
from penstock.connectors.base import Sink
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.driver.frames import settle_frames
from penstock.engine.driver.recovery_place import check_kept, check_state
from penstock.engine.driver.shipping import driver_sinks
from penstock.engine.driver.targets import (
    check_targets,
    release_targets,
    settle_readers,
    sinks_of,
    take_targets,
)
from penstock.engine.settings import RunSettings
from penstock.engine.store.changed_flow import fit_store
from penstock.engine.store.description import describe
from penstock.engine.store.flow_store import FlowStore, StageRecord, user_name
from penstock.errors import SinkError
from penstock.operators.base import SourceOperator
from penstock.planning.causal_graph import causal_graph, check_loops
from penstock.planning.physical import PhysicalPlan
from penstock.planning.promises import notes_of
from penstock.planning.replica_regimes import not_replicated_lines

__all__ = ["PreparedRun", "open_store", "prepare_run"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedRun:
    """A run that may start: its store and its targets are its own."""

    flow: Flow
    plan: PhysicalPlan
    settings: RunSettings
    hosts: int
    store: FlowStore | None
    resume: int
    """The last epoch that every sink has."""
    base: int
    """The first free epoch."""
    flow_id: str | None


def prepare_run(
    flow: Flow,
    plan: PhysicalPlan,
    settings: RunSettings,
    hosts: int,
    store: FlowStore | None = None,
) -> PreparedRun:
    """Check the connectors, take the store, and find where to go on."""
    flow.guarantees(settings.guarantee)
    store = store or open_store(settings)
    try:
        if settings.progress != "tracked":
            check_loops(plan)
        check_state(plan, settings, store)
        if store is not None and plan.keeps_files:
            plan.keep_in(store.path, sync=True)
        settle_frames(plan, store)
        _check_connectors(plan)
        for name, driven in driver_sinks(plan).items():
            driven.record_in(None if store is None else store.delivered(name))
        flow_id = _begin(flow, plan, store, settings.acceptTargets)
        take_targets(flow, flow_id, plan, store, settings.acceptTargets)
    except BaseException:
        if store is not None:
            store.close()
        raise
    try:
        resume, base = _go_on(plan, settings, store)
        notes = not_replicated_lines(plan.not_replicated) + notes_of(plan, store is not None)
        if notes:
            log.warning("flow %r: %s", flow.name, "; ".join(notes))
    except BaseException:
        release_targets(plan)
        if store is not None:
            store.close()
        raise
    return PreparedRun(flow, plan, settings, hosts, store, resume, base, flow_id)


def _go_on(plan: PhysicalPlan, settings: RunSettings, store: FlowStore | None) -> tuple[int, int]:
    """Find where to go on, when store and targets are this run's; see :func:`prepare_run`."""
    _refuse_published(plan, store)
    settle_readers(plan, None if store is None else store.id)
    # From here on no process of an earlier run can publish; only now is it known what it did.
    for sink in sinks_of(plan).values():
        sink.prepare()
    resume, base = _resume_point(plan, store, settings.recovery == "none")
    if base > 0:
        check_kept(plan, settings, store)
    if store is not None and settings.recovery == "causal":
        together = settings.regime is not None and settings.regime.whole_flow
        described = describe(plan, causal_graph(plan), together)
        fit_store(store.storage, described, resume, settings.dropState)
    return resume, base


def open_store(settings: RunSettings) -> FlowStore | None:
    """The store at the ``checkpointLocation``, if there is one."""
    if settings.checkpointLocation is None:
        return None
    return FlowStore(settings.checkpointLocation)


def _check_connectors(plan: PhysicalPlan) -> None:
    for chain in plan.chains:
        for stage in chain.stages:
            if isinstance(stage.operator, SourceOperator):
                stage.operator.source.check()
            elif isinstance(stage.operator, Sink):
                stage.operator.check()


def _begin(
    flow: Flow, plan: PhysicalPlan, store: FlowStore | None, accept: Sequence[str]
) -> str | None:
    """Refuse the store of another flow; returns the flow's id, if it has a store."""
    check_targets(plan, accept)
    if store is None:
        return None
    return store.begin(flow.name, "1", _stage_records(plan), {*map(user_name, accept)})


def _refuse_published(plan: PhysicalPlan, store: FlowStore | None) -> None:
    """Refuse output of another run."""
    if store is not None and not store.fresh:
        return
    for name, sink in sinks_of(plan).items():
        epoch = sink.committed()
        if epoch is not None:
            raise SinkError(
                f"sink {name!r} already holds epochs up to {epoch} of an earlier run. Give "
                f"that run's checkpointLocation to go on with it, or {sink.afresh}",
                sink=name,
            )


def _resume_point(plan: PhysicalPlan, store: FlowStore | None, forgets: bool) -> tuple[int, int]:
    """The last epoch that every sink has, and the first that is free.

    A flow that ``forgets`` never goes back behind what its sinks have.
    """
    if store is None:
        return -1, 0
    reached, recorded = [], [-1]
    for name, sink in sinks_of(plan).items():
        known = [e for e in (sink.committed(), store.commits(name).last()) if e is not None]
        reached.append(max(known, default=-1))
    resume = min(reached)
    logs = [
        store.boundaries(chain.stages[0].name, shard)
        for chain in plan.chains
        if chain.is_source
        for shard in range(chain.shards)
    ]
    # The state of a stage may be as new as the last epoch of any source, published or not.
    reached += [e for one in logs for record in one.read() if (e := record["epoch"]) < EPOCH_END]
    for one in logs:
        taken = one.take_over(resume if forgets else None, reached=max(reached))
        recorded += [record["epoch"] for record in taken]
    return resume, max(*recorded, *reached) + 1


def _stage_records(plan: PhysicalPlan) -> dict[str, StageRecord]:
    """What must not change while the store is kept."""
    records = {}
    for chain in plan.chains:
        for stage in chain.stages:
            operator = stage.operator
            if isinstance(operator, SourceOperator):
                target = operator.source.target()
                records[stage.name] = StageRecord("source", chain.shards, target=target)
            elif isinstance(operator, Sink):
                records[stage.name] = StageRecord(operator.kind, target=operator.target())
    return records
