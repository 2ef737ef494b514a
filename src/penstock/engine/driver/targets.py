"""Where sinks publish: each target has one writer, and a flow goes on only where it has written."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable

from penstock.api.flow import Flow
from penstock.connectors.as_of import AsOf, pin_name
from penstock.connectors.base import Sink
from penstock.connectors.database import Database
from penstock.connectors.ownership import Owner
from penstock.connectors.table import PublishedTable, TableWrite
from penstock.connectors.table_pins import TEMPORARY, drop_pins
from penstock.engine.store.flow_store import FlowStore, user_name
from penstock.errors import SettingsError, SinkError
from penstock.planning.physical import PhysicalPlan

__all__ = [
    "check_targets",
    "release_targets",
    "settle_readers",
    "sinks_of",
    "take_targets",
]


def sinks_of(plan: PhysicalPlan) -> dict[str, Sink]:
    """The sinks of a plan, by the names of their stages."""
    return {
        stage.name: stage.operator
        for chain in plan.chains
        for stage in chain.stages
        if isinstance(stage.operator, Sink)
    }


def check_targets(plan: PhysicalPlan, accept: Collection[str]) -> None:
    """Refuse two sinks with one target: each would take the other's epochs for its own."""
    seen: dict[str, str] = {}
    for name, sink in sinks_of(plan).items():
        key = sink.writes_as()
        if key is None:
            continue
        key = os.path.realpath(key) if os.path.isabs(key) else key
        if key in seen:
            hint = ", or give one of them writer=..." if isinstance(sink, Database) else ""
            raise SinkError(
                f"sinks {user_name(seen[key])!r} and {user_name(name)!r} both write to {key}: one "
                f"would take the other's epochs for its own, and its rows would be lost. Join the "
                f"streams before with union, give each a target of its own{hint}",
                sinks=[seen[key], name],
                target=key,
            )
        seen[key] = name
    known = {user_name(stage.name) for chain in plan.chains for stage in chain.stages}
    for name in accept:
        if user_name(name) not in known:
            raise SettingsError(f"acceptTargets: there is no stage {name!r}")


def release_targets(plan: PhysicalPlan) -> None:
    """Let other runs write where this one did."""
    for sink in sinks_of(plan).values():
        sink.release()
    _release_readers(plan)


def settle_readers(plan: PhysicalPlan, flow_id: str | None) -> None:
    """Give the stages that look up published tables their names there; forget old ones."""
    reader = flow_id or f"{TEMPORARY}{uuid.uuid4().hex}"
    stages = [(chain, stage) for chain in plan.chains for stage in chain.stages]
    kept = set()
    tables: dict[str, PublishedTable] = {}
    for chain, stage in stages:
        operator = stage.operator
        if isinstance(operator, AsOf):
            operator.reader = reader
            kept |= {pin_name(reader, stage.name, shard) for shard in range(chain.shards)}
            tables |= {str(t.folder): t for t in operator.tables if t.placed}
        elif isinstance(operator, TableWrite) and operator.table.placed:
            tables[str(operator.table.folder)] = operator.table
    for table in tables.values():
        drop_pins(table.folder, reader, kept)


def _release_readers(plan: PhysicalPlan) -> None:
    for chain in plan.chains:
        for stage in chain.stages:
            operator = stage.operator
            if isinstance(operator, AsOf) and (operator.reader or "").startswith(TEMPORARY):
                for table in operator.tables:
                    if table.placed and operator.reader is not None:
                        drop_pins(table.folder, operator.reader)


def take_targets(
    flow: Flow,
    flow_id: str | None,
    plan: PhysicalPlan,
    store: FlowStore | None,
    accept: Collection[str],
) -> None:
    """Take the targets of the sinks for this run; refuse those of other flows."""
    owner = Owner.here(flow.name, flow_id)
    mine: list[Sink] = []
    try:
        for name, sink in sinks_of(plan).items():
            if sink.target() is None:
                continue
            before = sink.owner()
            sink.take(owner)
            mine.append(sink)
            if store is not None and not store.fresh:
                _check_mark(name, sink, before, owner, store, map(user_name, accept))
    except BaseException:
        for sink in mine:
            sink.release()
        raise


def _check_mark(
    name: str,
    sink: Sink,
    before: Owner | None,
    owner: Owner,
    store: FlowStore,
    accept: Iterable[str],
) -> None:
    """Refuse a target that is not the one this flow has published to."""
    marked = before is not None and before.is_of(owner)
    shown = user_name(name)
    if before is not None and not marked and sink.committed() is not None:
        raise SinkError(
            f"sink {shown!r}: {sink.target()} holds epochs of another flow by now: {before}. Give "
            "each flow a target of its own",
            sink=name,
        )
    reached = store.commits(name).last()
    if marked or reached is None or store.targets.get(name) is None or shown in accept:
        return
    raise SinkError(
        f"sink {shown!r}: {sink.target()} was deleted, emptied or replaced: this flow had "
        f"published epochs up to {reached} there, and nothing of it bears the flow's mark. Put it "
        "back from a copy; or begin anew with a new checkpointLocation; or, if what was published "
        f"is not needed, go on with acceptTargets=[{shown!r}]",
        sink=name,
        epoch=reached,
    )
