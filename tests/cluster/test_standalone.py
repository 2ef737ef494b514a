"""The standalone cluster that the other tests in this folder stand on."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.demos.ysb import Ysb
from penstock.engine.spark.session import local_session
from penstock.errors import SlotsError
from penstock.testing.cluster import StandaloneCluster


def test_a_flow_started_at_once_waits_for_the_executors_and_refuses_when_they_are_too_few(
    cluster: StandaloneCluster, session_slot: Any
) -> None:
    session_slot.clear()  # the session must be new; the tests after this one use it, too
    conf = {"spark.executor.memory": "512m"}
    spark = session_slot.use(
        cluster.url, lambda: local_session("penstock-tests", master=cluster.url, conf=conf)
    )
    with pytest.raises(SlotsError, match=r"hosts=9, but only 8 of the session's 8 task slots"):
        Ysb(1000, 1, Ysb.soon(0)).flow.start(spark, hosts=9)


def test_a_job_runs_on_the_executors_of_both_workers(
    cluster: StandaloneCluster, cluster_spark: SparkSession
) -> None:
    def where(_: int) -> tuple[int, str]:
        time.sleep(0.5)  # long enough that no executor can take all the tasks
        return os.getppid(), sys.executable

    daemons: set[int] = set()
    deadline = time.monotonic() + 60
    while len(daemons) != 2 and time.monotonic() < deadline:  # one may join later than the other
        answers = cluster_spark.sparkContext.parallelize(range(8), 8).map(where).collect()
        assert {python for _, python in answers} == {sys.executable}
        daemons = {daemon for daemon, _ in answers}
    assert len(daemons) == 2
    assert [len(executors) for executors in cluster.executor_pids().values()] == [1, 1]


def test_stop_leaves_no_process_and_no_folder() -> None:
    with StandaloneCluster(workers=1, cores=1) as own:
        pids = [own.master_pid, *own.worker_pids]
        folder = own.folder
        assert own.url.startswith("spark://127.0.0.1:")
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not folder.exists()
