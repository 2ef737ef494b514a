"""The Yahoo! Streaming Benchmark, unchanged, on executors of two workers."""

import threading

import psutil
from pyspark.sql import SparkSession

from penstock.demos.ysb import Ysb
from penstock.testing.cluster import StandaloneCluster
from penstock.testing.processes import hosts_of, wait_gone

WAIT_S = 60.0


def executors_of(
    hosts: dict[int, psutil.Process], cluster: StandaloneCluster
) -> dict[int, list[int]]:
    """Which hosts live below which executor."""
    executors = {pid for pids in cluster.executor_pids().values() for pid in pids}
    found: dict[int, list[int]] = {}
    for host, process in hosts.items():
        [executor] = [parent.pid for parent in process.parents() if parent.pid in executors]
        found.setdefault(executor, []).append(host)
    return found


def run(spark: SparkSession, cluster: StandaloneCluster, seconds: float) -> Ysb:
    """Make events for some seconds; the flow ends by itself when they are all counted."""
    ysb = Ysb(100_000, seconds, Ysb.soon(3.0), sources=3, counters=3)
    query = ysb.flow.start(spark, hosts=6)  # more than the slots of either executor
    hosts = hosts_of(query)
    collector = threading.Thread(target=ysb.collect, daemon=True)
    collector.start()
    try:
        assert sorted(map(len, executors_of(hosts, cluster).values())) in ([2, 4], [3, 3])
        assert query.awaitTermination(seconds + 60)
    finally:
        query.stop()
    collector.join(10)
    wait_gone(hosts.values(), WAIT_S)
    return ysb


def test_on_two_workers_no_view_is_lost_or_doubled_and_no_process_stays(
    cluster: StandaloneCluster, cluster_spark: SparkSession
) -> None:
    ysb = run(cluster_spark, cluster, 3)
    check = ysb.check()
    assert (check.events, check.lost, check.duplicated) == (300_000, 0, 0)
    assert check.windows in (3, 4)
    assert sum(rows.num_rows for _, rows in ysb.results) >= 3 * 100
    # A check that cannot see a difference proves nothing.
    ysb.results.append(ysb.results[-1])
    assert ysb.check().duplicated > 0
    del ysb.results[0], ysb.results[-1]
    assert ysb.check().lost > 0


def test_stop_on_a_cluster_leaves_no_host(
    cluster: StandaloneCluster, cluster_spark: SparkSession
) -> None:
    ysb = Ysb(100_000, 60, Ysb.soon(0.5))
    query = ysb.flow.start(cluster_spark, hosts=4)
    hosts = hosts_of(query)
    assert ysb.out.get(30) is not None
    query.stop()
    wait_gone(hosts.values(), WAIT_S)
    assert query.exception() is None
