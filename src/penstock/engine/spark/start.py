"""Starting a flow: everything that can be refused is refused here, before any host is launched."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from penstock.causal_graph import causal_graph
from penstock.connectors.base import Sink
from penstock.engine.changed_flow import fit_store
from penstock.engine.description import describe
from penstock.engine.settings import RunSettings
from penstock.engine.spark.frames import check_frames, settle_frames
from penstock.engine.spark.launch import check_session, hosts_that_fit
from penstock.engine.spark.query import FlowQuery
from penstock.engine.store import FlowStore, StageRecord
from penstock.errors import SettingsError, SinkError
from penstock.flow import Flow
from penstock.operators.base import SourceOperator
from penstock.physical import PhysicalPlan, physical_plan

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["prepare_run", "start"]

log = logging.getLogger(__name__)


def start(flow: Flow, spark: SparkSession, **options: Any) -> FlowQuery:
    """Run a flow on a SparkSession and return its handle, which reads like a StreamingQuery.

    Options:

    hosts
        How many Spark tasks run the flow's nodes. By default as many as there are free task slots
        (one is left for DataFrame jobs) and nodes.
    parallelism
        How many shards a stage gets unless it says otherwise; by default one per host.
    checkpointLocation
        A place for what must survive a restart: offsets of epochs, commits of sinks, state. A flow
        started again with the same one goes on where it was. A directory, an address that pyarrow
        knows (``s3://bucket/folder``, ``hdfs://…``), or a ``pyarrow.fs.FileSystem``, such as a
        ``SubTreeFileSystem``, whose root is the place. ``persist``, Spark stages and tables need a
        directory.
    availableNow
        End when the input that exists at the start is used up.
    epochInterval
        How often sources end an epoch (they also do at the end of each window).
    drainTimeout
        How long ``stop()`` lets rows that are under way reach the sinks.
    pingInterval, pingTimeout
        How often hosts ask each other whether they live, and how long one may be silent before
        others take its nodes; where answers come late now and then, up to four times as long.
        With ``pingInterval=0`` nobody asks. A process that ends is noticed at once in any case.
    takeover
        Who takes the nodes of a lost host when no spare is ready: "least-loaded" (the default), the
        "next" in the ring, or all hosts ("split").
    reinstate
        Whether nodes go back to the host that comes in the place of the lost one (the default).
    hostTimeout, startTimeout, lease
        How long a host may be silent for its driver, a start may take, a host lives without its
        driver.
    windowBytes, rowsMax
        Bytes that may be under way to a node from each host; rows in a source's batch.
    linger
        How long rows gather at a source before they are read, unless a window is about to end.
    recovery
        "causal": when a host is lost only its nodes start again, from what their neighbours know
        (the default); "none": a lost host ends the flow; "purge": everything is rebuilt from the
        sources (for comparison).
    guarantee
        What is promised of every row in sinks that say nothing else: "exactly-once" (the default),
        "at-least-once" or "at-most-once"; see ``Flow.setGuarantee``.
    checkpointInterval
        How often a node with state saves it, at most (large states are saved less often).
    maxOverhead
        The share of time that checkpoints and logs may take, summed over operators, such as 0.05:
        the flow then measures itself and plans how often to checkpoint, and plans again when
        something has changed. ``planInterval`` says how often it looks.
    rollbackWindow
        How far back ``rollback`` can go: so long checkpoints, logs and input are kept, beyond what
        recovery itself needs.
    dropState
        Names of stages whose state in the ``checkpointLocation`` is not wanted any more, because
        the flow has changed: they begin without.
    standby
        Hosts that are kept ready without nodes, to take over a lost one's at once. "active": one
        that also keeps up with the states of all nodes, so that taking over needs no restore;
        states are then saved every 100 ms, if that takes at most 5 % of the time.
    storeTimeout
        How long the flow waits when its store, or the folder of a sink, cannot be written to: it
        commits nothing meanwhile and goes on by itself. After that it ends, and says why.
    logBytes
        Memory for what a node has sent and may have to send again; beyond that it goes to disk.
    logs
        "references" to what was sent are kept; "copies", for comparison, copies it first.
    progress
        How the ends of epochs become known outside loops: "marks" travel in band (the default),
        "tracked" counts every message, as is done inside loops.
    tuning
        A :class:`penstock.engine.tuning.Tuning`: what keeps hosts quick.
    progressInterval
        How often ``lastProgress`` is renewed and listeners are called.
    """
    settings = RunSettings.checked(options)
    context = check_session(spark)
    store = _open_store(settings)
    try:
        hosts, plan = _plan(flow, context, settings, store)
        check_frames(context, plan, hosts + settings.spares, store)
        for module in flow.modules:
            cloudpickle.register_pickle_by_value(module)
        _check_shippable(plan)
        store, resume, base, flow_id = prepare_run(flow, plan, settings, store)
    except BaseException:
        if store is not None:
            store.close()
        raise
    query = FlowQuery(
        spark, flow, plan, settings, hosts, store, resume, base, flow_id, _address(context)
    )
    query._start()
    return query


def prepare_run(
    flow: Flow, plan: PhysicalPlan, settings: RunSettings, store: FlowStore | None = None
) -> tuple[FlowStore | None, int, int, str | None]:
    """Check the connectors, take the store, and find where to go on.

    Gives the store, the last epoch that every sink has, the first free epoch, and the flow's id.
    """
    flow.guarantees(settings.guarantee)
    store = store or _open_store(settings)
    try:
        if store is not None and plan.keeps_files:
            plan.keep_in(store.path, sync=True)
        settle_frames(plan, store)
        _check_connectors(plan)
        flow_id = _claim(flow, plan, store)
        # From here on no process of an earlier run can publish; only now is it known what it did.
        for sink in _sinks(plan).values():
            sink.prepare()
        resume, base = _resume_point(plan, store, settings.recovery == "none")
        if store is not None and settings.recovery == "causal":
            together = settings.regime is not None and settings.regime.whole_flow
            described = describe(plan, causal_graph(plan), together)
            fit_store(store.storage, described, resume, settings.dropState)
    except BaseException:
        if store is not None:
            store.close()
        raise
    return store, resume, base, flow_id


def _open_store(settings: RunSettings) -> FlowStore | None:
    if settings.checkpointLocation is None:
        return None
    return FlowStore(settings.checkpointLocation)


def _plan(
    flow: Flow, context: SparkContext, settings: RunSettings, store: FlowStore | None
) -> tuple[int, PhysicalPlan]:
    """How many hosts, and the plan for them."""
    recorded = {} if store is None else store.recorded_shards()
    if settings.hosts is None and settings.parallelism is None:
        fit = max(1, hosts_that_fit(context, None, useful=1 << 30) - settings.spares)
        plan = physical_plan(
            flow, max(1, min(fit, 8)), recorded, settings.regime, settings.guarantee
        )
        nodes = sum(chain.shards for chain in plan.chains if not chain.on_driver)
        return max(1, min(fit, nodes)), plan
    if settings.hosts is None:
        plan = physical_plan(
            flow, settings.parallelism or 1, recorded, settings.regime, settings.guarantee
        )
        nodes = sum(chain.shards for chain in plan.chains if not chain.on_driver)
        fit = hosts_that_fit(context, None, useful=max(1, nodes) + settings.spares)
        return max(1, fit - settings.spares), plan
    spare = settings.spares
    hosts = hosts_that_fit(context, settings.hosts + spare, useful=settings.hosts + spare) - spare
    return hosts, physical_plan(
        flow, settings.parallelism or hosts, recorded, settings.regime, settings.guarantee
    )


def _check_shippable(plan: PhysicalPlan) -> None:
    """Name the stage whose function cannot travel, instead of failing in a Spark job."""
    for chain in plan.chains:
        if chain.on_driver:
            continue
        for stage in chain.stages:
            try:
                cloudpickle.dumps(stage.operator)
            except Exception as error:
                raise SettingsError(
                    f"stage {stage.name!r} cannot be sent to the hosts: "
                    f"{type(error).__name__}: {error}. A function must not hold on to files, "
                    "locks, sockets or the SparkSession; open those inside it",
                    stage=stage.name,
                ) from error


def _check_connectors(plan: PhysicalPlan) -> None:
    for chain in plan.chains:
        for stage in chain.stages:
            if isinstance(stage.operator, SourceOperator):
                stage.operator.source.check()
            elif isinstance(stage.operator, Sink):
                stage.operator.check()


def _sinks(plan: PhysicalPlan) -> dict[str, Sink]:
    return {
        stage.name: stage.operator
        for chain in plan.chains
        for stage in chain.stages
        if isinstance(stage.operator, Sink)
    }


def _claim(flow: Flow, plan: PhysicalPlan, store: FlowStore | None) -> str | None:
    """Refuse a store or an output of somebody else's; the flow's id, if it has a store."""
    flow_id = None
    if store is not None:
        flow_id = store.begin(flow.name, "1", _stage_records(plan))
    if store is None or store.fresh:
        for name, sink in _sinks(plan).items():
            epoch = sink.committed()
            if epoch is not None:
                raise SinkError(
                    f"sink {name!r} already holds epochs up to {epoch} of an earlier run. Give "
                    "that run's checkpointLocation to go on with it, or an empty output folder",
                    sink=name,
                )
    return flow_id


def _resume_point(plan: PhysicalPlan, store: FlowStore | None, forgets: bool) -> tuple[int, int]:
    """The last epoch that every sink has, and the first that is free.

    A flow that ``forgets`` never goes back behind what its sinks have.
    """
    if store is None:
        return -1, 0
    reached, recorded = [], [-1]
    for name, sink in _sinks(plan).items():
        known = [e for e in (sink.committed(), store.commits(name).last()) if e is not None]
        reached.append(max(known, default=-1))
    resume = min(reached)
    for chain in plan.chains:
        if chain.is_source:
            for shard in range(chain.shards):
                boundaries = store.boundaries(chain.stages[0].name, shard)
                taken = boundaries.take_over(resume if forgets else None, reached=max(reached))
                recorded += [record["epoch"] for record in taken]
    return resume, max(*recorded, *reached) + 1


def _stage_records(plan: PhysicalPlan) -> dict[str, StageRecord]:
    """What must not change while the store is kept."""
    records = {}
    for chain in plan.chains:
        for stage in chain.stages:
            operator = stage.operator
            if isinstance(operator, SourceOperator):
                records[stage.name] = StageRecord("source", chain.shards)
            elif operator.sink:
                records[stage.name] = StageRecord(operator.kind)
    return records


def _address(context: SparkContext) -> tuple[str, str]:
    """Where the driver listens, and the name under which hosts reach it."""
    conf = context.getConf()
    if context.master.startswith("local"):
        return "127.0.0.1", "127.0.0.1"
    public = conf.get("spark.driver.host") or "127.0.0.1"
    return conf.get("spark.driver.bindAddress") or public, public
