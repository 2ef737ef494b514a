"""The standalone cluster that the other tests in this folder stand on."""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.testing.cluster import StandaloneCluster


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
