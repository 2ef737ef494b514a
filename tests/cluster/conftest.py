"""A standalone Spark cluster for all the tests in this folder."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.engine.spark.session import local_session
from penstock.testing.cluster import StandaloneCluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0] + "/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="package")
def cluster(session_slot: Any) -> Iterator[StandaloneCluster]:
    """A master and two workers of four cores on loopback; ``cluster.url`` is the master's."""
    with StandaloneCluster(workers=2, cores=4) as started:
        yield started
        session_slot.clear()  # a session must not outlive its master


@pytest.fixture
def cluster_spark(cluster: StandaloneCluster, session_slot: Any) -> SparkSession:
    """A session on that cluster, with one executor on each worker."""
    conf = {"spark.executor.memory": "512m"}
    return session_slot.use(
        cluster.url, lambda: local_session("penstock-tests", master=cluster.url, conf=conf)
    )
