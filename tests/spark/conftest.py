"""A local Spark session for all the tests in this folder."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.engine.spark.session import local_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0] + "/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.spark)


@pytest.fixture
def spark(session_slot: Any) -> SparkSession:
    """The session that Penstock makes, with slots for four hosts and two to spare."""
    return session_slot.use("local", lambda: local_session("penstock-tests", master="local[6]"))
