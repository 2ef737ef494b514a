"""Starting a flow: everything that can be refused is refused here, before any host is launched."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Unpack

from pyspark import cloudpickle

from penstock.api.flow import Flow
from penstock.api.start_options import StartOptions
from penstock.engine.driver.prepare import open_store, prepare_run
from penstock.engine.driver.query import FlowQuery
from penstock.engine.settings import RunSettings
from penstock.engine.spark.frames import check_frames
from penstock.engine.spark.launch import check_session, hosts_that_fit
from penstock.engine.spark.launcher import SparkLauncher
from penstock.engine.store.flow_store import FlowStore
from penstock.errors import SettingsError
from penstock.planning.physical import PhysicalPlan, physical_plan

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["start"]

log = logging.getLogger(__name__)


def start(flow: Flow, spark: SparkSession, **options: Unpack[StartOptions]) -> FlowQuery:
    """Run a flow on a SparkSession and return its handle."""
    settings = RunSettings.checked({**options})
    context = check_session(spark)
    store = open_store(settings)
    try:
        hosts, plan = _plan(flow, context, settings, store)
        check_frames(context, plan, hosts + settings.spares, store)
        for module in flow.modules:
            cloudpickle.register_pickle_by_value(module)
        _check_shippable(plan)
        run = prepare_run(flow, plan, settings, hosts, store)
    except BaseException:
        if store is not None:
            store.close()
        raise
    query = FlowQuery(SparkLauncher(spark), run, _address(context))
    try:
        query._start()
    except KeyboardInterrupt:
        query.stop()  # before the session goes, which the hosts would be launched in again
        raise
    return query


def _plan(
    flow: Flow, context: SparkContext, settings: RunSettings, store: FlowStore | None
) -> tuple[int, PhysicalPlan]:
    """How many hosts, and the plan for them."""
    recorded = {} if store is None else store.recorded_shards()
    if settings.hosts is None and settings.parallelism is None:
        fit = max(1, hosts_that_fit(context, None, useful=1 << 30) - settings.spares)
        plan = _planned(flow, max(1, min(fit, 8)), recorded, settings)
        nodes = sum(chain.shards for chain in plan.chains if not chain.on_driver)
        return max(1, min(fit, nodes)), plan
    if settings.hosts is None:
        plan = _planned(flow, settings.parallelism or 1, recorded, settings)
        nodes = sum(chain.shards for chain in plan.chains if not chain.on_driver)
        fit = hosts_that_fit(context, None, useful=max(1, nodes) + settings.spares)
        return max(1, fit - settings.spares), plan
    spare = settings.spares
    hosts = hosts_that_fit(context, settings.hosts + spare, useful=settings.hosts + spare) - spare
    return hosts, _planned(flow, settings.parallelism or hosts, recorded, settings)


def _planned(
    flow: Flow, parallelism: int, recorded: dict[str, int] | None, settings: RunSettings
) -> PhysicalPlan:
    return physical_plan(
        flow, parallelism, recorded, settings.regime, settings.guarantee, settings.onError
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


def _address(context: SparkContext) -> tuple[str, str]:
    """Where the driver listens, and the name under which hosts reach it."""
    conf = context.getConf()
    if context.master.startswith("local"):
        return "127.0.0.1", "127.0.0.1"
    public = conf.get("spark.driver.host") or "127.0.0.1"
    return conf.get("spark.driver.bindAddress") or public, public
