"""Hosts as tasks of a Spark session."""

from __future__ import annotations

import logging
import re
import uuid
from typing import TYPE_CHECKING

from penstock.connectors.spark_stage import SparkWork
from penstock.engine.driver.launcher import OnEnd
from penstock.engine.host.task import HostTask
from penstock.engine.spark.frames import SparkJob
from penstock.engine.spark.launch import KEEP_MEMORY, HostJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkLauncher"]

log = logging.getLogger(__name__)


class SparkLauncher:
    """Runs the hosts and DataFrame jobs of one flow on a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tag = f"penstock-{uuid.uuid4().hex[:12]}"

    @property
    def one_machine(self) -> bool:
        """Whether all hosts share this machine's files."""
        return bool(self._spark.sparkContext.master.startswith("local"))

    @property
    def retries(self) -> bool:
        """Whether Spark starts a lost task again by itself."""
        context = self._spark.sparkContext
        if context.master.startswith("local"):
            return bool(re.match(r"local\[.*,\s*([2-9]|\d\d+)\]", context.master))
        return int(context.getConf().get("spark.task.maxFailures", "4")) > 1

    def host_job(self, task: HostTask, on_end: OnEnd, keep_memory: bool) -> HostJob:
        """A Spark job for a host, not yet submitted."""
        return HostJob(self._spark, task, self._tag, on_end, KEEP_MEMORY if keep_memory else {})

    def frame_job(self, flow: str, stage: str, work: SparkWork) -> SparkJob:
        """The Spark jobs of a stage that works on DataFrames."""
        return SparkJob(self._spark, flow, stage, work)

    def cancel(self) -> None:
        """Cancel the Spark jobs of hosts that did not end by themselves."""
        log.warning("cancelling the Spark jobs of hosts that did not end when told")
        context = self._spark.sparkContext
        if context._jsc is not None:  # else the session was stopped, and the jobs with it
            context.cancelJobsWithTag(self._tag)
