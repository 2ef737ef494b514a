"""What a host does before it has anything to do, so that its first rows are not slow.

The first call of many a kernel costs milliseconds: modules are loaded, functions looked up.  A host
that stands by therefore runs the chains of the plan that are made of the library's own stages once,
with a few rows that go nowhere.  No function of the user's is called.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from penstock.core.time import Time
from penstock.engine.host.chain import ChainRunner
from penstock.operators.aggregate import RunningAggregate, RunningCombine, RunningMerge
from penstock.operators.base import Operator
from penstock.operators.distinct import Distinct
from penstock.operators.filter import Filter
from penstock.operators.join import Join
from penstock.operators.key_by import KeyBy
from penstock.operators.project import Select, WithColumn
from penstock.operators.union import Union
from penstock.planning.physical import Chain, PhysicalPlan

__all__ = ["warm_up"]

EPOCHS = 3
_OURS: tuple[type[Operator], ...] = (
    Distinct,
    Filter,
    Join,
    KeyBy,
    Select,
    WithColumn,
    RunningAggregate,
    RunningCombine,
    RunningMerge,
    Union,
)


def warm_up(plan: PhysicalPlan) -> None:
    """Make every kind of vertex once, and let those that are only ours work on a few rows."""
    for chain in plan.chains:
        if chain.on_driver:
            continue
        for stage in chain.stages:
            with suppress(Exception):  # a real one that fails will say so
                stage.operator.vertex()
        if plan.links_into(chain.index) and all(
            isinstance(stage.operator, _OURS) for stage in chain.stages
        ):
            with suppress(Exception):
                _work(plan, chain)


def _work(plan: PhysicalPlan, chain: Chain) -> None:
    runner = ChainRunner(plan, chain, chain.first_node, lambda link, parts, at: None)
    runner.open()
    for epoch in range(EPOCHS):
        for link in plan.links_into(chain.index):
            runner.deliver(link.target_port, _rows(link.schema), Time.root(epoch))
        runner.complete(epoch, None)
    runner.close()


def _rows(schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        try:
            columns.append(pa.array([0, 1]).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            columns.append(pa.nulls(2, field.type))
    return pa.record_batch(columns, schema=schema)
