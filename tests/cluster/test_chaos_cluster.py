"""An executor's JVM is killed: its hosts start again elsewhere, nothing is lost or doubled."""

import pytest
from pyspark.sql import SparkSession

from penstock.bench.chaos import Chaos, torture
from penstock.testing.cluster import StandaloneCluster


@pytest.mark.usefixtures("measure_briefly")
def test_a_killed_executor_takes_its_nodes_and_nobody_else(
    cluster: StandaloneCluster, cluster_spark: SparkSession
) -> None:
    settings = Chaos(kills=1, rate=1_000, seconds=80, cluster=True, hosts=5, standby=0)
    result = torture(cluster_spark, settings, cluster)
    assert result["kills"] == 1
    assert result["equal"]
    assert result["other_restarted"] == 0
    assert result["each"][0]["restarted_nodes"]
