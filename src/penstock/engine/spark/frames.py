"""The Spark jobs of stages that work on DataFrames.

A job runs in a thread of its own, in a FAIR pool of its own and under a tag, so that it takes turns
with other jobs and can be cancelled.  It needs a task slot that no host occupies.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.connectors.spark_folder import Range
from penstock.connectors.spark_stage import SparkWork
from penstock.engine.driver.frames import spark_works
from penstock.engine.spark.launch import awaited_slots
from penstock.engine.store.flow_store import FlowStore
from penstock.errors import SchemaError, SettingsError, SlotsError
from penstock.planning.physical import PhysicalPlan

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["SparkJob", "check_frames"]

log = logging.getLogger(__name__)


def check_frames(
    context: SparkContext, plan: PhysicalPlan, hosts: int, store: FlowStore | None
) -> None:
    """Refuse a session in which jobs would have no task slot, or no files to share with hosts."""
    works = spark_works(plan)
    if not works:
        return
    if store is None and not context.master.startswith("local"):
        raise SettingsError(
            f"stage {', '.join(map(repr, works))} runs Spark jobs: give a checkpointLocation that "
            "the driver and the executors share"
        )
    total, free = awaited_slots(context, hosts + 1)
    if hosts + 1 > free:
        names = ", ".join(map(repr, works))
        raise SlotsError(
            f"stage {names} runs Spark jobs, which need a task slot that no host occupies: the "
            f"flow takes {hosts} of the session's {free} free slots ({total} in all); ask for "
            f"fewer hosts, or use a master with more slots, such as local[{hosts + 2}]",
            hosts=hosts,
            total=total,
            free=free,
        )
    mode = context.getConf().get("spark.scheduler.mode", "FIFO")
    if mode != "FAIR":
        log.warning(
            "spark.scheduler.mode is %s: while a job of stage %s runs, a host that was lost may "
            "wait for it; make the session with spark.scheduler.mode=FAIR",
            mode,
            ", ".join(works),
        )


class SparkJob:
    """Calls a stage's function with a DataFrame, and writes the one that it returns."""

    def __init__(self, spark: SparkSession, flow: str, stage: str, work: SparkWork) -> None:
        self._spark = spark
        self._stage = stage
        self._work = work
        self._pool = f"penstock-{flow}-{stage}"
        self._tag = f"penstock-spark-{uuid.uuid4().hex[:12]}"

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """A thread whose Spark settings are its own."""
        thread: threading.Thread = InheritableThread(target=target, name=name)
        return thread

    def begin(self) -> None:
        """Take a pool and a tag, in the thread of the jobs."""
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", self._pool)
        context.addJobTag(self._tag)

    def run(self, epochs: Range, rows: Path, result: Path) -> None:
        """One attempt."""
        work = self._work
        self._spark.sparkContext.setLocalProperty(
            "spark.job.description",
            f"Penstock stage {self._stage}, epochs {epochs.first} to {epochs.last}",
        )
        frame = self._frame(rows)
        made = work.func(frame, epochs.last) if work.takes_epoch else work.func(frame)
        checked = conformed(made, work, self._stage)
        checked.write.mode("overwrite").parquet(result.as_uri())

    def merge(self, rows: Path, merged: Path) -> None:
        """Rewrite rows that later calls are given again."""
        self._frame(rows).coalesce(1).write.parquet(merged.as_uri())

    def _frame(self, rows: Path) -> DataFrame:
        reader = self._spark.read
        if self._work.input_schema is not None:
            try:
                reader = reader.schema(from_arrow_schema(self._work.input_schema))
            except PySparkException:
                log.debug("stage %r: Spark finds the types of its rows itself", self._stage)
        return reader.parquet(rows.as_uri())

    def cancel(self) -> None:
        """End its jobs."""
        context = self._spark.sparkContext
        if context._jsc is not None:  # else the session was stopped, and the jobs with it
            context.cancelJobsWithTag(self._tag)


def conformed(made: Any, work: SparkWork, stage: str) -> DataFrame:
    """The columns that the stage's schema names, in its order; refuses what does not fit."""
    where = f"stage {stage!r}: {work.func_name}"
    if not isinstance(made, DataFrame):
        raise SchemaError(f"{where} returned {type(made).__name__}; it must return a DataFrame")
    wanted = from_arrow_schema(work.schema)
    found = {field.name: field.dataType for field in made.schema.fields}
    for field in wanted.fields:
        if field.name not in found:
            raise SchemaError(
                f"{where} returned no column {field.name!r}; it returned [{', '.join(found)}]",
                column=field.name,
            )
        if found[field.name].simpleString() != field.dataType.simpleString():
            raise SchemaError(
                f"{where} returned column {field.name!r} as {found[field.name].simpleString()}, "
                f"expected {field.dataType.simpleString()}; cast it, or change schema=...",
                column=field.name,
            )
    for name in found:
        if name not in wanted.names:
            raise SchemaError(
                f"{where} returned a column {name!r} that schema=... does not name; drop it, or "
                "name it",
                column=name,
            )
    return made.select(*[f"`{name.replace('`', '``')}`" for name in wanted.names])
