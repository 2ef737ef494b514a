"""A driver or a host killed with ``kill -9``: nothing is left running, or lost, or unexplained."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.api import functions as F
from penstock.bench.chaos_driver import kill_drivers
from penstock.errors import HostLostError
from penstock.testing.processes import DriverScript, alive, hosts_of, wait_gone, wait_until

DRIVER = """
import time
import numpy as np, pyarrow as pa
from penstock import Flow, functions as F
from penstock.engine.spark.session import local_session

def make(offset, n):
    ids = np.arange(offset, offset + n)
    return pa.record_batch({"id": ids, "k": ids % 10})

spark = local_session(hosts=4)
flow = Flow("killed")
out = flow.generate(make, rate=50_000, shards=2).groupBy("k").agg(F.count("*").alias("n")).memory()
query = flow.start(spark, hosts=4)
while not out.toPylist():
    time.sleep(0.02)
print("PIDS", *[host["pid"] for host in query.hosts], flush=True)
time.sleep(120)
"""


def test_no_host_outlives_a_killed_driver(tmp_path: Path, at_length: bool) -> None:
    limit_s = 5 if at_length else 60
    with DriverScript(DRIVER, tmp_path) as script:
        hosts = [psutil.Process(int(pid)) for pid in script.line("PIDS ", 90).split()]
        assert len(alive(hosts)) == 4
        below = script.descendants()
        assert set(hosts) < set(below)
        hosts[1].suspend()
        script.process.kill()
        script.process.wait(10)
        began = time.monotonic()
        wait_gone([host for host in hosts if host is not hosts[1]], limit_s)
        time.sleep(max(0.0, began + 2 - time.monotonic()))
        if alive([hosts[1]]):
            hosts[1].resume()
            began = time.monotonic()
        took = wait_gone(hosts, max(0.0, began + limit_s - time.monotonic()))
        print(f"hosts gone {took:.2f} s after the driver")
        wait_gone(below, 30)  # the JVM and the daemons too


def test_a_killed_host_ends_a_flow_without_recovery_and_is_named(spark: SparkSession) -> None:
    def make(offset: int, n: int) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n)
        return pa.record_batch({"id": ids, "k": ids % 10})

    flow = Flow("killed")
    numbers = flow.generate(make, rate=50_000, shards=2, name="numbers")
    out = numbers.groupBy("k").agg(F.count("*").alias("n")).name("counts").memory()
    query = flow.start(spark, hosts=3, recovery="none")
    hosts = hosts_of(query)
    wait_until(out.toPylist, 60, "rows")
    nodes = {info["host"]: info["nodes"] for info in query.hosts}
    os.kill(hosts[2].pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(HostLostError) as caught:
        assert query.awaitTermination(60)
    took = time.monotonic() - began
    print(f"told {took:.2f} s after the kill")
    error = caught.value
    assert error.parameters["host"] == 2
    assert error.parameters["pid"] == hosts[2].pid
    for word in ("host 2", str(hosts[2].pid), *nodes[2]):
        assert word in error.message
    wait_gone(hosts.values(), 60)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    # The session is as good as before.
    flow = Flow("after")
    flow.generate(make, rows=1000, rate=100_000).memory()
    assert flow.start(spark, hosts=3).awaitTermination(30)


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_again_and_again_leaves_the_tables_as_if_it_never_was(
    at_length: bool,
) -> None:
    kills = 10 if at_length else 1
    result = kill_drivers(kills, rate=1_000)
    assert (result["lost"], result["duplicated"], result["disordered"]) == (0, 0, 0)
    assert result["equal"]
    assert 1 <= result["kills"] <= kills  # a busy machine runs out of input before
    assert result["resume_s"]["p50"] < 6 or not at_length
